"""The batches of a user's Dataset, filled up where ``on_error="refill"`` asks for it.

Only the dataset can make a sample, and only where it runs. So a batch with a bad sample is made
again as a whole, of its good samples and of those that fill it up: as one more task, which its
worker comes to after those that were handed out before. What arrives meanwhile waits for its turn.
Where the wait ends in an error (a timeout, Ctrl-C), the next one goes on with the same batch.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from typing import Any

from ..bad_samples.policy import BadSample
from ..bad_samples.refill import Refill
from .tasks import Outcome, Task, TaskIterator


@dataclasses.dataclass
class _Unfinished:
    """A batch that is being filled up.

    Attributes:
        task: that it was first.
        outcome: of the last attempt, which lacks the samples at the places ``lost``.
        positions: of its samples in the order.
        lost: places in ``positions``.
        repeats: by position, how often the index there came before.
        bad: samples that could not be made.
        awaited: number of the task that makes it again, or None.
    """

    task: Task
    outcome: Outcome
    positions: list[int]
    lost: list[int]
    repeats: dict[int, int]
    bad: list[BadSample] = dataclasses.field(default_factory=list)
    awaited: int | None = None


class Refilled(Iterator[Outcome]):
    """The outcomes of ``wrapped`` in their order, every batch of its full size.

    Args:
        wrapped: torch's iterator over outcomes, or one that makes them in the background.
        tasks: what it asks for tasks; keeps those that were handed out.
        refill: where further samples come from.
        number: of the first batch, counted from the beginning of the order.

    Attributes:
        number: of the batch that comes next.
    """

    def __init__(self, wrapped: Any, tasks: TaskIterator, refill: Refill, number: int) -> None:
        self._wrapped = wrapped
        self._tasks = tasks
        self._refill = refill
        self.number = number
        self._early: collections.deque[Outcome] = collections.deque()
        self._unfinished: _Unfinished | None = None

    def __next__(self) -> Outcome:
        outcome = self._settled() if self._unfinished is None else None
        if outcome is None:
            assert self._unfinished is not None
            outcome = self._complete(self._unfinished)
        if outcome.idle:
            return outcome
        self._unfinished = None
        self.number += 1
        return outcome

    def _settled(self) -> Outcome | None:
        """The next outcome, if it may stay as it is; else it is ``_unfinished``."""
        outcome = self._early.popleft() if self._early else next(self._wrapped)
        if outcome.idle:
            return outcome
        task = self._tasks.kept.pop(outcome.task)
        positions = self._refill.own(self.number)
        # What was taken from the end meanwhile is no longer this batch's to have or to lose.
        lost = [i for i in outcome.missing if i < len(positions)]
        whole = len(positions) == len(task.indices)
        if outcome.error is not None or (whole and not lost):
            return outcome
        repeats = dict(zip(positions, task.repeats or [0] * len(positions)))
        self._unfinished = _Unfinished(task, outcome, positions, lost, repeats)
        return None

    def __len__(self) -> int:
        return len(self._wrapped)

    def __getattr__(self, name: str) -> Any:
        if name == "_wrapped":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self._wrapped, name)

    def _complete(self, batch: _Unfinished) -> Outcome:
        """Make the batch again until none of its samples is bad."""
        while True:
            if batch.awaited is None:
                places, outcome = set(batch.lost), batch.outcome
                batch.bad += [one for one, i in zip(outcome.bad, outcome.missing) if i in places]
                batch.positions = self._refill.instead(self.number, batch.positions, batch.lost)
                self._tasks.forget(outcome)
                whole = self._refill.complete(batch.positions)
                if self._refill.hopeless(len(batch.bad)) or not whole:
                    return Outcome(
                        batch.task.number, outcome.worker, bad=tuple(batch.bad), empty=True
                    )
                for at in set(batch.positions) - set(batch.repeats):
                    batch.repeats[at] = self._refill.repeats(at) if self._tasks.counts else 0
                batch.awaited = self._ask(
                    batch.positions, [batch.repeats[at] for at in batch.positions]
                )
            batch.outcome = self._wait(batch.awaited)
            batch.awaited = None
            batch.lost = list(batch.outcome.missing)
            if not batch.lost:
                return dataclasses.replace(batch.outcome, bad=tuple(batch.bad))

    def _ask(self, positions: list[int], repeats: list[int]) -> int:
        """Have the batch of these positions made as soon as its turn comes: its task's number."""
        indices = [self._refill.index(position) for position in positions]
        number = self._tasks.insert(indices, repeats if any(repeats) else None)
        wrapped = self._wrapped
        # Torch asks for a task whenever it gives an outcome; but there may have been none left.
        if hasattr(wrapped, "_send_idx"):
            most = wrapped._prefetch_factor * wrapped._num_workers
            if wrapped._send_idx - wrapped._rcvd_idx < most:
                wrapped._try_put_index()
        return number

    def _wait(self, number: int) -> Outcome:
        """The outcome of the task ``number``; those before it wait in ``_early``."""
        while True:
            outcome: Outcome = next(self._wrapped)
            if outcome.task == number:
                self._tasks.kept.pop(number)
                return outcome
            self._early.append(outcome)
