"""Slabs in shared memory: worker processes collate into them, the consumer gets them uncopied.

A slab is an anonymous file in memory (``memfd_create``), made by the process of the training loop.
It has no name, so nothing can be left behind in /dev/shm, however a process ends, and the size of
/dev/shm does not bound it. A worker opens it as ``/proc/PID/fd/N`` of its parent, whichever way the
worker was started, and keeps it mapped.

Which worker writes where is decided by the parent alone, when it hands out a task: no lock is
shared. A slab is free again when nobody refers to the batch in it (see ``_buffers``).
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Callable

import numpy as np

# Slabs that the consumer may hold on to before batches are copied out for it: each takes two
# descriptors of this process, and the usual limit is 1,024.
_MOST = 32

# A worker looks this often, in tasks, for slabs that its parent has given up.
_PRUNE = 32


@dataclasses.dataclass(frozen=True)
class Slot:
    """A slab as it is named to a worker.

    Attributes:
        pid: the process that made it.
        descriptor: its file descriptor there.
        inode: tells it from another file that got the same descriptor later.
        nbytes: its size.
    """

    pid: int
    descriptor: int
    inode: int
    nbytes: int

    def path(self) -> str:
        """Where another process of the same user opens it."""
        return f"/proc/{self.pid}/fd/{self.descriptor}"


class _Slab:
    """One piece of shared memory, and a weak reference to the array it was last handed out as."""

    def __init__(self, nbytes: int) -> None:
        descriptor = os.memfd_create("fastload-batch", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, nbytes)
            self.memory = np.frombuffer(mmap.mmap(descriptor, nbytes), np.uint8)
        except BaseException:
            os.close(descriptor)
            raise
        self.address: int = self.memory.ctypes.data
        self.slot = Slot(os.getpid(), descriptor, os.fstat(descriptor).st_ino, nbytes)
        self._lease: weakref.ref[np.ndarray] | None = None

    def free(self) -> bool:
        return self._lease is None or self._lease() is None

    def lease(self) -> np.ndarray:
        view = self.memory[:]
        self._lease = weakref.ref(view)
        return view

    def close(self) -> None:
        """Close the descriptor; the memory lives as long as somebody maps it."""
        if self.slot.pid == os.getpid():
            os.close(self.slot.descriptor)


class SharedRing:
    """Slabs for the batches on their way from worker processes.

    Args:
        keep: number of free slabs to keep for reuse.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._nbytes = 0  # not known before the first batches
        self.allocations = 0
        """Slabs made so far. Constant in the steady state."""
        self.steady = True  # as of SlabRing: free slabs stay
        self._begin()
        self.failure = "" if hasattr(os, "memfd_create") else "the system has no memfd_create"
        """Why there are no slabs; empty where there are."""
        self.left = False
        """Whether there were tensors that slabs cannot hold."""

    def _begin(self) -> None:
        self._slabs: list[_Slab] = []
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def wanted(self, nbytes: int) -> None:
        """A batch takes ``nbytes``: slabs handed out from now on are at least as large."""
        if nbytes > self._nbytes:
            # Room for batches that are a little larger, in whole pages.
            self._nbytes = -(-(nbytes + nbytes // 16) // mmap.PAGESIZE) * mmap.PAGESIZE

    def lease(self) -> tuple[Slot, np.ndarray] | None:
        """A free slab: its name for a worker, and its memory; None where batches go without.

        The slab is free again when the array and all that refers to it are gone.
        """
        if not self._nbytes or self.failure:
            return None
        if self._pid != os.getpid():  # a fork would write into its parent's batches
            self._begin()
        with self._lock:
            free = [slab for slab in self._slabs if slab.free()]
            fitting = [slab for slab in free if slab.slot.nbytes >= self._nbytes]
            self._drop(set(map(id, free)) - set(map(id, fitting[: self._keep])))
            if not fitting:
                try:
                    fitting = [_Slab(self._nbytes)]
                except OSError as error:
                    self.failure = f"the system gives no shared memory: {error}"
                    return None
                self._slabs += fitting
                self.allocations += 1
            return fitting[0].slot, fitting[0].lease()

    def memory_at(self, address: int) -> np.ndarray | None:
        """The whole slab that ``address`` lies in; None where it is in none of these."""
        for slab in list(self._slabs):
            if slab.address <= address < slab.address + slab.slot.nbytes:
                return slab.memory
        return None

    @property
    def crowded(self) -> bool:
        """Whether the consumer holds on to so many batches that they should be copied out."""
        return len(self._slabs) > self._keep + _MOST

    def close(self) -> None:
        """Give the slabs up; batches that somebody refers to live on."""
        if self._pid == os.getpid():
            with self._lock:
                self._drop(set(map(id, self._slabs)))

    # Bound here: where the interpreter ends, the module's names may be gone before this is called.
    # Then the system takes the memory back.
    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():
            self.close()

    def __reduce__(self) -> tuple[type[SharedRing], tuple[int]]:
        return SharedRing, (self._keep,)  # another process makes its own

    def _drop(self, which: set[int]) -> None:
        for slab in self._slabs:
            if id(slab) in which:
                slab.close()
        self._slabs = [slab for slab in self._slabs if id(slab) not in which]


class Mapped:
    """A worker's view of its parent's slabs."""

    def __init__(self) -> None:
        self._maps: dict[Slot, np.ndarray] = {}
        self._tasks = 0

    def memory(self, slot: Slot) -> np.ndarray | None:
        """The slab as uint8 (nbytes,); None where this process cannot reach it."""
        self._tasks += 1
        known = self._maps.get(slot)
        if known is None or self._tasks % _PRUNE == 0:
            self._maps = {s: memory for s, memory in self._maps.items() if s == slot or _exists(s)}
        if known is None:
            known = _map(slot)
            if known is not None:
                self._maps[slot] = known
        return known


def _exists(slot: Slot) -> bool:
    try:
        return os.stat(slot.path()).st_ino == slot.inode
    except OSError:
        return False


def _map(slot: Slot) -> np.ndarray | None:
    try:
        descriptor = os.open(slot.path(), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if status.st_ino != slot.inode or status.st_size != slot.nbytes:
            return None
        return np.frombuffer(mmap.mmap(descriptor, slot.nbytes), np.uint8)
    except OSError:
        return None
    finally:
        os.close(descriptor)
