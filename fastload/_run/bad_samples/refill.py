"""``on_error="refill"``: batches are filled up from the end of the epoch's order.

A sample that cannot be read is replaced by the last one of the order that has not been used yet. So
every batch before the end keeps its other samples and its size, and the epoch gets shorter at its
end. Which samples fill up depends only on the order and on which samples are bad, because batches
are settled one after the other, however many are in flight.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import policy


class Refill:
    """What is left of an epoch's order, from its end.

    Args:
        size: of a batch.
        drop_last: drop a last batch that is smaller.
        limit: ``max_errors``.
        spent: samples that were taken from the end before this iteration.
        times: how often the sample at each position came before; None: this is counted.

    Attributes:
        order: returns the whole order, once its first batch has been drawn; the iterator sets it.
        spent: samples taken from the end so far.
    """

    def __init__(
        self,
        size: int,
        *,
        drop_last: bool,
        limit: float,
        spent: int,
        times: np.ndarray | None = None,
    ) -> None:
        self.order: Callable[[], Sequence[Any] | np.ndarray] = tuple
        self.spent = spent
        self._size = size
        self._drop_last = drop_last
        self._limit = limit
        self._times = times

    def own(self, number: int) -> list[int]:
        """Positions in the order that are left to batch ``number``."""
        end = min((number + 1) * self._size, len(self.order()) - self.spent)
        return list(range(number * self._size, end))

    def instead(self, number: int, positions: list[int], lost: list[int]) -> list[int]:
        """New positions for batch ``number``, after ``positions[i]`` failed for i in ``lost``.

        The batch is smaller where the order has too few left.
        """
        end = len(self.order()) - self.spent
        count = max(0, min(len(lost), end - (number + 1) * self._size))
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

    def index(self, position: int) -> Any:
        """The index at ``position`` of the order."""
        order = self.order()
        return int(order[position]) if isinstance(order, np.ndarray) else order[position]

    def repeats(self, position: int) -> int:
        """How often the same index comes before ``position``."""
        if self._times is not None:
            return int(self._times[position])
        before, index = self.order()[:position], self.index(position)
        if isinstance(before, np.ndarray):
            return int(np.count_nonzero(before == index))
        return sum(other == index for other in before)
