"""The batches of a user's Dataset, filled up where ``on_error="refill"`` asks for it.

Only the dataset can make a sample, and only where it runs. So a batch with a bad sample is made
again as a whole, of its good samples and of those that fill it up: as one more task, which its
worker comes to after those that were handed out before. What arrives meanwhile waits for its turn.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from typing import Any

from .._on_error.policy import BadSample
from .._on_error.refill import Refill
from .tasks import Outcome, Task, TaskIterator


class Completed(Iterator[Outcome]):
    """The outcomes of ``wrapped`` in their order, every batch of its full size.

    Args:
        wrapped: torch's iterator over outcomes, or one that makes them in the background.
        tasks: what it asks for tasks; keeps those that were handed out.
        refill: where further samples come from.
        number: of the first batch, counted from the beginning of the order.
    """

    def __init__(self, wrapped: Any, tasks: TaskIterator, refill: Refill, number: int) -> None:
        self._wrapped = wrapped
        self._tasks = tasks
        self._refill = refill
        self._number = number
        self._early: collections.deque[Outcome] = collections.deque()

    def __next__(self) -> Outcome:
        outcome = self._early.popleft() if self._early else next(self._wrapped)
        number, self._number = self._number, self._number + 1
        task = self._tasks.kept.pop(outcome.task)
        positions = self._refill.own(number)
        # What was taken from the end meanwhile is no longer this batch's to have or to lose.
        lost = [i for i in outcome.missing if i < len(positions)]
        whole = len(positions) == len(task.indices)
        if outcome.error is not None or (whole and not lost):
            return outcome
        return self._complete(number, task, outcome, positions, lost)

    def __len__(self) -> int:
        return len(self._wrapped)

    def __getattr__(self, name: str) -> Any:
        if name == "_wrapped":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self._wrapped, name)

    def _complete(
        self, number: int, task: Task, outcome: Outcome, positions: list[int], lost: list[int]
    ) -> Outcome:
        """Make the batch again until none of its samples is bad."""
        known = dict(zip(positions, task.repeats or [0] * len(positions)))
        bad: list[BadSample] = []
        while True:
            places = set(lost)
            bad += [one for one, i in zip(outcome.bad, outcome.missing) if i in places]
            positions = self._refill.instead(number, positions, lost)
            if self._refill.hopeless(len(bad)) or not self._refill.complete(positions):
                self._tasks.forget(outcome)
                return Outcome(task.number, outcome.worker, bad=tuple(bad), empty=True)
            for at in set(positions) - set(known):
                known[at] = self._refill.repeats(at) if self._tasks.counts else 0
            self._tasks.forget(outcome)
            outcome = self._made(positions, [known[at] for at in positions])
            lost = list(outcome.missing)
            if not lost:
                return dataclasses.replace(outcome, bad=tuple(bad))

    def _made(self, positions: list[int], repeats: list[int]) -> Outcome:
        """The batch of these positions, made as soon as its turn comes."""
        indices = [self._refill.index(position) for position in positions]
        number = self._tasks.insert(indices, repeats if any(repeats) else None)
        wrapped = self._wrapped
        # Torch asks for a task whenever it gives an outcome; but there may have been none left.
        if hasattr(wrapped, "_send_idx"):
            most = wrapped._prefetch_factor * wrapped._num_workers
            if wrapped._send_idx - wrapped._rcvd_idx < most:
                wrapped._try_put_index()
        while True:
            outcome: Outcome = next(wrapped)
            if outcome.task == number:
                self._tasks.kept.pop(number)
                return outcome
            self._early.append(outcome)
