"""Fetching the next parts of a store while one is worked on, for tools that read all of it."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator

import numpy as np

from .base import Store
from .held import Held

_AHEAD = 8  # parts of about 8 MB: enough for a link of 500 MB/s and a latency of 100 ms
_BEHIND = 64  # parts that threads may still have to begin with when the next one is given out


def fetched_ahead(store: Store, parts: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """``parts`` (int64 record numbers) in turn; of a remote store, the next ones are fetched.

    What was given out stays until so many more were that no thread can still have to begin with it.
    """
    if not store.remote or store.indirect is not None:
        yield from parts
        return
    held: collections.deque[Held] = collections.deque()
    waiting: collections.deque[np.ndarray] = collections.deque()
    try:
        for number, part in enumerate(parts):
            hold = store.ahead(part, urgency=float(number))
            if hold is not None:
                held.append(hold)
            waiting.append(part)
            if len(waiting) > _AHEAD:
                yield waiting.popleft()
            if len(held) > _AHEAD + _BEHIND:
                held.popleft().release()
        yield from waiting
    finally:
        for hold in held:
            hold.release()
