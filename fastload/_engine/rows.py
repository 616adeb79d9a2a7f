"""The engine of tensors: rows are copied, nothing is decoded."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
import torch
from typing_extensions import override

from .._base.slabs import SlabRing
from .._transforms.geometry.draws import Numbers
from .._transforms.plan import Plan, Views
from ..errors import DataError
from ..storage.base import Store
from ..storage.memory import Rows
from .base import BatchEngine, Ticket
from .image_engine import EngineOptions


class RowsEngine(BatchEngine):
    """Copies rows of a store's tensors into batches, which are lists: one tensor per tensor.

    Of the options only ``ring`` matters: one thread copies as fast as memory takes it, and rows
    keep their layout. The plan makes nothing of them.
    """

    name = "gather"

    def __init__(self, store: Store, plan: Plan, options: EngineOptions) -> None:
        super().__init__(store, options.threads)
        self.plan = plan
        self.options = options
        self._rows = Rows.of(store)

    def _submit(self, numbers: Numbers, *, timed: bool) -> Ticket:
        return _RowsTicket(self, numbers.indices)  # its ``result`` copies

    def gather(self, records: np.ndarray) -> list[torch.Tensor]:
        """A batch of the rows ``records`` of every tensor."""
        first = self._rows.first[0]
        shape = (len(records), *first.shape[1:])
        flat = torch.empty(shape, dtype=first.dtype, device="meta")
        if self.options.ring is None:
            batch = torch.empty(shape, dtype=first.dtype, device="cpu", pin_memory=True)
            memory = batch.view(-1).view(torch.uint8).numpy()
        else:
            batch, memory = self.options.ring.lease(shape, first.dtype, flat.stride())
        self._rows.gather(0, records, memory.reshape(len(records), -1))
        return [batch, *self._rows.others(records)]

    @override
    def makes(self, plan: Plan | Views) -> bool:
        return self.plan.same_as(plan)

    @override
    def uniform(self, records: np.ndarray) -> bool:
        return True

    @property
    @override
    def rings(self) -> tuple[SlabRing, ...]:
        return () if self.options.ring is None else (self.options.ring,)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.store, self.plan, self.options)


class _RowsTicket(Ticket):
    def __init__(self, engine: RowsEngine, records: np.ndarray) -> None:
        self._engine = engine
        self._records = records
        self._nanoseconds = 0

    def settle(self) -> tuple[list[torch.Tensor], dict[int, DataError]]:
        self.check_cancelled()
        begin = time.perf_counter_ns()
        columns = self._engine.gather(self._records)
        self._nanoseconds = time.perf_counter_ns() - begin
        self.nbytes = sum(column.nbytes for column in columns)
        return columns, {}

    def cancel(self) -> None:
        self.cancelled = True

    def stages_ns(self) -> Mapping[str, int]:
        return {"read": self._nanoseconds}
