"""Memory of a process and of all that it started, and files out of the page cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def tree(group: int) -> dict[str, int]:
    """Bytes of all processes of the process group ``group``, shared pages divided fairly.

    Returns:
        "pss": everything mapped, the page cache of mapped files included;
        "anon_shmem": anonymous and shared memory alone, what the loader itself asked for.
    """
    total = {"pss": 0, "anon_shmem": 0}
    for fields in _of_processes(group, _rollup):
        total["pss"] += fields.get("Pss", 0)
        total["anon_shmem"] += fields.get("Pss_Anon", 0) + fields.get("Pss_Shmem", 0)
    return total


def nbytes_read(group: int) -> int:
    """Bytes that the processes of the group have read from disks so far."""
    return sum(_of_processes(group, _read_bytes))


def drop(paths: Iterable[Path]) -> None:
    """Ask the system to forget the pages of these files; those that a process has mapped stay."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)  # dirty pages cannot be dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _of_processes(group: int, read: Callable[[Path], T]) -> Iterator[T]:
    """What ``read`` makes of the folder in /proc of each process of the group."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getpgid(int(entry.name)) == group:
                yield read(entry)
        except (ProcessLookupError, FileNotFoundError, PermissionError):
            continue  # it ended meanwhile


def _rollup(entry: Path) -> dict[str, int]:
    fields = {}
    for line in (entry / "smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split(":")
        fields[name] = int(value.split()[0]) * 1024
    return fields


def _read_bytes(entry: Path) -> int:
    return int((entry / "io").read_text().split("\nread_bytes:")[1].split()[0])
