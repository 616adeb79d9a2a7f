"""Work that threads do a little ahead, taken in order."""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")


@contextlib.contextmanager
def in_order(
    call: Callable[[_T], _R],
    items: Iterable[_T],
    threads: int,
    name: str,
    ended: threading.Event | None = None,
    rest: Callable[[_R], _T | None] = lambda result: None,
) -> Iterator[Iterator[_R]]:
    """What ``call`` returns for each of ``items``, in turn, while the block lasts.

    ``ended`` is set when the block is left: ``call`` may look at it, and return early. ``rest``
    says of a result what is left to do of its item, which comes next.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
    ahead: collections.deque[Future[_R]] = collections.deque()

    def results(most: int) -> Generator[_R, None, None]:
        while len(ahead) > most:
            result = ahead.popleft().result()
            left = rest(result)
            if left is not None:
                ahead.appendleft(pool.submit(call, left))
            yield result

    def every() -> Generator[_R, None, None]:
        for item in items:
            ahead.append(pool.submit(call, item))
            yield from results(2 * threads - 1)
        yield from results(0)

    ordered = every()
    try:
        yield ordered
    finally:
        ordered.close()
        if ended is not None:
            ended.set()
        pool.shutdown(wait=True, cancel_futures=True)
