"""Refilled: the outcomes of a user's Dataset, with batches refilled for ``on_error="refill"``.

Only the dataset can make samples, and only in the process that it runs in. So a batch with a bad
sample is made again as a whole, from its good samples and the ones that refill it, as one more
task. Its worker gets to that task after those that were handed out before. Outcomes that arrive
meanwhile wait for their turn. If waiting ends in an error (a timeout, Ctrl-C), the next ``next``
continues with the same batch.
"""

from __future__ import annotations

import collections
import dataclasses

from ..._base.wrapped_iterator import WrappedIterator
from ..bad_samples.policy import BadSample
from ..bad_samples.refill import Refill
from .filled import Filled
from .tasks import Outcome, Task


@dataclasses.dataclass
class _IncompleteBatch:
    """A batch that is being refilled.

    Attributes:
        task: its first task.
        outcome: of the last attempt, which lacks the samples at the places ``lost``.
        positions: positions of its samples in the order.
        lost: indices into ``positions`` of the samples that could not be made.
        repeats: by position, how often its index occurred before in the epoch.
        bad: samples that could not be made.
        awaited: number of the task that makes the batch again, or None.
    """

    task: Task
    outcome: Outcome
    positions: list[int]
    lost: list[int]
    repeats: dict[int, int]
    bad: list[BadSample] = dataclasses.field(default_factory=list)
    awaited: int | None = None


class Refilled(WrappedIterator[Outcome]):
    """The outcomes of ``wrapped`` in order, with every batch refilled to its full size.

    Args:
        wrapped: torch's outcomes.
        refill: gives further samples.
        number: number of the first batch, counted from the start of the order.

    Attributes:
        consumed: number of the next batch.
    """

    def __init__(self, wrapped: Filled, refill: Refill, number: int) -> None:
        self._wrapped: Filled = wrapped
        self._tasks = wrapped.tasks
        self._refill = refill
        self.consumed = number
        self._early: collections.deque[Outcome] = collections.deque()
        self._incomplete: _IncompleteBatch | None = None

    def __next__(self) -> Outcome:
        outcome = self._next_complete() if self._incomplete is None else None
        if outcome is None:
            assert self._incomplete is not None
            outcome = self._complete(self._incomplete)
        if outcome.idle:
            return outcome
        self._incomplete = None
        self.consumed += 1
        return outcome

    def ready(self) -> bool:
        """As in OutcomeIterator."""
        return bool(self._early) or self._wrapped.ready()

    def _next_complete(self) -> Outcome | None:
        """The next outcome if it is complete; else None, and it becomes ``_incomplete``."""
        outcome = self._early.popleft() if self._early else next(self._wrapped)
        if outcome.idle:
            return outcome
        _, task = self._tasks.given[outcome.task]
        positions = self._refill.own(self.consumed)
        # Samples that refilled earlier batches no longer belong to this one.
        lost = [i for i in outcome.missing if i < len(positions)]
        whole = len(positions) == len(task.indices)
        if outcome.error is not None or (whole and not lost):
            return outcome
        repeats = dict(zip(positions, task.repeats or [0] * len(positions)))
        self._incomplete = _IncompleteBatch(task, outcome, positions, lost, repeats)
        return None

    def _complete(self, batch: _IncompleteBatch) -> Outcome:
        """Make the batch again until it has no bad sample."""
        while True:
            if batch.awaited is None:
                places, outcome = set(batch.lost), batch.outcome
                batch.bad += [one for one, i in zip(outcome.bad, outcome.missing) if i in places]
                batch.positions = self._refill.instead(self.consumed, batch.positions, batch.lost)
                self._tasks.discard(outcome)
                whole = self._refill.complete(batch.positions)
                if self._refill.hopeless(len(batch.bad)) or not whole:
                    return Outcome(
                        batch.task.number, outcome.worker, bad=tuple(batch.bad), empty=True
                    )
                for at in set(batch.positions) - set(batch.repeats):
                    batch.repeats[at] = self._refill.repeats(at) if self._tasks.counts else 0
                batch.awaited = self._request(
                    batch.positions, [batch.repeats[at] for at in batch.positions]
                )
            batch.outcome = self._wait(batch.awaited)
            batch.awaited = None
            batch.lost = list(batch.outcome.missing)
            if not batch.lost:
                return dataclasses.replace(batch.outcome, bad=tuple(batch.bad))

    def _request(self, positions: list[int], repeats: list[int]) -> int:
        """Insert a task for the samples at these positions; return its number."""
        indices = [self._refill.index(position) for position in positions]
        number = self._tasks.insert(indices, repeats if any(repeats) else None)
        self._wrapped.take_inserted()
        return number

    def _wait(self, number: int) -> Outcome:
        """The outcome of task ``number``; outcomes before it are kept in ``_early``."""
        while True:
            outcome = next(self._wrapped)
            if outcome.task == number:
                return outcome
            self._early.append(outcome)
