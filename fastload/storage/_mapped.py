"""Files mapped read-only: whole files for scanners, or columns that are views of a file."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .. import _native
from ..errors import StoreError, StoreNotFoundError
from ._read import open_regular

if TYPE_CHECKING:
    from .._native import _core

# how compressed files begin, and the command that decompresses them
_COMPRESSED = (
    (b"\x1f\x8b\x08", "gzip"),  # two of these bytes start a TFRecord of 35,615 bytes
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ", "xz"),
    (b"(\xb5/\xfd", "zstd"),
)
_HEAD = 5  # bytes of the longest of these beginnings
_MOST_MAPPED = 16  # files of a scanner

Mapped: TypeAlias = mmap.mmap | bytes
"""The content of a mapped file; empty bytes for an empty file."""


def map_file(path: str) -> Mapped:
    """The content of ``path``; empty bytes for an empty file, which cannot be mapped."""
    try:
        with open(path, "rb", opener=open_regular) as file:
            if os.fstat(file.fileno()).st_size == 0:
                return b""
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as error:
        raise StoreNotFoundError("expected a file, found nothing", path=path) from error
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", error)
        raise StoreError(f"the file cannot be read: {said}", path=path) from error
    tool = _tool_of(data[:_HEAD])
    if tool is not None:
        raise StoreError(
            f"expected an uncompressed file, found {tool}: pack it (fastload pack), or decompress "
            f"it first ({tool} -dc)",
            path=path,
        )
    return data


def compressed_by(path: str) -> str | None:
    """The command that decompresses the file at ``path``; None if it is not compressed."""
    try:
        with open(path, "rb", opener=open_regular) as file:
            return _tool_of(file.read(_HEAD))
    except OSError:
        return None  # whoever opens it next says why


def _tool_of(head: bytes) -> str | None:
    return next((tool for begin, tool in _COMPRESSED if head.startswith(begin)), None)


class MappedFiles:
    """The contents of files by number, for scanners that read one file after the other.

    A few are mapped at a time. Each map holds a descriptor, and a dataset in a thousand shards
    would take all that a process may have.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._maps: dict[int, Mapped] = {}

    def __getitem__(self, file: int) -> Mapped:
        mapped = self._maps.pop(file, None)
        if mapped is None:
            if len(self._maps) == _MOST_MAPPED:
                del self._maps[next(iter(self._maps))]  # used longest ago
            mapped = map_file(self._paths[file])
        self._maps[file] = mapped
        return mapped


class TruncationWatch:
    """Notices that the mapped file ``path`` was truncated, for example by copying over it.

    With the core, reading the missing part returns zeros until ``check`` is called, instead of
    ending the process with SIGBUS.
    """

    def __init__(self, mapped: mmap.mmap, path: str) -> None:
        core = _native.load()
        self._core: _core.SigbusGuard | None = None if core is None else core.SigbusGuard(mapped)
        self._map, self._path = mapped, path

    def check(self) -> None:
        """Raise StoreError if the file was truncated."""
        expected, found = len(self._map), self._map.size()
        if found < expected or (self._core is not None and self._core.first_missing >= 0):
            raise StoreError(
                f"expected {expected} bytes, as the file had when it was opened, found {found}: "
                "was it truncated or overwritten? Put the store back and make a new loader",
                path=self._path,
            )


class MappedColumns:
    """Columns that stay in the file ``path``, which is mapped when the first one is read.

    ``watch`` is to be checked before a column is used; None: nothing is mapped.
    """

    def __init__(self, path: str) -> None:
        self.watch: TruncationWatch | None = None
        self._path = path
        self._map: mmap.mmap | bytes = b""

    def array(self, dtype: np.dtype[Any], offset: int, shape: tuple[int, ...]) -> np.ndarray:
        if not self._map:
            self._map = map_file(self._path)
            if isinstance(self._map, mmap.mmap):
                self.watch = TruncationWatch(self._map, self._path)
        count = math.prod(shape)
        if offset + count * dtype.itemsize > len(self._map):
            raise StoreError(
                f"expected {count * dtype.itemsize} bytes of a column, found the end of the file: "
                "it was truncated",
                path=self._path,
                offset=offset,
            )
        return np.frombuffer(self._map, dtype, count, offset).reshape(shape)
