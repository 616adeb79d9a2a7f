"""Slabs: the memory of batches, allocated once and reused when nobody refers to it any more.

A slab is handed out as a tensor. The tensor's storage keeps a NumPy array alive; when the last
tensor, view, or NumPy array over that storage is gone, the array dies, its weak reference fires, and
the slab is free again. Nothing has to be returned by hand, and a batch that the caller keeps is
simply never reused.
"""

from __future__ import annotations

import collections
import mmap
import threading
import weakref

import numpy as np
import torch

# Warm pages take writes at 11 GB/s, fresh ones at 3.2 GB/s (docs/performance.md), and a fresh huge
# page costs one fault instead of 512.
_HUGE_PAGE = 2 << 20


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
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._free: collections.deque[np.ndarray] = collections.deque()
        self._leases: dict[int, weakref.ref[np.ndarray]] = {}  # by id: arrays have no hash
        self._lock = threading.RLock()  # reentrant: a collection may free a lease while it is held
        self.allocations = 0
        """Slabs allocated so far. Constant in the steady state."""

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
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        slab = self._pop(nbytes)
        view = slab[:nbytes]
        ring = weakref.ref(self)

        def give_back(lease: weakref.ref[np.ndarray]) -> None:
            owner = ring()
            if owner is not None:
                owner._push(lease, slab)

        lease = weakref.ref(view, give_back)
        with self._lock:
            self._leases[id(lease)] = lease
        storage = torch.from_numpy(view).untyped_storage()
        # set_ rather than view: the tensor is nobody's autograd view, as one from torch.stack is not
        return torch.empty(0, dtype=dtype).set_(storage, 0, shape, strides), view

    def in_use(self) -> int:
        """Number of slabs that somebody still refers to."""
        with self._lock:
            return len(self._leases)

    def _pop(self, nbytes: int) -> np.ndarray:
        with self._lock:
            # A last, smaller batch fits into a slab of the others; a larger need replaces them.
            while self._free:
                slab = self._free.pop()
                if slab.nbytes >= nbytes:
                    return slab
            self.allocations += 1
        return _allocate(nbytes)

    def _push(self, lease: weakref.ref[np.ndarray], slab: np.ndarray) -> None:
        with self._lock:
            self._leases.pop(id(lease), None)
            if len(self._free) < self._keep:
                self._free.append(slab)
