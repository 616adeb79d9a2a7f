"""How many CPUs this process may use, and how much of a thread's time is waiting."""

from __future__ import annotations

import ctypes
import math
import os
import re
import sys
import time
from pathlib import Path

from . import cgroup, ranks

# Between two measurements of Waiting: so many times what a measurement takes, which is long where
# the CPUs are busy, and at least 10 ms.
_WAITING_TIMES = 200
_WAITING_NS = 10_000_000

_LAUNCHING = 2  # CPUs for the threads that keep a device busy. With 14 of 16, none had to wait.

_SCHEDSTAT = "/proc/thread-self/schedstat"

# OpenMP libraries of GCC, Intel and LLVM. Wheels bundle their own, with a hash in the name.
_OPENMP = re.compile(r"/.*/lib(?:gomp|iomp5|omp)[-.][^/]*")

# Environment variables that OpenCV and OpenMP read when they are loaded.
_COUNTS = ("OPENCV_FOR_THREADS_NUM", "OMP_NUM_THREADS")


def quota() -> float | None:
    """CPUs allowed by the control groups (version 1 or 2), or None without a limit.

    Source: the kernel's cgroup-v2 document (``cpu.max``) and its CFS bandwidth document
    (``cpu.cfs_quota_us``, ``cpu.cfs_period_us``).
    """
    return cgroup.least(_limit_2, _limit_1, "cpu")


def _limit_2(folder: Path) -> float | None:
    try:
        limit, period = (folder / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        return None  # no file: not version 2, or a group outside this container


def _limit_1(folder: Path) -> float | None:
    try:
        limit_us = int((folder / "cpu.cfs_quota_us").read_text())
        period_us = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return limit_us / period_us if limit_us > 0 and period_us > 0 else None


def wanted() -> float:
    """Seconds that the calling thread has run, or was ready to run and waited for a free CPU.

    The difference to wall time is waiting for a disk, a network or a lock. If the system does not
    report how long a thread was queued, only running counts.

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


class Waiting:
    """The share of one thread's time that is waiting for a disk, a network or a lock.

    Two readings of the system's statistics take 20 us, and several times that on busy CPUs: longer
    than a batch of small samples may take. So measuring takes at most 1 % of the time, and the
    result is used until the next measurement.
    """

    def __init__(self) -> None:
        self._due_ns = 0
        self._cost_ns = 0  # of a reading
        self._wanted_s: float | None = None
        self._share = 0.0

    def begin(self, now_ns: int) -> None:
        """The thread starts a piece of work now (perf_counter_ns)."""
        if now_ns < self._due_ns:
            self._wanted_s = None
            return
        before_ns = time.perf_counter_ns()
        self._wanted_s = wanted()
        self._cost_ns = time.perf_counter_ns() - before_ns

    def end(self, begin_ns: int, now_ns: int) -> int:
        """The piece of work has ended. Returns how many of its nanoseconds were waiting."""
        took_ns = now_ns - begin_ns
        wanted_s, self._wanted_s = self._wanted_s, None  # iterators in two threads may share this
        if wanted_s is not None:
            wanted_ns = 1e9 * (wanted() - wanted_s)
            self._share = min(1.0, max(0.0, 1.0 - wanted_ns / max(took_ns, 1)))
            self._due_ns = now_ns + max(_WAITING_NS, _WAITING_TIMES * self._cost_ns)
        return int(self._share * took_ns)


def available(*, device: bool = False) -> int:
    """CPUs for one loader: affinity and control-group quota, divided by the ranks of this machine.

    Where batches go to a ``device``, the training process keeps two CPUs, at most half of all: its
    threads launch kernels and run the backward pass.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cpus: float = len(affinity(0)) if affinity else os.cpu_count() or 1
    limit = quota()
    if limit is not None:
        cpus = min(cpus, math.ceil(limit))
    mine = max(1, int(cpus // ranks.local()))
    return max(mine - _LAUNCHING, (mine + 1) // 2) if device else mine


def one_thread() -> None:
    """Limit OpenCV and OpenMP to one thread in this process, as torch does in its workers.

    With N processes of N threads each on N CPUs, the threads would mostly wait for one another.
    """
    for name in _COUNTS:
        os.environ[name] = "1"  # for libraries that are loaded later
    limit = getattr(sys.modules.get("cv2"), "setNumThreads", None)
    if limit is not None:
        # 0 runs on the calling thread and keeps the pool. 1 would join the pool's threads, which a
        # forked process does not have, and hang.
        limit(0)
    for path in filter(_OPENMP.fullmatch, _libraries()):
        ctypes.CDLL(path).omp_set_num_threads(1)


class _Library(ctypes.Structure):
    """The first fields of ``link_map``, in dlinfo(3)."""


_Library._fields_ = [
    ("address", ctypes.c_void_p),
    ("name", ctypes.c_char_p),
    ("section", ctypes.c_void_p),
    ("following", ctypes.POINTER(_Library)),
]

_RTLD_DI_LINKMAP = 2


def _libraries() -> set[str]:
    """Paths of the shared libraries that this process has loaded; empty where nobody can say.

    Without a lock: dl_iterate_phdr(3) holds one that an import on another thread may wait for.
    /proc/self/maps takes 2 ms where torch is loaded, in each worker.
    """
    paths: set[str] = set()
    program = ctypes.CDLL(None)
    find = getattr(program, "dlinfo", None)
    library = ctypes.POINTER(_Library)()
    handle = ctypes.c_void_p(program._handle)
    if find is not None and not find(handle, _RTLD_DI_LINKMAP, ctypes.byref(library)):
        while library:
            paths.add(os.fsdecode(library.contents.name or b""))
            library = library.contents.following
    return paths
