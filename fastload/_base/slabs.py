"""Slabs: the memory of batches, allocated once and reused when nothing refers to it any more.

A slab is leased as a tensor. The tensor's storage keeps a NumPy array alive. When the last tensor,
view or NumPy array over that storage is freed, so is this array; a weak reference shows it, and the
slab can be leased again. Nothing has to be returned explicitly, and a batch that the caller keeps
is never overwritten.

The ring checks the weak references when a slab is leased. A callback would run in the middle of the
training loop, and Python swallows a Ctrl-C that arrives in one.

A forked child starts without slabs: its parent's may be pinned, and then are not mapped in the
child (``_base/devices/cuda.py``), and another thread of the parent may have held the lock. It finds
zeros where its parent's free slabs were. If it shared their pages, the parent would have to copy
each page before it writes the next batch there. Where every epoch forks workers, that took twice as
long as decoding.
"""

from __future__ import annotations

import contextlib
import functools
import math
import mmap
import os
import threading
import time
import weakref
from collections.abc import Iterator, Sequence

import numpy as np
import torch

# Warm pages take writes at 11 GB/s, fresh ones at 3.2 GB/s, and a fresh huge
# page costs one fault instead of 512.
_FRESH_NBYTES_PER_S = 3.2e9
_HUGE_PAGE = 2 << 20

# A consumer drops the batch before within microseconds of taking the next one, if at all; on a busy
# machine it takes longer.
_PATIENCE_S = 2e-3

# A slab that was not needed in so many leases is given back.
_WINDOW = 32

# Whether forked children find zeros there, as in Linux's mman-common.h; Python's mmap has no name.
_MADV_WIPEONFORK = 18
_MADV_KEEPONFORK = 19

_rings: weakref.WeakValueDictionary[int, SlabRing] = weakref.WeakValueDictionary()

# Slabs of batches of several tensors are larger than needed by at most 1/8, so that tensors of
# slightly different sizes share them.
_CLASSES = 8


def _allocate(nbytes: int) -> mmap.mmap:
    """Page-aligned private memory of ``nbytes`` bytes."""
    # MAP_PRIVATE, because Python's default for anonymous maps is shared: a forked worker that wrote
    # into a slab would change its parent's batch.
    memory = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= _HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            pass  # a kernel without transparent huge pages: use ordinary ones
    return memory


class SlabRing:
    """A ring of slabs that grows while the caller keeps batches and shrinks when it drops them.

    A lease is a batch, unless ``begin_batch`` says where the batches begin. Free slabs are kept
    for ``keep`` batches; what is free beyond that is given back.

    A ``patient`` ring, where ``keep`` slabs are all in use, waits a moment for one before it
    allocates another. That is for a ring that another thread than the consumer's leases from:
    the consumer may be about to drop its batch.
    """

    def __init__(self, keep: int, *, patient: bool = False) -> None:
        self._keep = keep
        self._patient = patient
        self.allocations = 0
        """Slabs allocated so far. Constant in the steady state."""
        self.steady = False
        """Whether free slabs are kept although they were not needed for a while. True for pinned
        memory: pinning and unpinning take milliseconds and make the host wait for the device."""
        self._begin()

    def _begin(self) -> None:
        self._slabs: list[_MappedSlab] = []
        self._leases = 0
        self._leased_nbytes: int | None = None  # in this batch; None: each lease is a batch
        self._batch_nbytes = 0  # of the largest batch
        self._divided = False  # whether a batch had several leases
        # Re-entrant: the garbage collector may close an abandoned iterator during a lease.
        self._lock = threading.RLock()

    def another(self) -> SlabRing:
        """An empty ring with the same settings."""
        return SlabRing(self._keep, patient=self._patient)

    def __reduce__(self) -> tuple[object, ...]:
        # another process has slabs of its own
        return functools.partial(SlabRing, patient=self._patient), (self._keep,)

    def begin_batch(self) -> None:
        """What is leased from here to the next call are the tensors of one batch."""
        _rings[id(self)] = self  # before it is locked; many rings are never used
        with self._lock:
            self._leased_nbytes = 0

    def lease(
        self, shape: tuple[int, ...], dtype: torch.dtype, strides: tuple[int, ...]
    ) -> tuple[torch.Tensor, np.ndarray]:
        """A tensor over a free slab, and the same memory as a 1-D uint8 array.

        ``strides``, in elements, cover exactly the elements of ``shape``. The tensor owns the slab.
        The array is for filling it: drop the reference afterwards.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        _rings[id(self)] = self
        if self._patient:
            self._wait(nbytes)
        with self._lock:
            slab = self._free(nbytes)
            view = slab.lease(nbytes)
            slab.leased, slab.free_since = self._leases, 0
        storage = torch.from_numpy(view).untyped_storage()
        # set_, not view: like a tensor from torch.stack, this one must be no autograd view
        return torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, shape, strides), view

    def _wait(self, nbytes: int) -> None:
        """Wait until a slab is free, at most as long as it takes to make another one.

        A caller that already has more slabs than that keeps its batches: no wait would help.
        """
        end = time.monotonic() + max(_PATIENCE_S, nbytes / _FRESH_NBYTES_PER_S)
        while self._keep <= len(self._slabs) <= self._keep + 1 and time.monotonic() < end:
            with self._lock:
                if any(slab.free() and slab.memory.nbytes >= nbytes for slab in self._slabs):
                    return
            time.sleep(1e-4)

    def memory_at(self, address: int) -> np.ndarray | None:
        """The whole slab that contains ``address``, or None."""
        return slab_at(list(self._slabs), address)

    def give_back(self) -> None:
        """Give back every free slab."""
        if self._slabs:
            with self._lock:
                self._slabs = [slab for slab in self._slabs if not slab.free()]

    def in_use(self) -> int:
        """Number of slabs that are still referred to."""
        with self._lock:
            return sum(not slab.free() for slab in self._slabs)

    def _free(self, nbytes: int) -> _MappedSlab:
        """A free slab of at least ``nbytes``; frees those that are not needed any more."""
        self._leases += 1
        if self._leased_nbytes is not None:
            self._divided |= self._leased_nbytes > 0
            self._leased_nbytes += _rounded(nbytes)
            self._batch_nbytes = max(self._batch_nbytes, self._leased_nbytes)
        free = [slab for slab in self._slabs if slab.free()]
        # Of equal ones the one that was used last, so that those that are too many stay unused.
        best = min(
            (slab for slab in free if slab.memory.nbytes >= nbytes),
            key=lambda slab: (slab.memory.nbytes, -slab.leased),
            default=None,
        )
        largest = max((slab.memory.nbytes for slab in self._slabs), default=0)
        self._give_back(free, best, nbytes, self._keep * max(largest, self._batch_nbytes))
        if best is None:
            self.allocations += 1
            # Where sizes vary, as of padded batches, the next one is often larger. Memory that no
            # batch has reached costs nothing.
            best = _MappedSlab(_rounded(nbytes) if self._divided else max(nbytes, largest))
            self._slabs.append(best)
        elif best.wiped:  # another thread is forking: a child gets this batch
            best.advise(_MADV_KEEPONFORK)
            best.wiped = False  # last: Ctrl-C may come between the two
        elif best.forked and not self.steady:
            best.advise(mmap.MADV_DONTNEED)  # fresh pages are cheaper than copies of those
        best.forked = False
        return best

    def _give_back(
        self, free: list[_MappedSlab], best: _MappedSlab | None, nbytes: int, most_nbytes: int
    ) -> None:
        """Give back what is not needed of ``free``, where ``best`` is to be leased for ``nbytes``.

        That is what is too small where each lease is a batch, what no lease needed for a while, and
        what was used longest ago of more than ``most_nbytes``.
        """
        dropped = set[int]()
        window = max(_WINDOW, 2 * len(self._slabs))
        for slab in sorted(free, key=lambda slab: (slab is not best, -slab.leased)):
            slab.free_since = slab.free_since or self._leases
            most_nbytes -= slab.memory.nbytes
            small = slab.memory.nbytes < nbytes and not self._divided
            unused = self._leases - slab.free_since >= window and not self.steady
            if slab is not best and (most_nbytes < 0 or small or unused):
                dropped.add(id(slab))
        if dropped:
            self._slabs = [slab for slab in self._slabs if id(slab) not in dropped]


def _rounded(nbytes: int) -> int:
    """Bytes of a slab for ``nbytes`` of a batch of several tensors."""
    step = (1 << max(nbytes.bit_length() - 1, 0)) // _CLASSES
    return -(-nbytes // step) * step if step else nbytes


class Slab:
    """A piece of memory that is free as long as nothing refers to what was leased from it."""

    def __init__(self, memory: np.ndarray) -> None:
        self.memory = memory
        self.address: int = memory.ctypes.data
        self._lease: weakref.ref[np.ndarray] | None = None

    def free(self) -> bool:
        """Whether it can be leased."""
        return self._lease is None or self._lease() is None

    def lease(self, nbytes: int) -> np.ndarray:
        """Its first bytes; it is free again when nothing refers to the array any more."""
        view = self.memory[:nbytes]
        self._lease = weakref.ref(view)
        return view


def slab_at(slabs: Sequence[Slab], address: int) -> np.ndarray | None:
    """The memory of the slab that contains ``address``; None if there is none."""
    for slab in slabs:
        if slab.address <= address < slab.address + slab.memory.nbytes:
            return slab.memory
    return None


class _MappedSlab(Slab):
    """A slab of this process's own memory, which knows when it was needed.

    Attributes:
        leased: the number of its last lease.
        free_since: the number of the lease that first found it free again; 0: none did.
        forked: whether a child was forked while it was leased, and got its pages.
        wiped: whether a child that is being forked finds zeros there.
    """

    leased = free_since = 0
    forked = wiped = False

    def __init__(self, nbytes: int) -> None:
        self._map = _allocate(nbytes)
        super().__init__(np.frombuffer(self._map, np.uint8))

    def advise(self, advice: int) -> None:
        with contextlib.suppress(OSError):  # the memory is shared with a child, as without advice
            self._map.madvise(advice)


# --- forks ----------------------------------------------------------------------------------------


def _live_rings() -> Iterator[SlabRing]:
    for reference in _rings.valuerefs():  # one call in C: other threads may make rings meanwhile
        ring = reference()
        if ring is not None:
            yield ring


def _before_fork() -> None:
    for ring in _live_rings():
        locked = ring._lock.acquire(blocking=False)  # else another thread leases: all are shared
        try:
            for slab in list(ring._slabs):
                if locked and slab.free():
                    slab.wiped = True
                    slab.advise(_MADV_WIPEONFORK)
                else:
                    slab.forked = True
        finally:
            if locked:
                ring._lock.release()


def _after_fork() -> None:
    for ring in _live_rings():
        for slab in list(ring._slabs):  # children forked later need the batches that are there then
            slab.advise(_MADV_KEEPONFORK)
            slab.wiped = False


# Pinned slabs are not in a child, and something else may be where they were: nobody unmaps it.
_of_parent: list[list[_MappedSlab]] = []


def _in_child() -> None:
    for ring in _live_rings():
        if ring.steady:
            _of_parent.append(ring._slabs)
        ring._begin()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
