"""Slabs in shared memory: worker processes collate into them, the consumer gets them uncopied.

A slab is an anonymous file in memory (``memfd_create``), created by the training process. It has no
name, so nothing is left in /dev/shm however a process ends, and the size of /dev/shm does not limit
it. A worker opens it as ``/proc/PID/fd/N`` of its parent, which works for every start method, and
keeps it mapped.

The parent alone decides which worker writes where, when it hands out a task, so no lock is shared.
A slab is free again when nothing refers to the batch in it (see ``slabs.py``).
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .slabs import Slab, slab_at

# Slabs that the consumer may hold before batches are copied out instead: each takes two file
# descriptors of this process, and the usual limit is 1,024.
_MAX_HELD = 32

# A worker unmaps slabs that its parent has closed once in this many tasks.
_PRUNE_EVERY = 32


class Slot(NamedTuple):
    """The name of a slab, as it is sent to a worker: a file descriptor of the process ``pid``.

    ``inode`` tells the slab from a later file with the same descriptor.
    """

    pid: int
    descriptor: int
    inode: int
    nbytes: int

    def path(self) -> str:
        """Path under which another process of the same user opens it."""
        return f"/proc/{self.pid}/fd/{self.descriptor}"


class _SharedSlab(Slab):
    """A slab that other processes can open by its ``slot``."""

    def __init__(self, nbytes: int) -> None:
        descriptor = os.memfd_create("fastload-batch", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, nbytes)
            super().__init__(np.frombuffer(mmap.mmap(descriptor, nbytes), np.uint8))
        except BaseException:
            os.close(descriptor)
            raise
        self.slot = Slot(os.getpid(), descriptor, os.fstat(descriptor).st_ino, nbytes)

    def close(self) -> None:
        """Close the descriptor; the memory lives as long as a process maps it."""
        if self.slot.pid == os.getpid():
            os.close(self.slot.descriptor)


class SharedRing:
    """Slabs for batches in flight from worker processes. It keeps ``keep`` free ones for reuse."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._nbytes = 0  # unknown until the first batches arrive
        self.allocations = 0
        """Slabs allocated so far. Constant in the steady state."""
        self.steady = True  # as in SlabRing: free slabs are kept
        self._begin()
        self.failure = "" if hasattr(os, "memfd_create") else "the system has no memfd_create"
        """Why slabs cannot be used; empty if they can."""
        self.left = False
        """Whether a batch of this epoch had tensors that a slab cannot hold."""

    def _begin(self) -> None:
        self._slabs: list[_SharedSlab] = []
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def require(self, nbytes: int) -> None:
        """A batch needs ``nbytes``: slabs leased from now on are at least as large."""
        if nbytes > self._nbytes:
            # 1/16 more, for batches that are slightly larger, rounded up to whole pages.
            self._nbytes = -(-(nbytes + nbytes // 16) // mmap.PAGESIZE) * mmap.PAGESIZE

    def lease(self) -> tuple[Slot, np.ndarray] | None:
        """Lease a free slab: its name for a worker, and its memory; None if slabs cannot be used.

        The slab is free again when nothing refers to the array or its memory any more.
        """
        if not self._nbytes or self.failure:
            return None
        if self._pid != os.getpid():  # a forked child must not write into its parent's batches
            self._begin()
        with self._lock:
            free = [slab for slab in self._slabs if slab.free()]
            fitting = [slab for slab in free if slab.slot.nbytes >= self._nbytes]
            self._drop(set(map(id, free)) - set(map(id, fitting[: self._keep])))
            if not fitting:
                try:
                    fitting = [_SharedSlab(self._nbytes)]
                except OSError as error:
                    self.failure = f"cannot allocate shared memory: {error}"
                    return None
                self._slabs += fitting
                self.allocations += 1
            slab = fitting[0]
            return slab.slot, slab.lease(slab.slot.nbytes)

    def memory_at(self, address: int) -> np.ndarray | None:
        """The whole slab that contains ``address``, or None."""
        return slab_at(list(self._slabs), address)

    @property
    def crowded(self) -> bool:
        """Whether the consumer holds so many batches that further ones should be copied out."""
        return len(self._slabs) > self._keep + _MAX_HELD

    def give_back(self) -> None:
        """Give back every free slab. A forked child has none: those are its parent's."""
        if self._pid == os.getpid():
            with self._lock:
                self._drop({id(slab) for slab in self._slabs if slab.free()})

    def close(self) -> None:
        """Release the slabs; batches that are still referred to stay valid."""
        if self._pid == os.getpid():
            with self._lock:
                self._drop(set(map(id, self._slabs)))

    # A default argument, because at interpreter exit the module's globals may be cleared before
    # this is called. Then the system reclaims the memory.
    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():
            self.close()

    def __reduce__(self) -> tuple[type[SharedRing], tuple[int]]:
        return SharedRing, (self._keep,)  # another process gets an empty ring

    def _drop(self, which: set[int]) -> None:
        for slab in self._slabs:
            if id(slab) in which:
                slab.close()
        self._slabs = [slab for slab in self._slabs if id(slab) not in which]


class Mapped:
    """The slabs of the parent that a worker has mapped."""

    def __init__(self) -> None:
        self._maps: dict[Slot, np.ndarray] = {}
        self._tasks = 0

    def memory(self, slot: Slot) -> np.ndarray | None:
        """The slab as uint8 (nbytes,); None if this process cannot open it."""
        self._tasks += 1
        memory = self._maps.get(slot)
        if memory is None or self._tasks % _PRUNE_EVERY == 0:
            self._maps = {s: mapped for s, mapped in self._maps.items() if s == slot or _exists(s)}
        if memory is None:
            memory = _map(slot)
            if memory is not None:
                self._maps[slot] = memory
        return memory


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
