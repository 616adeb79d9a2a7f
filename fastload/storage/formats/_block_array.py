"""What the writers of N5 and Zarr have in common: a folder, and images in files of many each."""

from __future__ import annotations

import abc
import os
from collections.abc import Sequence
from typing import Any

from .._columns import Columns
from .._shards import Sharding
from ._array_writer import ArrayWriter
from ._blocks import BlockWriter, images_per_file, sync_folders


class BlockArrayWriter(ArrayWriter):
    """Writes a folder whose images lie in blocks. See ``open_writer`` for the arguments.

    A format says in ``_images`` how blocks are called and framed, and in ``_describe`` writes
    everything else.

    Args:
        shards: so many blocks, which needs ``total``.
        shard_nbytes: of a block; None: 64 MiB, and at most 4,096 images.
        total: how many records will come.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        shards: int | None = None,
        shard_nbytes: int | None = None,
        total: int | None = None,
        **options: Any,
    ) -> None:
        self._sharding = Sharding(shards, shard_nbytes, total)
        self._blocks: BlockWriter | None = None
        super().__init__(path, **options)

    def _begin(self) -> None:
        width, height = self._size or (1, 1)
        folder = os.path.join(self._partial.file("data"), "images")
        os.makedirs(folder)
        self._rows = images_per_file(self._sharding, width * height * 3)
        self._blocks = self._images(folder, width, height)

    def _write(self, data: Sequence[bytes | memoryview]) -> None:
        assert self._blocks is not None  # begun
        self._blocks.write(data)

    def _close(self, columns: Columns) -> str:
        if self._blocks is None:
            self._begin()
        assert self._blocks is not None  # begun
        self._blocks.finish()
        root = self._partial.file("data")
        width, height = self._size or (1, 1)
        self._describe(root, columns, (len(columns), height, width, 3))
        sync_folders(root)
        return "data"

    def _release(self) -> None:
        if self._blocks is not None:
            self._blocks.abandon()

    @abc.abstractmethod
    def _images(self, folder: str, width: int, height: int) -> BlockWriter:
        """What writes the blocks of ``_rows`` images each, below ``folder``."""

    @abc.abstractmethod
    def _describe(self, root: str, columns: Columns, shape: tuple[int, int, int, int]) -> None:
        """Write what says that images of ``shape`` lie in the blocks, and all columns."""
