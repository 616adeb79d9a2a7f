"""How much more memory this process may use, and that it keeps what it has freed."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from . import cgroup

_MEMINFO = Path("/proc/meminfo")

# Version 1 reports this, rounded to pages, if there is no limit.
_NO_LIMIT_1 = 1 << 62

# glibc takes the size of the largest block freed so far, at most 32 MiB with its header.
_LARGEST = (32 << 20) - (8 << 10)


def available() -> int:
    """Bytes that can be allocated without swapping, on the machine and within the control groups.

    Page cache counts as free, because the system reclaims it under pressure; files in memory do
    not. 0 if nothing is known.

    Source: proc(5) (``MemAvailable``), the kernel's cgroup-v2 document (``memory.max``,
    ``memory.current``, ``memory.stat``) and its cgroup-v1 memory document.
    """
    free, limit = _machine(), cgroup.least(_group_2, _group_1, "memory")
    if free is None or limit is None:
        return max(0, free or limit or 0)
    return max(0, min(free, limit))


@functools.cache
def keep_freed() -> None:
    """Have this process keep memory that was freed: up to 64 MiB for a thread that frees arrays.

    A Dataset's arrays are allocated and freed again for each sample. By default, glibc gives each
    large one back to the system, which hands it out as new pages, one page fault for each 4 KB: of
    the time of a Dataset that reads with OpenCV and computes in float32 that was half (1.2 to 2.1
    times DataLoader), of others 5 to 15 %. In a process with DataLoader, batches in pageable memory
    would mostly do the same, by chance.

    Source: mallopt(3), dynamic adjustment of ``M_MMAP_THRESHOLD`` and ``M_TRIM_THRESHOLD``: freeing
    one large block raises both. Where they were set by environment, they stay.
    """
    np.empty(_LARGEST, np.uint8)


def _machine() -> int | None:
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def _group_2(folder: Path) -> int | None:
    try:
        limit = (folder / "memory.max").read_text().strip()
        if limit == "max":
            return None
        used = int((folder / "memory.current").read_text())
        return int(limit) - used + _page_cache(folder, "inactive_file", "active_file")
    except (OSError, ValueError):
        return None  # no file: not version 2, or a group outside this container


def _group_1(folder: Path) -> int | None:
    try:
        limit = int((folder / "memory.limit_in_bytes").read_text())
        if limit >= _NO_LIMIT_1:
            return None
        used = int((folder / "memory.usage_in_bytes").read_text())
        return limit - used + _page_cache(folder, "total_inactive_file", "total_active_file")
    except (OSError, ValueError):
        return None


def _page_cache(folder: Path, *names: str) -> int:
    """Bytes of page cache, without files in memory (tmpfs, memfd), which count as swappable."""
    lines = (folder / "memory.stat").read_text().splitlines()
    fields = dict(line.split() for line in lines)
    return sum(int(fields[name]) for name in names if name in fields)
