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
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from ..maker import Maker, Outcome, Remaker, Stage
from . import policy
from .policy import BadSample

_Ticket = TypeVar("_Ticket")


class Refill:
    """What is left of an epoch's order, from its end.

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
        self._drop_last = drop_last
        self._limit = limit
        self._counted: Sequence[int] | np.ndarray | None = None

    def own(self) -> list[int]:
        """Positions in the order that are left to the next batch."""
        return list(self._range(len(self.order()) - self.spent))

    def whole(self, positions: list[int]) -> bool:
        """Whether these are all that the next batch had in the order."""
        return len(positions) == len(self._range(len(self.order())))

    def _range(self, end: int) -> range:
        begin = self.number * self._size
        return range(begin, min(begin + self._size, end))

    def instead(self, positions: list[int], lost: Sequence[int]) -> list[int]:
        """New positions for the next batch, after ``positions[i]`` failed for i in ``lost``.

        The batch is smaller where the order has too few left.
        """
        end = len(self.order()) - self.spent
        count = max(0, min(len(lost), end - (self.number + 1) * self._size))
        self.spent += count
        new: list[int | None] = list(positions)
        for i, position in itertools.zip_longest(lost, range(end - 1, end - 1 - count, -1)):
            new[i] = position
        return [position for position in new if position is not None]

    def complete(self, positions: list[int]) -> bool:
        """Whether these make a batch: there are some, and with ``drop_last`` enough."""
        return len(positions) >= (self._size if self._drop_last else 1)

    def hopeless(self, errors: int) -> bool:
        """Whether one batch has more errors than ``max_errors`` allows for the epoch."""
        return errors > policy.allowed(self._limit, len(self.order()))

    def indices(self, positions: list[int]) -> list[Any]:
        """The indices at these positions of the order."""
        order = self.order()
        return (
            order[positions].tolist()
            if isinstance(order, np.ndarray)
            else [order[position] for position in positions]
        )

    def repeats(self, positions: list[int]) -> list[int] | None:
        """How often the index at each position came before; None: nothing depends on it."""
        if self.times is None:
            return None
        if self._counted is None:
            self._counted = self.times()
        return [int(self._counted[position]) for position in positions]


@dataclasses.dataclass
class _Incomplete(Generic[_Ticket]):
    """A batch that is being made again, after its first outcome.

    Attributes:
        positions: of its samples in the order.
        bad: samples that could not be made.
        ticket: of the batch that is asked for; None: none is.
    """

    first: Outcome
    positions: list[int]
    bad: list[BadSample]
    ticket: _Ticket | None = None


class Refilling(Generic[_Ticket]):
    """Has ``remaker`` make batches again, of samples that ``refill`` gives, until none is bad."""

    def __init__(self, refill: Refill, remaker: Remaker[_Ticket]) -> None:
        self._refill = refill
        self._remaker = remaker
        self._incomplete: _Incomplete[_Ticket] | None = None

    @property
    def pending(self) -> bool:
        """Whether the last batch was not completed."""
        return self._incomplete is not None

    def settle(self, outcome: Outcome) -> Outcome:
        """``outcome``, the next one, filled up."""
        refill = self._refill
        if not outcome.taken:
            return outcome
        refill.number += outcome.taken - 1
        positions = refill.own()
        # Samples that filled up earlier batches no longer belong to this one.
        lost = [i for i in outcome.missing if i < len(positions)]
        if outcome.error is None and (lost or not refill.whole(positions)):
            self._incomplete = _Incomplete(outcome, positions, [])
            self._replace(self._incomplete, outcome, lost)
            return self.complete()
        return self._settled(outcome)

    def complete(self) -> Outcome:
        """The last batch, which was not completed."""
        batch, refill = self._incomplete, self._refill
        assert batch is not None, "there is one that is pending"
        while True:
            if batch.ticket is None:
                if refill.hopeless(len(batch.bad)) or not refill.complete(batch.positions):
                    outcome = Outcome(empty=True, worker=batch.first.worker)
                    break
                batch.ticket = self._remaker.ask(
                    refill.indices(batch.positions), refill.repeats(batch.positions)
                )
            outcome = self._remaker.answer(batch.ticket)
            batch.ticket = None
            if not outcome.missing:
                break
            self._replace(batch, outcome, outcome.missing)
        outcome.bad, outcome.taken = batch.bad, batch.first.taken
        return self._settled(outcome)

    def _replace(self, batch: _Incomplete[_Ticket], outcome: Outcome, lost: Sequence[int]) -> None:
        places = set(lost)
        batch.bad += [one for one, i in zip(outcome.bad, outcome.missing) if i in places]
        batch.positions = self._refill.instead(batch.positions, lost)

    def _settled(self, outcome: Outcome) -> Outcome:
        self._incomplete = None
        self._refill.number += 1
        outcome.refilled = self._refill.spent
        return outcome


class _Again(Maker, Remaker[_Ticket], Protocol[_Ticket]):
    """A maker that makes a batch again."""


class Refilled(Stage):
    """The outcomes of a maker, with every batch filled up to its full size."""

    def __init__(self, maker: _Again[Any], refill: Refill) -> None:
        super().__init__(maker)
        self._refilling = Refilling(refill, maker)

    def __next__(self) -> Outcome:
        if self._refilling.pending:
            return self._refilling.complete()
        return self._refilling.settle(next(self._maker))
