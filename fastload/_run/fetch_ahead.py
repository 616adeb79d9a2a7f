"""Fetch-ahead: fetches bytes of a remote store ahead of their batch, in the epoch's order.

The order is known. So while the engine fills some batches, this requests the next ones, up to a
window of bytes. A batch is submitted to the engine when its own bytes are there. Until then the
producer passes on batches that are ready, and waits only if there are none.
"""

from __future__ import annotations

import collections
from collections.abc import Callable

import numpy as np

from ..errors import DataError
from ..storage._spans import Held
from ..storage.base import Store
from .order import Batches

# Enough for a link of 1 GB/s and a latency of 100 ms, twice.
_WINDOW_NBYTES = 256 << 20
# Added to each record, because the pieces of the cache are larger than records.
_PIECE_NBYTES = 4 << 10


class FetchAhead:
    """Fetches the records of one epoch from a remote store.

    Args:
        lookup: indices of the dataset -> record numbers, both int64.
        order: the batches of the whole epoch, known at the latest with the first one; empty if they
            are not known: then a batch is fetched when it is submitted.
        following: gives the indices of the next epoch in its order, int64; empty if they are not
            known yet.
        blocks: the order keeps to whole blocks, so these are fetched.
    """

    def __init__(
        self,
        store: Store,
        lookup: Callable[[np.ndarray], np.ndarray],
        order: Batches,
        following: Callable[[], np.ndarray],
        *,
        blocks: bool,
    ) -> None:
        self._store, self._lookup, self._order = store, lookup, order
        self._following, self._blocks = following, blocks
        self._number = 0  # of the next batch to submit
        self._ahead: collections.deque[tuple[Held, int]] = collections.deque()
        self._now: Held | None = None
        self._asked = False  # whether the next batch was

    def ready(self, indices: np.ndarray) -> bool:
        """Whether the next batch to submit, ``indices``, need not wait."""
        try:
            self._ask(indices)
            return self._now is None or self._now.ready()
        except DataError:
            return True  # raised again when it is submitted

    def wait(self, indices: np.ndarray, ended: Callable[[], bool]) -> None:
        """Return when the bytes of the next batch, ``indices``, are there, or the epoch has ended.

        Raises StoreError if they cannot be fetched.
        """
        self._ask(indices)
        if self._now is not None:
            self._now.wait(ended)

    def submitted(self) -> None:
        """The engine has that batch, and keeps its bytes itself."""
        self._asked, self._number = False, self._number + 1
        self._release()

    def close(self) -> None:
        """Cancel what is being fetched."""
        self._release()
        while self._ahead:
            self._ahead.popleft()[0].release()

    def _release(self) -> None:
        now, self._now = self._now, None
        if now is not None:
            now.release()

    def _ask(self, indices: np.ndarray) -> None:
        if self._asked:
            return
        self._asked = True
        if self._number == 0 and len(self._order):
            here = self._order.indices
            everything = np.concatenate([here, self._following()])
            positions = np.arange(len(everything))
            self._store.expect(
                self._lookup(everything), positions, length=len(here), blocks=self._blocks
            )
        if self._ahead:
            self._now = self._ahead.popleft()[0]
        else:
            self._now, _ = self._hold(indices)
        self._store.passed(self._order.before(min(self._number, len(self._order))))
        self._top_up()

    def _hold(self, indices: np.ndarray) -> tuple[Held | None, int]:
        records = self._lookup(indices)
        lengths = self._store.places(records).nbytes
        urgency = float(1 + self._number + len(self._ahead))
        held = self._store.ahead(records, urgency=urgency, blocks=self._blocks)
        return held, int(lengths.sum()) + _PIECE_NBYTES * len(lengths)

    def _top_up(self) -> None:
        total = sum(nbytes for _, nbytes in self._ahead)
        while total < _WINDOW_NBYTES:
            number = self._number + 1 + len(self._ahead)
            if number >= len(self._order):
                return
            held, nbytes = self._hold(self._order[number])
            if held is None:
                return  # there will be room when batches have passed
            self._ahead.append((held, nbytes))
            total += nbytes
