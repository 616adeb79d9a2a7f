"""A file as bytes-like, mapped read-only: what the scanners of foreign stores walk through."""

from __future__ import annotations

import mmap
import os

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
