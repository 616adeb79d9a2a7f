"""Memory of a process and of all processes that it started."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
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
    for fields in of_processes(group, _rollup):
        total["pss"] += fields.get("Pss", 0)
        total["anon_shmem"] += fields.get("Pss_Anon", 0) + fields.get("Pss_Shmem", 0)
    return total


def of_processes(group: int, read: Callable[[Path], T]) -> Iterator[T]:
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
