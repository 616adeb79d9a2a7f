"""The engine of tensors: rows are copied, nothing is decoded."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from .._transforms.plan import Plan
from ..errors import DataError, InternalError
from ..storage.base import Store
from ..storage.tensors import Rows
from .decoder import Batch, Decoder, Draws, Ticket


class GatherDecoder(Decoder):
    """Copies rows of a store's tensors into batches. See ``Decoder`` for the arguments.

    ``threads`` does not matter: one thread copies as fast as memory takes it.
    """

    name = "gather"

    def __init__(self, store: Store, plan: Plan, **options: Any) -> None:
        super().__init__(store, plan, **options)
        self._rows = Rows.of(store)

    def _submit(self, records: np.ndarray, draws: Draws) -> Ticket:
        """The copying is done by ``result``."""
        return _GatherTicket(self, records)

    def gather(self, records: np.ndarray) -> list[torch.Tensor]:
        """A batch of the rows ``records``, of all tensors at once: rows belong together."""
        first = self._rows.first[0]
        shape = (len(records), *first.shape[1:])
        flat = torch.empty(shape, dtype=first.dtype, device="meta")
        if self._ring is None:
            batch = torch.empty(shape, dtype=first.dtype, device="cpu", pin_memory=True)
            memory = batch.view(-1).view(torch.uint8).numpy()
        else:
            batch, memory = self._ring.lease(shape, first.dtype, flat.stride())
        self._rows.gather(0, records, memory.reshape(len(records), -1))
        return [batch, *self._rows.others(records)]

    def _start(self, batch: Batch) -> Ticket:
        raise InternalError("rows of tensors are not decoded")


class _GatherTicket(Ticket):
    times = None

    def __init__(self, decoder: GatherDecoder, records: np.ndarray) -> None:
        self._decoder = decoder
        self._records = records
        self._nanoseconds = 0

    def result(self) -> list[torch.Tensor]:
        begin = time.perf_counter_ns()
        columns = self._decoder.gather(self._records)
        self._nanoseconds = time.perf_counter_ns() - begin
        self.nbytes = sum(column.nbytes for column in columns)
        return columns

    def settle(self) -> tuple[list[torch.Tensor], dict[int, DataError]]:
        return self.result(), {}

    def cancel(self) -> None:
        """Nothing runs outside of ``result``."""

    def stages_ns(self) -> Mapping[str, int]:
        return {"read": self._nanoseconds}
