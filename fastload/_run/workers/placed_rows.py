"""PlacedRows: large tensors of samples, copied to their batch when each sample is made.

``WarmBatch`` collates with them in this process, and ``transport.Packer`` in workers.

To stack a batch at its end reads all of its samples again, from memory: the processor's caches do
not hold them any more. A sample that is copied at once is still in the cache, and its memory is
warm for the next one. Of a batch of 64 photos as float32 that is 40 MB less of memory, too. With 2
workers whose Dataset does next to nothing else, CPU time was 3.6 times as much without it for
float32 (3, 224, 224) and batches of 64, and 3.8 times for (3, 512, 512) and batches of 16.

Without workers, malloc has warm memory for batches of less than ``WARM_NBYTES``, and torch's own
stack is best: to lease a slab took up to a third longer for batches of 1 to 10 MB. Except where
they go to a device, which copies pinned slabs as they are.

Note [What a dataset may do]
    A sample could be changed after it was returned: by a dataset that fills the same array each
    time. DataLoader then gives a batch of which all rows are what came last. So the first batch of
    a process is stacked at its end, and only if all of its tensors have their own memory are the
    rows of later batches placed early.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol

import numpy as np
import torch

from ..._base.nested import plain
from ..._base.slabs import SlabRing
from .columns import SMALL_NBYTES, CollateTable, in_columns, is_torchs_table, torch_stack

# Bytes of a tensor, from which on it takes longer to stack it later than to look at each sample.
_LARGE_NBYTES: Final = 1 << 16

# In this process, from which on a batch is made in a slab. What malloc gives back to the system,
# and gets from there again page by page, begins at 16 to 32 MB.
WARM_NBYTES: Final = 16 << 20

_DEEPEST: Final = 3  # containers in containers

# torch.bfloat16 and others are not NumPy's.
_NUMPYS: Final = frozenset((torch.float32, torch.uint8, torch.float64, torch.int64, torch.float16))

_PLAIN = {torch.Tensor}
_dtype = operator.attrgetter("dtype")

Reserve = Callable[[tuple[int, ...], torch.dtype], "torch.Tensor | None"]
"""Given shape and dtype, an uninitialised contiguous tensor; None: there is no room."""


class PlacedRows:
    """The tensors of one batch of ``count`` samples; ``add`` has seen all of them so far.

    Those of fewer bytes than ``least`` in all are left to be stacked.
    """

    def __init__(self, count: int, reserve: Reserve, least: int = SMALL_NBYTES) -> None:
        self._count = count
        self._reserve = reserve
        self._least = least
        self._added = 0
        # By where a tensor is in a sample: its rows in the batch.
        self._rows: dict[tuple[object, ...], list[torch.Tensor]] = {}
        self._batches: dict[int, tuple[torch.Tensor, list[torch.Tensor]]] = {}

    def add(self, sample: Any) -> Any:
        """The next sample, with rows of the batch in the place of its large tensors."""
        placed = self._replaced(sample, ())
        self._added += 1
        return placed

    def batch_of(self, samples: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """The tensor of which ``samples`` are the rows, in their order; None: there is none."""
        batch, rows = self._batches.get(id(samples[0]), (None, ()))
        whole = len(samples) == len(rows) and all(map(operator.is_, samples, rows))
        return batch if whole else None

    def _replaced(self, part: Any, place: tuple[object, ...]) -> Any:
        kind = type(part)
        if kind is torch.Tensor:
            return self._placed(part, place)
        if len(place) < _DEEPEST:
            if kind is tuple or kind is list:
                return kind([self._replaced(one, (*place, i)) for i, one in enumerate(part)])
            if kind is dict:
                return {key: self._replaced(one, (*place, key)) for key, one in part.items()}
        return part

    def _placed(self, tensor: torch.Tensor, place: tuple[object, ...]) -> torch.Tensor:
        rows = self._rows.get(place)
        if rows is None:
            if self._added or not _is_large(tensor, self._count, self._least):
                return tensor
            batch = self._reserve((self._count, *tensor.shape), tensor.dtype)
            if batch is None:
                return tensor
            rows = self._rows[place] = list(batch.unbind(0))
            self._batches[id(rows[0])] = batch, rows
        row = rows[self._added]
        if not plain(tensor) or tensor.shape != row.shape or tensor.dtype != row.dtype:
            return tensor  # torch has to say what comes of that
        if tensor.is_contiguous() and tensor.dtype in _NUMPYS:
            np.copyto(row.numpy(), tensor.numpy())  # a sixth faster than torch's copy
            return row
        return row.copy_(tensor)


def worth_placing(samples: Sequence[Any], least: int = SMALL_NBYTES) -> bool:
    """Whether samples such as these have large tensors, all with their own memory.

    ``least``: as for ``PlacedRows``.
    """
    count = len(samples)
    if count < 2 or not any(_is_large(tensor, count, least) for tensor in _tensors(samples[0])):
        return False  # as with most datasets
    addresses = [
        tensor.data_ptr()
        for sample in samples
        for tensor in _tensors(sample)
        if _is_large(tensor, count, least)
    ]
    return len(set(addresses)) == len(addresses) >= count and is_torchs_table()


def _is_large(tensor: torch.Tensor, count: int, least: int) -> bool:
    nbytes = tensor.numel() * tensor.element_size()
    return nbytes >= _LARGE_NBYTES and nbytes * count >= least and plain(tensor)


def _tensors(part: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    kind = type(part)
    if kind is torch.Tensor:
        yield part
    elif depth < _DEEPEST and kind in (tuple, list, dict):
        for one in part.values() if kind is dict else part:
            yield from _tensors(one, depth + 1)


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


class SlabBatch(Protocol):
    """Collates one batch with large tensors in slabs.

    ``rows`` are those of a batch of so many samples, which ``collate`` knows again; None: there is
    no slab.
    """

    _placed_rows: PlacedRows | None = None

    def rows(self, count: int) -> PlacedRows | None: ...

    def _stacked(self, samples: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """The stack of ``samples`` in a slab; None: torch has to stack them."""

    def collate(self, samples: Sequence[Any]) -> Any:
        """torch's default_collate, with large tensors stacked in slabs."""
        try:
            return in_columns(samples, self._stack)
        finally:
            self._placed_rows = None  # which refers to this

    def _stack(
        self, samples: Sequence[torch.Tensor], *, collate_fn_map: CollateTable | None = None
    ) -> torch.Tensor:
        stacked = None if self._placed_rows is None else self._placed_rows.batch_of(samples)
        if stacked is None:
            stacked = self._stacked(samples)
        return torch_stack(samples, collate_fn_map=collate_fn_map) if stacked is None else stacked


class WarmBatch(SlabBatch):
    """Collates one batch in this process, in slabs of ``ring``.

    Tensors of fewer bytes than ``least`` are torch's to make.
    """

    def __init__(self, ring: SlabRing, least: int) -> None:
        self._ring = ring
        self._least = least
        self._begun = False

    def rows(self, count: int) -> PlacedRows:
        self._placed_rows = PlacedRows(count, self._reserve, self._least)
        return self._placed_rows

    def _reserve(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if not self._begun:
            self._begun = True
            self._ring.begin_batch()
        return self._ring.lease(shape, dtype, contiguous(shape))[0]

    def _stacked(self, samples: Sequence[torch.Tensor]) -> torch.Tensor | None:
        first = samples[0]
        if (
            type(first) is torch.Tensor
            and first.numel() * first.element_size() * len(samples) >= self._least
            and plain(first)
            and set(map(type, samples)) == _PLAIN
            and set(map(_dtype, samples)) == {first.dtype}
        ):
            out = self._reserve((len(samples), *first.shape), first.dtype)
            # A sample may require gradients or differ in shape: then it is as with torch.
            with contextlib.suppress(RuntimeError):
                return torch.stack(samples, 0, out=out)  # type: ignore[arg-type]
        return None
