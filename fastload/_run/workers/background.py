"""Background: batches of a user's Dataset made ahead by one thread (``prefetch_thread=True``).

How it runs
    The consumer draws the tasks, because samplers are the user's code, and keeps ``ahead`` of them
    in a queue. The thread turns them into outcomes, in order. Each ``next`` adds one task and takes
    one outcome.
How it ends
    success    the tasks are exhausted: the thread ends after the last one.
    failure    an error takes the place of its batch; so does what ``sys.exit`` raises.
    early exit dropping the iterator ends the thread after the batch that it is making; its dead
               weak reference in the queue wakes a thread that waits for a task. The exit of the
               interpreter also ends the thread, and waits for it.
After the last task, tasks may be inserted as long as outcomes are taken (``refilled.py``).
The queue of results is unbounded, as the number of tasks bounds it: a thread that never blocks on a
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

from ..._base.wrapped_iterator import WrappedIterator
from .. import background_thread
from ..background_thread import EXIT_S, BackgroundThread
from ..stream import check_process
from .tasks import Outcome, OutcomeIterator, Task

# A task; None after the last one; or the weak reference to an iterator that was dropped.
_Item = Task | weakref.ref[Any] | None

_running: set[_Thread] = set()


class Background(WrappedIterator[Outcome]):
    """The outcomes of ``tasks``, made ahead by a thread.

    Args:
        tasks: drawn on the consumer's thread.
        make: called on the thread.
        ahead: tasks in flight in addition to the one that is waited for.
        wrapped: torch's iterator, which answers for the length and all other attributes.

    Attributes:
        received: outcomes and errors taken so far.
    """

    def __init__(
        self,
        tasks: Iterator[Task],
        make: Callable[[Task], Outcome],
        ahead: int,
        wrapped: OutcomeIterator,
    ) -> None:
        self._wrapped: OutcomeIterator = wrapped
        self._tasks = tasks
        self._ahead = ahead
        self._pid = os.getpid()
        self._in_flight = 0
        self.received = 0
        self._thread = _Thread(self, make)
        for _ in range(ahead):
            self._submit()

    def __next__(self) -> Outcome:
        check_process(self._pid)
        if self._in_flight <= self._ahead:
            self._submit()
        if not self._in_flight:
            self._thread.items.put(None)
            raise StopIteration
        outcome = self._thread.next()
        self._in_flight -= 1  # not earlier: if Ctrl-C ends the wait, the outcome is still to come
        self.received += 1
        if isinstance(outcome, BaseException):
            try:
                raise outcome
            finally:
                del outcome  # its traceback refers to this frame: a cycle that keeps the thread
        if outcome is None:
            raise StopIteration
        return outcome

    def ready(self) -> bool:
        """Whether ``next`` would not wait."""
        return self._thread.ready()

    def _submit(self) -> None:
        """Draw the next task, if there is one, and give it to the thread."""
        task = next(self._tasks, None)
        if task is not None:
            self._thread.items.put(task)
            self._in_flight += 1


class _Thread:
    """The thread's side. It keeps no reference to ``owner``, the iterator, whose end is its own."""

    def __init__(self, owner: Background, make: Callable[[Task], Outcome]) -> None:
        self.items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        # The callback is a C function: one in Python could be interrupted by Ctrl-C, and what a
        # finalizer raises is swallowed.
        self._owner = weakref.ref(owner, self.items.put)
        self._make = make
        self._ended = False
        self._closing = threading.Event()
        _running.add(self)
        try:
            self._generator: BackgroundThread = background_thread.start(self._produce())
        except RuntimeError:  # the system grants no more threads
            _running.discard(self)
            raise

    def next(self) -> Outcome | BaseException | None:
        """The next outcome, or the error in its place; None after the last one."""
        if self._ended:
            return None
        more, outcome = self._generator.queue.get()
        if more:
            assert isinstance(outcome, (Outcome, BaseException))
            return outcome
        self._ended = True  # the last item is StopIteration, the type, or an error
        return outcome if isinstance(outcome, BaseException) else None

    def ready(self) -> bool:
        """Whether ``next`` would not wait."""
        return self._ended or not self._generator.queue.empty()

    def close(self) -> None:
        """End the thread, and wait for it."""
        self._closing.set()
        self.items.put(None)
        self._generator.join(EXIT_S)

    def _produce(self) -> Iterator[Outcome | BaseException]:
        try:
            while True:
                item = self.items.get()
                if not isinstance(item, Task) or self._closing.is_set() or self._owner() is None:
                    return
                yield self._outcome(item)
        finally:
            _running.discard(self)

    def _outcome(self, task: Task) -> Outcome | BaseException:
        try:
            return self._make(task)
        except BaseException as error:  # noqa: BLE001 - raised in the consumer, at this batch
            return error


def _close_all() -> None:
    for thread in list(_running):
        thread.close()


atexit.register(_close_all)
