"""``on_error="refill"``: batches are filled up from the end of the epoch's order.

A sample that cannot be read is replaced by the last one of the order that has not been used yet. So
every batch before the end keeps its other samples and its size, and the epoch gets shorter at its
end. Which samples fill up depends only on the order and on which samples are bad, because batches
are settled one after the other, however many are in flight.

A batch with a bad sample is made again as a whole, by whoever made it, until none of its samples is
bad. If waiting for that ends in an error (a timeout, Ctrl-C), it is waited for again.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ..maker import Maker, Outcome, Remaker, Stage
from . import policy
from .policy import BadSample


@dataclasses.dataclass
class _Incomplete:
    """A batch that is being made again, after its first outcome.

    Attributes:
        positions: of its samples in the order.
        bad: samples that could not be made.
        ticket: of the batch that is asked for; None: none is.
    """

    first: Outcome
    positions: list[int]
    bad: list[BadSample]
    ticket: Any = None


class Refill:
    """What is left of an epoch's order, from its end, to fill batches up.

    A ``remaker`` makes these again, always the same one.

    Args:
        size: of a batch.
        drop_last: drop a last batch that is smaller.
        limit: ``max_errors``.
        spent: samples that were taken from the end before this iteration.
        number: of the first batch, counted from the start of the order.

    Attributes:
        order: returns the whole order, once its first batch has been drawn; who draws it sets it.
        times: returns how often each sample of the order came before; None: nothing depends on it.
        spent: samples taken from the end so far.
        number: of the batch that is settled next.
    """

    def __init__(
        self, size: int, *, drop_last: bool, limit: float, spent: int, number: int
    ) -> None:
        self.order: Callable[[], Sequence[Any] | np.ndarray] = tuple
        self.times: Callable[[], Sequence[int] | np.ndarray] | None = None
        self.spent = spent
        self.number = number
        self._size = size
        self._least = size if drop_last else 1
        self._limit = limit
        self._counted: Sequence[int] | np.ndarray | None = None
        self._incomplete: _Incomplete | None = None

    @property
    def pending(self) -> bool:
        """Whether the last batch was not completed."""
        return self._incomplete is not None

    def settle(self, outcome: Outcome, remaker: Remaker[Any]) -> Outcome:
        """``outcome``, the next one, filled up."""
        if not outcome.taken:
            return outcome
        self.number += outcome.taken - 1
        end = len(self.order())
        whole = self._positions(end)
        positions = self._positions(end - self.spent)
        # Samples that filled up earlier batches no longer belong to this one.
        lost = [i for i in outcome.missing if i < len(positions)]
        if outcome.error is None and (lost or len(positions) < len(whole)):
            self._incomplete = _Incomplete(outcome, list(positions), [])
            self._replace(self._incomplete, outcome, lost)
            return self.complete(remaker)
        return self._settled(outcome)

    def _positions(self, end: int) -> range:
        """Those of the next batch, in an order that ends there."""
        begin = self.number * self._size
        return range(begin, min(begin + self._size, end))

    def complete(self, remaker: Remaker[Any]) -> Outcome:
        """The last batch, which was not completed."""
        batch = self._incomplete
        assert batch is not None, "there is one that is pending"
        allowed = policy.allowed(self._limit, len(self.order()))
        while True:
            if batch.ticket is None:
                if len(batch.bad) > allowed or len(batch.positions) < self._least:
                    outcome = Outcome(empty=True, worker=batch.first.worker)
                    break
                batch.ticket = remaker.ask(*self._samples(batch.positions))
            outcome = remaker.answer(batch.ticket)
            batch.ticket = None
            if not outcome.missing:
                break
            self._replace(batch, outcome, outcome.missing)
        outcome.bad, outcome.taken = batch.bad, batch.first.taken
        return self._settled(outcome)

    def _replace(self, batch: _Incomplete, outcome: Outcome, lost: Sequence[int]) -> None:
        """Give ``batch`` new positions after ``positions[i]`` failed for i in ``lost``.

        It is smaller where the order has too few left.
        """
        places = set(lost)
        batch.bad += [one for one, i in zip(outcome.bad, outcome.missing) if i in places]
        end = len(self.order()) - self.spent
        count = max(0, min(len(lost), end - (self.number + 1) * self._size))
        self.spent += count
        new: list[int | None] = list(batch.positions)
        for i, position in itertools.zip_longest(lost, range(end - 1, end - 1 - count, -1)):
            new[i] = position
        batch.positions = [position for position in new if position is not None]

    def _samples(self, positions: list[int]) -> tuple[list[Any], list[int] | None]:
        """The indices there, and how often each came before; None: nothing depends on it."""
        order = self.order()
        if self.times is not None and self._counted is None:
            self._counted = self.times()
        counted = self._counted
        if isinstance(order, np.ndarray):
            indices = order[positions].tolist()
        else:
            indices = [order[position] for position in positions]
        return indices, None if counted is None else [int(counted[i]) for i in positions]

    def _settled(self, outcome: Outcome) -> Outcome:
        self._incomplete = None
        self.number += 1
        outcome.refilled = self.spent
        return outcome


class _Again(Maker, Remaker[Any], Protocol):
    """A maker that makes a batch again."""


class Refilled(Stage):
    """The outcomes of a maker, with every batch filled up to its full size."""

    def __init__(self, maker: _Again, refill: Refill) -> None:
        super().__init__(maker)
        self._remaker = maker
        self._refill = refill

    def __next__(self) -> Outcome:
        if self._refill.pending:
            return self._refill.complete(self._remaker)
        return self._refill.settle(next(self._maker), self._remaker)
