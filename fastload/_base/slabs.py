"""Slabs: the memory of batches, allocated once and reused when nobody refers to it any more.

A slab is handed out as a tensor. The tensor's storage keeps a NumPy array alive; when the last
tensor, view, or NumPy array over that storage is gone, the array dies, which a weak reference
shows, and the slab can be leased again. Nothing has to be returned by hand, and a batch that the
caller keeps is simply never reused.

The ring looks at the weak references when it leases. A callback in Python would run in the middle
of the training loop, and Python swallows a Ctrl-C that arrives in it; who waits for a slab is told
by a C function (``tell``).

A forked child begins with no slabs: those of its parent may be pinned, and then are not mapped in
it (``_base/devices/cuda.py``); and another thread of the parent's may have held the lock.
"""

from __future__ import annotations

import math
import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

# Warm pages take writes at 11 GB/s, fresh ones at 3.2 GB/s, and a fresh huge page costs one fault
# instead of 512.
_HUGE_PAGE = 2 << 20

# Smaller slabs are not counted: with small batches a loop waits for Python between two of them.
LARGE_NBYTES = 8 << 20

# A slab that was not needed in so many leases is given back.
_WINDOW = 32


def _allocate(nbytes: int) -> np.ndarray:
    """Page-aligned private memory of ``nbytes`` bytes, given back to the system when it dies."""
    # MAP_PRIVATE: Python's default for anonymous maps is shared, and a forked worker that wrote
    # into a shared slab would write into its parent's batch.
    memory = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= _HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            pass  # a kernel without transparent huge pages: ordinary pages do
    return np.frombuffer(memory, np.uint8)


class SlabRing:
    """A ring of slabs that grows when the caller holds on to batches and shrinks when it lets go.

    Args:
        keep: number of free slabs to keep for reuse; what is free beyond that is given back.
        patience_s: where ``keep`` slabs are all in use, wait so long for one before another is
            allocated. For a ring that is leased from by another thread than the consumer's, which
            may be about to let go.
        few: how many large slabs there are to be until ``more`` is called; None: as many as are
            leased. It is for who leases to ask whether the ring is ``crowded``.
    """

    def __init__(self, keep: int, patience_s: float = 0.0, few: int | None = None) -> None:
        self._keep = keep
        self._patience_s = patience_s
        self._few = few
        self.allocations = 0
        """Slabs allocated so far. Constant in the steady state."""
        self.steady = False
        """Whether free slabs stay though they were not needed for a while: pinned memory does, as
        pinning and unpinning take milliseconds, and let the host wait for the device."""
        self._begin()

    def _begin(self) -> None:
        self._told: list[Callable[[Any], Any]] = []
        self._slabs: list[_Slab] = []
        self._leases = 0
        self._unused = self._keep  # slabs left free by each of the last leases
        # Re-entrant: the collector may close an abandoned iterator in the middle of a lease.
        self._lock = threading.RLock()
        self._pid = os.getpid()

    def _begin_in_a_child(self) -> None:
        if self._pid != os.getpid():
            self._begin()

    def another(self) -> SlabRing:
        """An empty ring with the same settings."""
        return SlabRing(self._keep, self._patience_s, self._few)

    def lease(
        self, shape: tuple[int, ...], dtype: torch.dtype, strides: tuple[int, ...]
    ) -> tuple[torch.Tensor, np.ndarray]:
        """A tensor of dense ``shape`` over a free slab, and the same memory as a 1-D uint8 array.

        Args:
            shape: of the tensor.
            dtype: of the tensor.
            strides: in elements; they must cover exactly the elements of ``shape``.

        Returns:
            The tensor owns the slab. The array is for whoever fills it: let go of it afterwards.
        """
        self._begin_in_a_child()
        nbytes = math.prod(shape) * dtype.itemsize
        if self._patience_s:
            self._wait(nbytes)
        with self._lock:
            view = self._free(nbytes).lease(nbytes, self._told)
        storage = torch.from_numpy(view).untyped_storage()
        # set_, not view: like a tensor from torch.stack, this one is nobody's autograd view
        return torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, shape, strides), view

    def _wait(self, nbytes: int) -> None:
        """Until a slab is free or may be allocated, or patience ends."""
        end = time.monotonic() + self._patience_s
        while len(self._slabs) >= self._keep and time.monotonic() < end:
            with self._lock:
                if any(slab.free() and slab.memory.nbytes >= nbytes for slab in self._slabs):
                    return
            time.sleep(1e-4)

    def crowded(self) -> bool:
        """Whether a lease would allocate one more large slab than there are to be."""
        if self._few is None:
            return False
        self._begin_in_a_child()
        with self._lock:
            large = [slab for slab in self._slabs if slab.memory.nbytes >= LARGE_NBYTES]
            return len(large) >= self._few and not any(slab.free() for slab in self._slabs)

    def more(self) -> None:
        """Let there be one large slab more, up to those that are kept."""
        if self._few is not None:
            self._few = min(self._few + 1, max(self._keep, self._few))

    def tell(self, told: Callable[[Any], Any]) -> None:
        """Call ``told``, a C function, whenever a slab is let go, until ``tell_no_more``."""
        self._begin_in_a_child()
        with self._lock:
            self._told.append(told)
            for slab in self._slabs:
                slab.tell(self._told)

    def tell_no_more(self, told: Callable[[Any], Any]) -> None:
        """End ``tell``. Another call does nothing."""
        self._begin_in_a_child()
        with self._lock:
            self._told = [other for other in self._told if other != told]

    def memory_at(self, address: int) -> np.ndarray | None:
        """The whole slab that ``address`` lies in; None where it is in none of these."""
        for slab in list(self._slabs):
            if slab.address <= address < slab.address + slab.memory.nbytes:
                return slab.memory
        return None

    def in_use(self) -> int:
        """Number of slabs that somebody still refers to."""
        self._begin_in_a_child()
        with self._lock:
            return sum(not slab.free() for slab in self._slabs)

    def _free(self, nbytes: int) -> _Slab:
        """A free slab of at least ``nbytes``; free ones too small or too many are dropped."""
        free = [slab for slab in self._slabs if slab.free()]
        # A last, smaller batch fits into a slab of the others; a larger need replaces them.
        fitting = [slab for slab in free if slab.memory.nbytes >= nbytes]
        dropped = set(map(id, free)) - set(map(id, fitting[: self._keep]))
        if dropped:
            self._slabs = [slab for slab in self._slabs if id(slab) not in dropped]
        self._leases += 1
        self._unused = min(self._unused, max(0, len(fitting[: self._keep]) - 1))
        if fitting:
            if self._leases % _WINDOW == 0 and not self.steady:
                unused = set(map(id, fitting[1 : 1 + self._unused]))
                self._slabs = [slab for slab in self._slabs if id(slab) not in unused]
                self._unused = self._keep
            return fitting[0]
        self.allocations += 1
        slab = _Slab(_allocate(nbytes))
        self._slabs.append(slab)
        return slab


class _Slab:
    """One piece of memory, and a weak reference to the array it was last handed out as."""

    def __init__(self, memory: np.ndarray) -> None:
        self.memory = memory
        self.address: int = memory.ctypes.data
        self._lease: weakref.ref[np.ndarray] | None = None
        self._told: list[weakref.ref[np.ndarray]] = []

    def free(self) -> bool:
        return self._lease is None or self._lease() is None

    def lease(self, nbytes: int, told: Sequence[Callable[[Any], Any]] = ()) -> np.ndarray:
        view = self.memory[:nbytes]
        self._lease = weakref.ref(view)
        self.tell(told)
        return view

    def tell(self, told: Sequence[Callable[[Any], Any]]) -> None:
        view = None if self._lease is None else self._lease()
        if view is not None:
            self._told = [weakref.ref(view, one) for one in told]
