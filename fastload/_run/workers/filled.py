"""Filled: the outcomes of torch's iterator, with the images that its workers recorded made here.

Workers run the user's code and send what was recorded (``transport.py``); the core's threads in
this process fill the batches. A batch is begun as soon as its message is here, not when the
consumer asks for it, so several are being filled while the consumer computes.

How it ends
    success   a batch is complete when it is handed over.
    damaged   an image cannot be made. Its worker is asked to make the batch again without
              deferring, from the generators' states before it, by a task that is inserted. What
              the user's code draws then may differ, so the worker also makes all its later batches
              again that were in flight. Outcomes that arrive meanwhile wait for their turn.
    error     a worker died, or a timeout: raised; the next ``next`` continues waiting.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from typing import Any, cast

from ..._base.torch_loader import DataLoader
from ..._base.wrapped_iterator import WrappedIterator
from .fetch import Fetcher
from .queues import DirectQueue
from .tasks import Outcome, Tasks
from .torch_iterator import TorchWorkersIterator, alive, has_result


class Filled(WrappedIterator[Outcome]):
    """The outcomes of one epoch in order, with complete batches.

    Args:
        inner: torch's loader of outcomes.
        tasks: its sampler. The attribute ``tasks`` has those of this epoch.
    """

    def __init__(self, inner: DataLoader[Outcome], tasks: Tasks) -> None:
        self._wrapped: Iterator[Outcome] = iter(inner)
        self._torch = cast(TorchWorkersIterator, self._wrapped) if inner.num_workers else None
        self._queue = None if self._torch is None else self._torch._data_queue
        if self._torch is not None:
            alive.add(self._torch)
        assert tasks.current is not None, "torch's iterator has called iter(tasks)"
        self.tasks = tasks.current
        self._asked_ahead = self.tasks.asked  # before any outcome was returned
        self._early: collections.deque[Outcome] = collections.deque()
        self._instead: dict[int, Outcome] = {}  # by task number
        self._awaited: Outcome | None = None
        self._requested: int | None = None  # number of the task that has batches made again
        self._records = self.tasks.records
        assert isinstance(inner.dataset, Fetcher)
        self._once = inner.dataset.resumable is not None
        if self.tasks.recorded:
            self._arrived()

    def __next__(self) -> Outcome:
        if not self._records:
            return next(self._wrapped)
        outcome = self._awaited or self._next()
        while True:
            self._awaited = outcome
            if self.tasks.recorded:  # else nothing is there to be filled
                for arrived in self._arrived():
                    self.tasks.begin(arrived)
            if self._once or self.tasks.complete(outcome):
                break
            outcome = self._made_again(outcome)
        self._awaited = None
        return outcome

    @property
    def consumed(self) -> int:
        """As in OutcomeIterator."""
        # With each outcome that it returns, torch asks for a task.
        received = self.tasks.asked - self._asked_ahead
        return received - len(self._early) - (self._awaited is not None)

    def ready(self) -> bool:
        """As in OutcomeIterator."""
        return bool(self._early or self._torch is None or has_result(self._torch))

    def take_inserted(self) -> None:
        """Have torch take a task that was inserted, if it might not ask for another one."""
        if self._torch is not None and self.tasks.count == self.tasks.asked - self._asked_ahead:
            self._asked_ahead += 1
            self._torch._try_put_index()

    def _next(self) -> Outcome:
        """The next outcome that counts."""
        outcome = self._early.popleft() if self._early else next(self._wrapped)
        instead = self._instead.pop(outcome.task, None)
        if instead is None:
            return outcome
        self.tasks.replaced(outcome)
        return instead

    def _arrived(self) -> list[Outcome]:
        """What arrived since the last call and is not replaced, in whatever order."""
        # With pinned memory, torch's thread takes it out of the queue, and completes it.
        arrived: list[Any] = self._queue.arrived() if isinstance(self._queue, DirectQueue) else []
        return [
            outcome
            for _, outcome in arrived
            if isinstance(outcome, Outcome) and outcome.task not in self._instead
        ]

    def _made_again(self, outcome: Outcome) -> Outcome:
        """``outcome`` made again by its worker, without deferring."""
        if self._requested is None:  # else an error has ended the wait for it
            self._requested = self.tasks.insert_again(outcome.task)
            self.take_inserted()
        received = next(self._wrapped)
        while received.task != self._requested:
            self._early.append(received)
            received = next(self._wrapped)
        self.tasks.given.pop(self._requested)
        self._requested = None
        assert received.worker == outcome.worker, "torch gives tasks to its workers in turn"
        if received.error is not None:
            return dataclasses.replace(received, task=outcome.task)
        made, *others = received.again
        self._instead |= {one.task: one for one in others}
        return made
