"""Batches that begin before there is memory for them.

While the caller has not let go of the batch before last, the threads would run out of work at the
end of the last one. So the first samples of the next batch, one for each thread, are made in memory
of their own and copied: 1 % of the work, where waiting would cost 2 to 3 %.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from .decoder import Batch
from .native import NativeDecoder, NativeTicket

# Of so many samples at most one is made early: what is copied stays small against the batch.
_SHARE = 16


class EarlyTicket(NativeTicket):
    """A batch of which at most some samples are begun; ``go_on`` begins the others."""

    def __init__(self, decoder: NativeDecoder, batch: Batch) -> None:
        n = len(batch.records)
        super().__init__(decoder, batch, _Nothing(), np.zeros(n, np.int32), np.zeros(n, np.int32))
        if batch.recipe is None and batch.keep is None and batch.times is None:
            self.begun = min(decoder.threads, n // _SHARE)
        self._head = np.empty(self.begun * decoder.sample_nbytes(batch.geometry), np.uint8)
        if self.begun:
            self.job = self._submitted(slice(0, self.begun), self._head)

    def go_on(self) -> None:
        """As in the contract."""
        at, n = self._batch.geometry, len(self._batch.records)
        images, memory = self._decoder.memory(n, at.out_h, at.out_w)
        self._batch = dataclasses.replace(self._batch, images=images, memory=memory)
        if not self.begun:
            self.job = self._decoder.job(self._batch, self._status, self._detail)
            return
        rest = self._submitted(slice(self.begun, n), memory[len(self._head) :])
        self.job = _Both(self.job, rest, self._head, memory)

    def _submitted(self, which: slice, memory: np.ndarray) -> Any:
        part = self._batch.part(which, memory)
        return self._decoder.job(part, self._status[which], self._detail[which])


class _Nothing:
    """The job of a batch of which nothing has begun."""

    def cancel(self) -> None:
        """There is nothing to cancel."""


class _Both:
    """The jobs of the samples that were made early, and of the others."""

    def __init__(self, early: Any, rest: Any, head: np.ndarray, memory: np.ndarray) -> None:
        self._early, self._rest = early, rest
        self._copied: tuple[np.ndarray, np.ndarray] | None = (head, memory[: len(head)])

    def wait(self) -> None:
        """Until all samples lie in the batch's own memory."""
        self._early.wait()
        if self._copied is not None:
            head, memory = self._copied
            np.copyto(memory, head)
            self._copied = None
        self._rest.wait()

    def cancel(self) -> None:
        """As that of a job of the core."""
        self._early.cancel()
        self._rest.cancel()

    @property
    def nanoseconds(self) -> dict[str, int]:
        """Of both."""
        rest = self._rest.nanoseconds
        return {stage: spent + rest[stage] for stage, spent in self._early.nanoseconds.items()}
