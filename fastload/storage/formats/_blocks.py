"""Files of k images each: what N5 and Zarr stores have in common."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ...errors import StoreError
from .._partial import sync_folder
from .._read import read_regular
from .._shards import Sharding
from .._writes import write_all
from ._image_array import least_stored

# A block: large enough that a store of a terabyte stays below the 65,530 maps of a process, and
# few enough images that the index of a Zarr shard is read quickly by others.
_BLOCK_NBYTES = 64 << 20
_BLOCK_IMAGES = 4096
_MAX_JSON = 64 << 20


def images_per_file(sharding: Sharding, nbytes: int) -> int:
    """How many images of ``nbytes`` bytes each a block holds."""
    if sharding.shards is not None:
        return max(1, -(-(sharding.total or 0) // sharding.shards))
    if sharding.shard_nbytes is not None:
        return max(1, sharding.shard_nbytes // nbytes)
    return min(_BLOCK_IMAGES, max(1, _BLOCK_NBYTES // nbytes))


class BlockWriter:
    """Writes records of one size into numbered files, ``per_block`` in each.

    Args:
        path_of: number of a block -> its path.
        per_block: records in a block; the last one may have fewer.
        head: records in a block -> what precedes them, always of the same length.
        tail: records in a block -> what follows them.
    """

    def __init__(
        self,
        path_of: Callable[[int], str],
        per_block: int,
        head: Callable[[int], bytes],
        tail: Callable[[int], bytes],
    ) -> None:
        self._path_of = path_of
        self._per_block = per_block
        self._head = head
        self._tail = tail
        self._blocks = 0
        self._inside = self._end = 0  # records and bytes in the open block
        self._file: Any = None

    def write(self, data: Sequence[bytes | memoryview]) -> None:
        """Add records."""
        at = 0
        while at < len(data):
            if self._file is None:
                path = self._path_of(self._blocks)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                self._file = open(path, "wb", buffering=0)
                self._inside = self._end = 0
                self._append([self._head(self._per_block)])
            many = min(self._per_block - self._inside, len(data) - at)
            self._append(data[at : at + many])
            self._inside += many
            at += many
            if self._inside == self._per_block:
                self._end_block()

    def _append(self, pieces: Sequence[bytes | memoryview]) -> None:
        write_all(self._file.fileno(), pieces, self._end)
        self._end += sum(map(len, pieces))

    def finish(self) -> None:
        """End the last block."""
        if self._file is not None:
            self._end_block()

    def abandon(self) -> None:
        """Close what is open."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _end_block(self) -> None:
        self._append([self._tail(self._inside)])
        if self._inside < self._per_block:
            write_all(self._file.fileno(), [self._head(self._inside)], 0)
        os.fsync(self._file.fileno())
        self.abandon()
        self._blocks += 1


def sync_folders(path: str) -> None:
    """Sync every folder of a finished tree; its files are synced when they are written."""
    for root, _, _ in os.walk(path):
        sync_folder(root)


def file_print(path: str) -> tuple[int, int, int]:
    """Size and time of a block: tells blocks apart without reading thousands of files.

    Raises:
        StoreError: the file is missing or cannot be read.
    """
    try:
        found = os.stat(path)
    except OSError as error:
        raise StoreError(
            f"a block of the store is missing: {error.strerror}; copy or pack it again", path=path
        ) from error
    return found.st_size, found.st_mtime_ns, 0


def pieces(array: np.ndarray) -> list[np.ndarray]:
    """``array`` in pieces of about 64 MiB, cut along the first axis; at least an empty one."""
    nbytes = max(1, array.nbytes // max(1, len(array)))
    rows = max(1, _BLOCK_NBYTES // nbytes)
    return [array[at : at + rows] for at in range(0, len(array), rows)] or [array]


def read_json(path: str) -> dict[str, Any] | None:
    """A JSON object out of a small file; None where there is no such file.

    Raises:
        StoreError: damaged.
    """
    try:
        found = json.loads(read_regular(path, _MAX_JSON))
        if not isinstance(found, dict):
            raise ValueError(f"a {type(found).__name__}")
        return found
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"expected a JSON object, found {error}: copy or pack the store again",
                         path=path) from error  # fmt: skip


def check_stored(folder: str, shape: Sequence[int], itemsize: int) -> None:
    """Raise StoreError where the files of an array cannot hold it, however they are compressed.

    So that a number that is damaged does not ask for more memory than there is.

    Args:
        folder: of the array.
        shape, itemsize: what its description says.
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
        "store is damaged or not whole; copy or pack it again",
        path=folder,
    )


def _file_sizes(folder: str) -> Iterator[int]:
    """Bytes of each file below ``folder``; links are followed, to each folder once."""
    left, seen = [folder], set()
    while left:
        with contextlib.suppress(OSError):  # it has gone, or is a link to nothing
            place = os.stat(one := left.pop())
            if (place.st_dev, place.st_ino) in seen:
                continue
            seen.add((place.st_dev, place.st_ino))
            with os.scandir(one) as entries:
                for entry in entries:
                    if entry.is_dir():
                        left.append(entry.path)
                    elif entry.is_file():
                        yield entry.stat().st_size


def counts(value: Any, path: str) -> tuple[int, ...]:
    """A shape out of a JSON file.

    Raises:
        StoreError: no list of up to 16 numbers from 0 to 2**40.
    """
    if (
        not isinstance(value, list)
        or not 0 < len(value) <= 16
        or not all(type(side) is int and 0 <= side <= 1 << 40 for side in value)
    ):
        raise StoreError(f"expected a shape, found {str(value)[:100]}", path=path)
    return tuple(value)
