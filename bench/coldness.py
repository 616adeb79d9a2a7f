"""Drops data from the page cache, and checks that it is gone."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from bench import memory

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_MADV_DONTNEED = 4
_PAGE = mmap.PAGESIZE


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def drop(paths: Iterable[Path]) -> None:
    """Ask the system to forget the pages of these files, those that this process has mapped too.

    Pages that another process has mapped stay.
    """
    _unmap({str(path.resolve()) for path in paths})
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)  # dirty pages cannot be dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def resident(paths: Iterable[Path]) -> float:
    """How much of these files is in the page cache, 0 to 1."""
    pages = here = 0
    for path in paths:
        nbytes = path.stat().st_size
        if not nbytes:
            continue
        with open(path, "rb") as file:
            # Private, so that the map counts as writable: ctypes takes no address of others.
            mapped = mmap.mmap(file.fileno(), nbytes, mmap.MAP_PRIVATE)
        seen = ctypes.create_string_buffer(-(-nbytes // _PAGE))
        start = ctypes.c_char.from_buffer(mapped)
        if _LIBC.mincore(ctypes.addressof(start), nbytes, seen):
            raise OSError(ctypes.get_errno(), "mincore", str(path))
        del start
        mapped.close()
        pages += len(seen.raw)
        here += sum(byte & 1 for byte in seen.raw)
    return here / pages if pages else 0.0


def nbytes_read(group: int) -> int:
    """Bytes that the processes of process group ``group`` have read from disks so far."""
    return sum(
        memory.of_processes(
            group,
            lambda entry: int((entry / "io").read_text().split("\nread_bytes:")[1].split()[0]),
        )
    )


def sequential_rate(path: Path) -> float:
    """Bytes per second that a plain reader reads of ``path`` from the disk."""
    drop([path])
    buffer = bytearray(1 << 20)
    begin = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while file.readinto(buffer):
            pass
    return path.stat().st_size / (time.perf_counter() - begin)


def _unmap(paths: set[str]) -> None:
    """Remove the pages of these files from this process's page tables; the maps stay."""
    for begin, end in _mapped(paths):
        _LIBC.madvise(begin, end - begin, _MADV_DONTNEED)


def _mapped(paths: set[str]) -> Iterator[tuple[int, int]]:
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5] in paths and "w" not in fields[1]:
            begin, end = fields[0].split("-")
            yield int(begin, 16), int(end, 16)
