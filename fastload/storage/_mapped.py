"""A file as bytes-like, mapped read-only: what the scanners of foreign stores walk through."""

from __future__ import annotations

import mmap
import os
from typing import Any

from fastload import _native
from fastload.errors import StoreError, StoreNotFoundError

_COMPRESSED = (
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ", "xz"),
    (b"(\xb5/\xfd", "zstd"),
)


def map_file(path: str) -> mmap.mmap | bytes:
    """The content of ``path``; empty bytes for an empty file, which cannot be mapped.

    Raises:
        StoreNotFoundError: nothing there.
        StoreError: it cannot be read, or is compressed: records of a compressed file have no place.
    """
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return b""
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as error:
        raise StoreNotFoundError("expected a file, found nothing", path=path) from error
    except (OSError, ValueError) as error:
        raise StoreError(f"the file cannot be read: {error}", path=path) from error
    for start, name in _COMPRESSED:
        if data[: len(start)] == start:
            raise StoreError(
                f"expected an uncompressed file, found {name}: decompress it first", path=path
            )
    return data


class Watch:
    """Notices that the mapped file ``path`` was cut short, as one is that another is copied over.

    With the core, reading what is missing then gives zeros until ``check`` is called, instead of
    ending the process by SIGBUS.
    """

    def __init__(self, mapped: mmap.mmap, path: str) -> None:
        core = _native.load()
        self._core: Any = None if core is None else core.Watched(mapped)
        self._map, self._path = mapped, path

    def check(self) -> None:
        """Raises StoreError: the file is not whole any more."""
        expected, found = len(self._map), self._map.size()
        if found < expected or (self._core is not None and self._core.cut >= 0):
            raise StoreError(
                f"expected {expected} bytes, as the file had when it was opened, found {found}: "
                "was it cut short or overwritten? Put the store back and make a new loader",
                path=self._path,
            )
