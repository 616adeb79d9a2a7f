"""Folders whose images lie in files of k images each, called blocks: N5 and Zarr."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ...errors import StoreError
from .._columns import Columns
from .._durable import sync, write_all
from .._fields import Blobs, numbered_keys
from .._read import read_regular
from .._shards import Sharding
from .._writer import WriterOptions
from ..table import Indirect, Table, constant
from ._array_writer import ArrayWriter
from ._image_table import (
    CLASSES,
    LABELS,
    Axes,
    ColumnReader,
    StoreHeader,
    checked_classes,
    first_of,
    image_table,
    least_stored,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

# A block is large enough that a store of a terabyte needs fewer than the 65,530 maps of a process,
# and has few enough images that other readers load the index of a Zarr shard quickly.
_BLOCK_NBYTES = 64 << 20
_BLOCK_IMAGES = 4096
_MAX_JSON = 64 << 20
_MAX_BLOCKS = 1 << 20  # that are looked at when a store is opened


class BlockArrayWriter(ArrayWriter):
    """Writes a folder whose images lie in blocks. See ``open_writer`` for the arguments.

    A format implements ``_block_path``, ``_block_head`` and ``_block_tail``, which name and frame
    the blocks, and ``_describe``, which writes everything else. ``shard_nbytes`` is the size of a
    block; None: 64 MiB, and at most 4,096 images.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        shards: int | None = None,
        shard_nbytes: int | None = None,
        total: int | None = None,
        **options: Unpack[WriterOptions],
    ) -> None:
        self._sharding = Sharding(shards, shard_nbytes, total)
        self._block: io.FileIO | None = None  # the one that is being written
        self._blocks = 0  # finished ones
        self._inside = self._end = 0  # images and bytes in the open one
        super().__init__(path, **options)

    def _begin(self) -> None:
        width, height = self._size or (1, 1)
        self._shape = height, width, 3  # of an image
        nbytes, sharding = width * height * 3, self._sharding
        if sharding.shards is not None:
            self._rows = max(1, -(-(sharding.total or 0) // sharding.shards))
        elif sharding.shard_nbytes is not None:
            self._rows = max(1, sharding.shard_nbytes // nbytes)
        else:
            self._rows = min(_BLOCK_IMAGES, max(1, _BLOCK_NBYTES // nbytes))
        os.makedirs(os.path.join(self._partial.file("data"), "images"))

    def _write(self, data: Sequence[bytes | memoryview]) -> None:
        at = 0
        while at < len(data):
            block = self._block
            if block is None:
                images = os.path.join(self._partial.file("data"), "images")
                path = os.path.join(images, self._block_path(self._blocks))
                os.makedirs(os.path.dirname(path), exist_ok=True)
                block = self._block = open(path, "wb", buffering=0)
                self._inside = self._end = 0
                self._append(block, [self._block_head(self._rows)])
            many = min(self._rows - self._inside, len(data) - at)
            self._append(block, data[at : at + many])
            self._inside += many
            at += many
            if self._inside == self._rows:
                self._end_block(block)

    def _append(self, block: io.FileIO, pieces: Sequence[bytes | memoryview]) -> None:
        write_all(block.fileno(), pieces, self._end)
        self._end += sum(map(len, pieces))

    def _end_block(self, block: io.FileIO) -> None:
        self._append(block, [self._block_tail(self._inside)])
        if self._inside < self._rows:
            write_all(block.fileno(), [self._block_head(self._inside)], 0)
        os.fsync(block.fileno())
        self._release()
        self._blocks += 1

    def _close(self, columns: Columns) -> str:
        if self._raw is None:  # there was no image
            self._begin()
        if self._block is not None:
            self._end_block(self._block)
        root = self._partial.file("data")
        self._describe(root, columns, (len(columns), *self._shape))
        for folder, _, _ in os.walk(root):  # files were synced when they were written
            sync(folder)
        return "data"

    def _release(self) -> None:
        block, self._block = self._block, None
        if block is not None:
            block.close()

    @abc.abstractmethod
    def _block_path(self, number: int) -> str:
        """The path of a block below the folder of the images."""

    def _block_head(self, count: int) -> bytes:
        """The bytes before ``count`` images; always equally long."""
        return b""

    def _block_tail(self, count: int) -> bytes:
        """The bytes after ``count`` images."""
        return b""

    @abc.abstractmethod
    def _describe(self, root: str, columns: Columns, shape: tuple[int, int, int, int]) -> None:
        """Write the description of images of ``shape`` in the blocks, and all columns."""


def _file_print(path: str) -> tuple[int, int, int]:
    """Fingerprint of a block: its size and time, because there may be thousands to look at."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise StoreError(
            f"a block of the store is missing: {error.strerror}; copy the store again or pack it "
            "again",
            path=path,
        ) from error
    return status.st_size, status.st_mtime_ns, 0


def pieces(array: np.ndarray) -> list[np.ndarray]:
    """``array`` in pieces of about 64 MiB along the first axis; at least one, maybe empty."""
    nbytes = max(1, array.nbytes // max(1, len(array)))
    rows = max(1, _BLOCK_NBYTES // nbytes)
    return [array[at : at + rows] for at in range(0, len(array), rows)] or [array]


def read_json(path: str) -> dict[str, Any] | None:
    """The JSON object in a small file; None if there is no such file."""
    try:
        value = json.loads(read_regular(path, _MAX_JSON))
        if not isinstance(value, dict):
            raise ValueError(f"a {type(value).__name__}")
        return value
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(
            f"expected a JSON object, found {error}: copy the store again or pack it again",
            path=path,
        ) from error


Places: TypeAlias = tuple[np.ndarray, np.ndarray, Sequence[str]]
"""File and offset of each image, and the files."""


@dataclasses.dataclass(kw_only=True)
class BlockedArray(abc.ABC):
    """An array in files that divide only its first axis.

    Attributes:
        folder: of the files.
        rows: of a file.
        piece: rows that lie in a file one after the other, where they are not packed.
    """

    folder: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    rows: int
    piece: int

    @abc.abstractmethod
    def path_of(self, number: int) -> str:
        """The file ``number``."""

    @abc.abstractmethod
    def begins(self, paths: Sequence[str], axes: Axes) -> np.ndarray | None:
        """int64: where each piece starts in its file; None if they do not lie there as they are."""

    def places(self, axes: Axes) -> Places | None:
        """Those of images; None if they do not lie in their files as they are."""
        blocks = -(-axes.count // self.rows)
        if not axes.in_place or blocks > _MAX_BLOCKS:
            return None
        paths = [self.path_of(number) for number in range(blocks)]
        begins = self.begins(paths, axes) if all(map(os.path.exists, paths)) else None
        if begins is None:
            return None
        numbers = np.arange(axes.count, dtype=np.int64)
        offset = begins[numbers // self.piece] + numbers % self.piece * axes.nbytes
        return (numbers // self.rows).astype(np.int32), offset, paths


def folder_table(
    path: str,
    get: Callable[[str], np.ndarray | None],
    *,
    format: str,
    axes: Axes,
    places: Places | None,
    otherwise: Indirect,
    described: Sequence[str],
    attributes: Mapping[str, Any],
    header: StoreHeader,
) -> Table:
    """The table of images in blocks, with the arrays that lie in the same folder.

    Args:
        get: name -> array of the folder, or None if there is none.
        axes: of the array of images, which are raw pixels of one size.
        places: None: images do not lie in files as they are; they are read as ``otherwise`` says,
            with the files ``described``, the description of the array.
        attributes: of the folder; may have class names.
    """
    if header.sums is not None and not axes.in_place:
        raise StoreError(
            f"expected images of (height, width, 3), which fastload writes, found {axes}: the "
            "store is damaged, copy it again or pack it again",
            path=path,
        )
    nowhere = np.zeros(axes.count, np.int64)
    file, offset, files = places or (nowhere.astype(np.int32), nowhere, described)
    classes = first_of(CLASSES, attributes)

    def keys() -> Blobs:
        stored = ColumnReader(path, axes.count, get).blobs("keys/data", "keys/ends")
        return numbered_keys(axes.count) if stored is None else stored

    return image_table(
        path, get, keys, header, axes=axes,
        present={name for name in LABELS if os.path.isdir(f"{path}/{name}")},
        nbytes=constant(axes.count, axes.nbytes if places else 0, "<i8"),
        format=format, file=file, offset=offset, files=files,
        fingerprints=[_file_print(file) for file in files],
        indirect=None if places else otherwise,
        classes=checked_classes(attributes[classes], path) if classes else [],
    )  # fmt: skip


def check_stored(folder: str, shape: Sequence[int], itemsize: int) -> None:
    """Raise StoreError if the files of an array cannot hold it, however they are compressed.

    Otherwise a damaged number could ask for more memory than there is.
    """
    needed = least_stored(shape, itemsize)
    if needed <= 0:
        return
    stored = 0
    for nbytes in _file_sizes(folder):
        stored += nbytes
        if stored >= needed:
            return
    raise StoreError(
        f"expected {tuple(shape)} items of {itemsize} bytes, found files of {stored} bytes: the "
        "store is damaged or incomplete; copy it again or pack it again",
        path=folder,
    )


def _file_sizes(folder: str) -> Iterator[int]:
    """Bytes of each file below ``folder``; links are followed, to each folder once."""
    folders, seen = [folder], set()
    while folders:
        with contextlib.suppress(OSError):  # deleted meanwhile, or a dangling link
            place = os.stat(current := folders.pop())
            if (place.st_dev, place.st_ino) in seen:
                continue
            seen.add((place.st_dev, place.st_ino))
            with os.scandir(current) as entries:
                for entry in entries:
                    if entry.is_dir():
                        folders.append(entry.path)
                    elif entry.is_file():
                        yield entry.stat().st_size


def counts(value: object, path: str) -> tuple[int, ...]:
    """A shape from a JSON file."""
    if (
        not isinstance(value, list)
        or not 0 < len(value) <= 16
        or not all(type(side) is int and 0 <= side <= 1 << 40 for side in value)
    ):
        raise StoreError(f"expected a shape, found {str(value)[:100]}", path=path)
    return tuple(value)
