"""A chunk of source files on its way into a store: read, encoded, with checksums."""

from __future__ import annotations

import collections
import dataclasses
import os
import threading

import numpy as np

from fastload.errors import DecodeError
from fastload.storage._crc import crc32c
from fastload.storage.folder import FolderStore

from ._encoders import Encoder


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chunk:
    """Records ready to be written, and the files that gave none.

    Attributes:
        indices: int64 (n,), of the records in the source.
        data: n records.
        sizes, kinds, crc32c: as in ``Batch``.
        failed: (index in the source, reason) of each file that could not be read or is no image.
        kept: reason -> records that keep their bytes although another encoding was asked for.
    """

    indices: np.ndarray
    data: list[bytes]
    sizes: np.ndarray
    kinds: np.ndarray
    crc32c: np.ndarray
    failed: list[tuple[int, str]]
    kept: collections.Counter[str]


def read_chunk(
    store: FolderStore, indices: np.ndarray, encoder: Encoder, stop: threading.Event
) -> Chunk:
    """Read and encode some files of ``store``; once ``stop`` is set, end with what there is."""
    done: list[int] = []
    data: list[bytes] = []
    shape: list[tuple[int, int, int]] = []
    failed: list[tuple[int, str]] = []
    kept: collections.Counter[str] = collections.Counter()
    for index, path in zip(indices.tolist(), store.files.many(indices)):
        if stop.is_set():
            break
        try:
            encoded = encoder(_read(path))
        except DecodeError as error:
            failed.append((index, error.message))
            continue
        except OSError as error:
            failed.append((index, f"the file cannot be read: {error.strerror}"))
            continue
        done.append(index)
        data.append(encoded.data)
        if encoded.kept is not None:
            kept[encoded.kept] += 1
        shape.append((encoded.width, encoded.height, encoded.kind))
    shapes = np.array(shape, np.int32).reshape(-1, 3)
    return Chunk(
        indices=np.array(done, np.int64),
        data=data,
        sizes=np.ascontiguousarray(shapes[:, :2]),
        kinds=shapes[:, 2].astype(np.uint8),
        crc32c=np.array([crc32c(item) for item in data], np.uint32),
        failed=failed,
        kept=kept,
    )


def _read(path: bytes) -> bytes:
    """A whole file. (Three system calls less than ``open``: it counts for small files.)"""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        data = os.read(descriptor, size + 1)
        if len(data) == size:
            return data
        parts = [data]  # it grew meanwhile, or is larger than one read gives
        while parts[-1]:
            parts.append(os.read(descriptor, 1 << 24))
        return b"".join(parts)
    finally:
        os.close(descriptor)
