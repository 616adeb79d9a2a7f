"""How many CPUs this process may use."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

from . import _cgroup

_SCHEDSTAT = "/proc/thread-self/schedstat"


def quota(root: Path = _cgroup.ROOT, membership: Path = _cgroup.MEMBERSHIP) -> float | None:
    """CPUs that the control groups grant, of version 1 or 2, or None without a limit.

    Source: the kernel's cgroup-v2 document (``cpu.max``) and its CFS bandwidth document
    (``cpu.cfs_quota_us``, ``cpu.cfs_period_us``).
    """
    limits = [_limit_2(folder) for folder in _cgroup.groups(root, membership)]
    limits += [_limit_1(folder) for folder in _cgroup.groups(root, membership, "cpu")]
    return min((limit for limit in limits if limit is not None), default=None)


def _limit_2(folder: Path) -> float | None:
    try:
        limit, period = (folder / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        return None  # no file: not version 2, or a group that this container does not see


def _limit_1(folder: Path) -> float | None:
    try:
        limit_us = int((folder / "cpu.cfs_quota_us").read_text())
        period_us = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return limit_us / period_us if limit_us > 0 and period_us > 0 else None


def wanted() -> float:
    """Seconds that the calling thread has computed, or waited for a free CPU to compute on.

    What lies between it and the wall clock is waiting for a disk, a network, a lock. Where the
    system does not tell how long a thread had to queue, only the computing counts.

    Source: the kernel's scheduler statistics (``/proc/thread-self/schedstat``, second field).
    """
    try:
        descriptor = os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
        try:
            queued_s = int(os.read(descriptor, 128).split()[1]) / 1e9
        finally:
            os.close(descriptor)
    except (OSError, ValueError, IndexError):
        queued_s = 0.0
    return time.thread_time() + queued_s


def available() -> int:
    """CPUs for one loader: affinity and control-group quota, shared among the ranks of this node.

    The ranks of a node are counted by ``LOCAL_WORLD_SIZE``, as torchrun sets it: a loader per rank
    shares the page cache, not the CPU.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cpus: float = len(affinity(0)) if affinity else os.cpu_count() or 1
    limit = quota()
    if limit is not None:
        cpus = min(cpus, math.ceil(limit))
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    if ranks.isdigit() and int(ranks) > 1:
        cpus = cpus // int(ranks)
    return max(1, int(cpus))
