"""Reads whole files for ``pack``; images in the native core, with checksums and sizes.

One call without the GIL reads many images. Files that the core does not support (formats other than
JPEG, PNG and BMP), cannot read, or that have more pixels than Pillow opens without a warning, are
left to Python, which reports what is wrong.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from types import ModuleType

import numpy as np

from .. import _native
from .._base.pixel_limit import most_pixels
from ..errors import StoreError
from ..storage._read import open_regular, pread_all

MEMORY_NBYTES = 8 << 20  # of one piece of memory; a larger file gets one of its own
CHUNK_NBYTES = 32 << 20  # of the pieces of one call; a larger file comes alone


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gathered:
    """Files that were read: of the first n that CHUNK_NBYTES hold, at least one, those that can be.

    ``readable`` says which; the others have an item for each of these m.
    """

    readable: np.ndarray  # bool (n,)
    data: Sequence[memoryview]
    sizes: np.ndarray  # int32 (m, 2), width and height
    crc32c: np.ndarray  # uint32 (m,)


class Gatherer:
    """Reads files by number, of those in a ``Store.file_table``; thread-safe."""

    def __init__(self, core: ModuleType, paths: bytes, ends: np.ndarray) -> None:
        self._core = core
        self._files = core.Files(paths, ends, np.zeros(len(ends), np.uint8))
        self._memory = _ReusedMemory()

    def read(self, indices: np.ndarray) -> Gathered:
        """Read the first of the files ``indices``, as many as fit into a chunk."""
        count = len(indices)
        numbers = np.ascontiguousarray(indices, np.int32)
        offset, nbytes = np.zeros(count, np.int64), np.zeros(count, np.int64)
        crc32c, sizes = np.zeros(count, np.uint32), np.zeros((count, 2), np.int32)
        status, detail = np.zeros(count, np.int32), np.zeros(count, np.int32)
        data: list[memoryview] = []
        done, wanted, held = 0, MEMORY_NBYTES, 0
        while done < count and (not done or held + wanted <= CHUNK_NBYTES):
            memory = self._memory.take(wanted)
            taken = self._core.gather(
                self._files, numbers[done:], memory, offset[done:], nbytes[done:], crc32c[done:],
                sizes[done:], status[done:], detail[done:],
            )  # fmt: skip
            view, stop = memory.data, done + taken
            held += len(memory) if taken else 0
            begins = offset[done:stop]
            ends = (begins + nbytes[done:stop]).tolist()
            data += [view[begin:end] for begin, end in zip(begins.tolist(), ends)]
            if stop < count:
                wanted = max(MEMORY_NBYTES, int(nbytes[stop]))
            done = stop
        status, sizes, crc32c = status[:done], sizes[:done], crc32c[:done]
        readable = (status == _native.OK) & (sizes.prod(axis=1, dtype=np.int64) <= most_pixels())
        if not readable.all():
            data = [data[index] for index in np.flatnonzero(readable).tolist()]
            sizes, crc32c = sizes[readable], crc32c[readable]
        return Gathered(readable=readable, data=data, sizes=sizes, crc32c=crc32c)


class _ReusedMemory:
    """Arrays that are reused once nothing refers to the data in them.

    New memory costs a page fault for every 4 KiB: a tenth of the time of packing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pieces: list[tuple[np.ndarray, weakref.ref[np.ndarray]]] = []

    def take(self, nbytes: int) -> np.ndarray:
        """uint8 (at least ``nbytes``,), not initialised."""
        with self._lock:
            for number, (piece, lease) in enumerate(self._pieces):
                if lease() is None and len(piece) >= nbytes:
                    return self._lease(number, piece)
            piece = np.empty(nbytes, np.uint8)
            if nbytes > MEMORY_NBYTES:
                return piece  # for one large file: not reused
            self._pieces.append((piece, weakref.ref(piece)))
            return self._lease(len(self._pieces) - 1, piece)

    def _lease(self, number: int, piece: np.ndarray) -> np.ndarray:
        view: np.ndarray = piece[:]
        self._pieces[number] = piece, weakref.ref(view)
        return view


class Files:
    """Reads files of this machine in Python; ``_remote.py`` reads remote ones."""

    remote = False

    def read(self, paths: Sequence[str]) -> Iterator[bytes | StoreError]:
        """The contents in turn; an error for one that cannot be read."""
        for path in paths:
            try:
                yield read_file(path)
            except OSError as error:
                yield StoreError(f"the file cannot be read: {error.strerror}", path=path)

    def contents(self, paths: Sequence[str]) -> Iterator[bytes]:
        """As ``read``, of files that are needed: raises the error of one that cannot be read."""
        for data in self.read(paths):
            if isinstance(data, StoreError):
                raise data
            yield data

    def shown(self, path: str) -> str:
        return path


def read_file(path: str) -> bytes:
    """The content of a file, with fewer system calls than ``open``. Raises OSError."""
    descriptor = open_regular(path)
    try:
        return pread_all(descriptor, os.fstat(descriptor).st_size, 0)
    finally:
        os.close(descriptor)
