"""WarmBatch: collates a batch that stays in this process, its large tensors in slabs."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Sequence
from typing import Any

import torch

from ..._base.nested import plain
from ..._base.slabs import SlabRing
from .columns import SMALL_NBYTES, CollateTable, in_columns, torch_stack
from .placed_rows import PlacedRows, contiguous

_PLAIN = {torch.Tensor}
_dtype = operator.attrgetter("dtype")


class WarmBatch:
    """Collates one batch in this process: as a ``Packer`` does, but in slabs of ``ring``."""

    def __init__(self, ring: SlabRing) -> None:
        self._ring = ring
        self._placed_rows: PlacedRows | None = None

    def rows(self, count: int) -> PlacedRows:
        """The rows of a batch of ``count`` samples. ``collate`` knows them again."""
        self._ring.begin_batch()
        self._placed_rows = PlacedRows(count, self._reserve)
        return self._placed_rows

    def collate(self, samples: Sequence[Any]) -> Any:
        """torch's default_collate, with large tensors stacked in slabs."""
        if self._placed_rows is None:
            self._ring.begin_batch()
        try:
            return in_columns(samples, self._stack)
        finally:
            self._placed_rows = None  # which refers to this

    def _reserve(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return self._ring.lease(shape, dtype, contiguous(shape))[0]

    def _stack(
        self, samples: Sequence[torch.Tensor], *, collate_fn_map: CollateTable | None = None
    ) -> torch.Tensor:
        placed = None if self._placed_rows is None else self._placed_rows.batch_of(samples)
        if placed is not None:
            return placed
        first = samples[0]
        if (
            type(first) is torch.Tensor
            and first.numel() * first.element_size() * len(samples) >= SMALL_NBYTES
            and plain(first)
            and set(map(type, samples)) == _PLAIN
            and set(map(_dtype, samples)) == {first.dtype}
        ):
            out = self._reserve((len(samples), *first.shape), first.dtype)
            # A sample may require gradients or differ in shape: then it is as with torch.
            with contextlib.suppress(RuntimeError):
                return torch.stack(samples, 0, out=out)  # type: ignore[arg-type]
        return torch_stack(samples, collate_fn_map=collate_fn_map)
