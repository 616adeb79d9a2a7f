"""Batches of a user's Dataset made ahead by one thread of this process: ``prefetch_thread=True``.

How it runs
    The consumer draws the tasks, since samplers are the user's code, and puts ``ahead`` of them
    into a queue; the thread turns them into outcomes, in order. Each ``next`` adds and takes one.
How it ends
    success    the tasks are exhausted: the thread ends after the last one.
    failure    an error travels in the place of its batch.
    early exit dropping the iterator puts its weak reference among the tasks, which ends the thread
               after the batch that it makes. The exit of the interpreter does so too, and waits.
After the last task there may be another one, as long as outcomes are taken (``completed.py``).
The queue of results has no bound, as the number of tasks bounds it: a thread that never blocks on a
full queue can always be ended.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from ...errors import UsageError
from .tasks import Outcome, Task

# How long the exit of the interpreter waits for a thread.
_EXIT_S = 5.0

# A task; None after the last one; the weak reference to an iterator that is gone.
_Item = Task | weakref.ref[Any] | None

_running: set[_Producer] = set()


class Background(Iterator[Outcome]):
    """The outcomes of ``tasks``, made ahead by a thread.

    Args:
        tasks: drawn on the consumer's thread.
        make: called on the thread.
        ahead: tasks that are under way beside the one that is waited for.
        wrapped: torch's iterator, which is asked for what else one may want to know.
    """

    def __init__(
        self,
        tasks: Iterator[Task],
        make: Callable[[Task], Outcome],
        ahead: int,
        wrapped: Any,
    ) -> None:
        self._wrapped = wrapped
        self._drawn = tasks
        self._ahead = ahead
        self._pid = os.getpid()
        self._under_way = 0
        self.came = 0
        """Tasks that something became of, if only an error."""
        self._producer = _Producer(make)
        # A C function as callback: see _iterator.
        self._owned = weakref.ref(self, self._producer.items.put)
        self._producer.start()
        for _ in range(ahead):
            self._draw()

    def __next__(self) -> Outcome:
        if os.getpid() != self._pid:
            raise UsageError("the iterator is of the process before the fork; make one in this one")
        if self._under_way <= self._ahead:
            self._draw()
        if not self._under_way:
            self._producer.items.put(None)
            raise StopIteration
        outcome = self._producer.next()
        self._under_way -= 1  # not before: where Ctrl-C ends the wait, it is still to come
        self.came += 1
        if isinstance(outcome, BaseException):
            try:
                raise outcome
            finally:
                del outcome  # its traceback holds this frame: the cycle would keep the thread
        if outcome is None:
            raise StopIteration
        return outcome

    def ready(self) -> bool:
        """Whether ``next`` would not wait."""
        return self._producer.ready()

    def __len__(self) -> int:
        return len(self._wrapped)

    def _draw(self) -> None:
        task = next(self._drawn, None)
        if task is not None:
            self._producer.items.put(task)
            self._under_way += 1

    def __getattr__(self, name: str) -> Any:
        if name == "_wrapped":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self._wrapped, name)


class _Producer:
    """The thread's side: no reference to the iterator, so that dropping the iterator ends it."""

    def __init__(self, make: Callable[[Task], Outcome]) -> None:
        self.items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._make = make
        self._thread: Any = None
        self._ended = False
        self._closing = threading.Event()

    def start(self) -> None:
        from prefetch_generator import BackgroundGenerator

        _running.add(self)
        self._thread = BackgroundGenerator(self._produce(), max_prefetch=0)

    def next(self) -> Outcome | BaseException | None:
        """The next outcome; None after the last one."""
        if self._ended:
            return None
        made, outcome = self._thread.queue.get()
        if made:
            return outcome  # type: ignore[no-any-return]
        self._ended = True
        return outcome if isinstance(outcome, BaseException) else None  # it ends with a type

    def ready(self) -> bool:
        """Whether ``next`` would not wait."""
        return self._ended or not self._thread.queue.empty()

    def close(self) -> None:
        """End the thread, and wait for it."""
        self._closing.set()
        self.items.put(None)
        self._thread.join(_EXIT_S)

    def _produce(self) -> Iterator[Outcome | BaseException]:
        try:
            while not self._closing.is_set():
                item: _Item = self.items.get()
                if not isinstance(item, Task):
                    return
                try:
                    yield self._make(item)
                except Exception as error:  # noqa: BLE001 - raised in the consumer, at this batch
                    yield error
        finally:
            _running.discard(self)


def _close_all() -> None:
    for producer in list(_running):
        producer.close()


atexit.register(_close_all)
