"""Drops data from the page cache, and checks that it is gone."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterable
from pathlib import Path

from bench import memory

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
_PAGE = mmap.PAGESIZE


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def drop(paths: Iterable[Path]) -> None:
    """Ask the system to forget the pages of these files; those that a process has mapped stay."""
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
