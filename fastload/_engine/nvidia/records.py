"""The bytes of a batch's records in memory, for decoders that take buffers instead of files.

Packed local files are mapped and not copied; loose and network files are read. The core does the
same (``_native/io/files.h``).
"""

from __future__ import annotations

import concurrent.futures
import mmap
import os
from collections.abc import Callable

import numpy as np

from ...storage._crc import crc32c
from ...storage._read import open_regular, pread_all
from ...storage.base import ENCODED, Store
from ..kernel import BatchRequest

# First and last bytes of a whole JPEG file. One that ends otherwise is truncated, or has other data
# after it: a GPU's decoder may decode it, where Pillow raises.
_BEGIN, _END = b"\xff\xd8\xff", b"\xff\xd9"


class Records:
    """The bytes of JPEG records of one store, which must lie in its files as they are."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open()

    def _open(self) -> None:
        self._generation = self._store.generation
        self._files = self._store.files
        self._mapped = self._store.mapped_files()
        self._maps = dict(self._store.memory())

    def read(
        self,
        batch: BatchRequest,
        requested: np.ndarray,
        pool: Callable[[], concurrent.futures.Executor],
        threads: int,
    ) -> list[np.ndarray | None]:
        """The bytes of each sample, uint8 (nbytes,), read-only.

        None where the sample is not ``requested`` (bool (n,)), is no whole JPEG file, cannot be
        read, or does not match its checksum: the engine that gets it next raises the error.
        ``pool`` makes the ``threads`` that read; 0: the caller reads.
        """
        if self._generation != self._store.generation:
            self._open()
        n = len(batch.records)
        slow = (batch.check is not None and batch.check.any()) or not self._mapped.all()
        shares = min(threads, n) if slow else 1
        if shares <= 1:
            return self._share(batch, requested, range(n))
        contents: list[np.ndarray | None] = [None] * n
        tasks = [
            pool().submit(self._share, batch, requested, range(first, n, shares))
            for first in range(shares)
        ]
        for first, task in enumerate(tasks):
            contents[first::shares] = task.result()
        return contents

    def _share(
        self, batch: BatchRequest, requested: np.ndarray, which: range
    ) -> list[np.ndarray | None]:
        return [self._sample(batch, i) if requested[i] else None for i in which]

    def _sample(self, batch: BatchRequest, i: int) -> np.ndarray | None:
        if batch.kinds[i] != ENCODED:
            return None
        spans = batch.spans
        try:
            offset, nbytes = int(spans.offset[i]), int(spans.nbytes[i])
            data: np.ndarray | None
            if spans.file[i] < 0 and spans.memory is not None:
                data = spans.memory[-1 - int(spans.file[i])][offset : offset + nbytes]
            else:
                data = self._bytes(int(spans.file[i]), offset, nbytes)
        except OSError:
            return None
        if data is None or bytes(data[:3]) != _BEGIN or bytes(data[-2:]) != _END:
            return None
        if batch.checksums is not None and batch.check is not None and batch.check[i]:
            if crc32c(data.data) != int(batch.checksums[i]):
                return None
        return data

    def _bytes(self, file: int, offset: int, nbytes: int) -> np.ndarray | None:
        """The bytes of one span; None where it does not lie inside its file."""
        if self._mapped[file]:
            whole = self._maps.get(file)
            if whole is None:
                whole = self._maps[file] = _map(self._files[file])
            end = len(whole) if nbytes < 0 else offset + nbytes
            return whole[offset:end] if 0 <= offset < end <= len(whole) else None
        descriptor = open_regular(self._files[file])
        try:
            size = os.fstat(descriptor).st_size
            end = size if nbytes < 0 else offset + nbytes
            if not 0 <= offset < end <= size:
                return None
            data = pread_all(descriptor, end - offset, offset)
        finally:
            os.close(descriptor)
        return np.frombuffer(data, np.uint8) if len(data) == end - offset else None


def _map(path: str) -> np.ndarray:
    with open(path, "rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
