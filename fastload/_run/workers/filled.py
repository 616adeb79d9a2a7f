"""Filled: the outcomes of worker processes, with the images that they recorded made here.

Workers run the user's code and send what was recorded (``transport.py``); the core's threads in
this process fill the batches. A batch is begun as soon as its message is here, not when the
consumer asks for it, so several are being filled while the consumer computes.

How it ends
    success   a batch is complete when it is handed over.
    damaged   an image cannot be made. Its worker is asked to make the batch again without
              deferring, from the generators' states before it. What the user's code draws then may
              differ, so the worker also makes all its later batches again that were in flight.
              Outcomes that arrive meanwhile wait for their turn.
    error     a worker died, or a timeout: raised; the next ``next`` continues waiting.
"""

from __future__ import annotations

import collections

from ..._base.wrapped_iterator import WrappedIterator
from .tasks import Outcome, OutcomeIterator, Task, TaskIterator
from .torch_iterator import TorchWorkersIterator, has_result, has_workers


class Filled(WrappedIterator[Outcome]):
    """The outcomes of ``wrapped`` in order, with complete batches.

    Args:
        wrapped: torch's iterator.
        tasks: the tasks that it takes.
    """

    def __init__(self, wrapped: OutcomeIterator, tasks: TaskIterator) -> None:
        self._wrapped: OutcomeIterator = wrapped
        self._torch = _with_workers(wrapped)
        self._tasks = tasks
        self._early: collections.deque[tuple[int, Outcome]] = collections.deque()
        self._instead: dict[int, Outcome] = {}  # by task number
        self._awaited: tuple[int, Outcome] | None = None
        self._requested = -1  # place of the task that has batches made again

    def __next__(self) -> Outcome:
        place, outcome = self._awaited or self._next()
        while True:
            self._awaited = place, outcome
            if self._tasks.recorded:  # else nothing is there to be filled
                self._begin_arrived()
            if self._complete(outcome):
                break
            outcome = self._made_again(place, outcome)
        self._awaited = None
        self._tasks.given.pop(place, None)
        return outcome

    def ready(self) -> bool:
        """Whether ``next`` would probably not wait."""
        return bool(self._early or self._awaited) or has_result(self._torch)

    def _next(self) -> tuple[int, Outcome]:
        """The next outcome that counts, and the place of its task."""
        if self._early:
            place, outcome = self._early.popleft()
        else:
            place, outcome = self._receive()
        instead = self._instead.pop(outcome.task, None)
        if instead is None:
            return place, outcome
        self._tasks.replaced(outcome)
        return place, instead

    def _receive(self) -> tuple[int, Outcome]:
        """The next outcome from torch's iterator, and the place of its task."""
        # What was asked for again is beside the tasks that torch gives one for one.
        self._tasks.paused = self._torch._rcvd_idx == self._requested
        try:
            outcome = next(self._wrapped)
        finally:
            self._tasks.paused = False
        return self._torch._rcvd_idx - 1, outcome

    def _complete(self, outcome: Outcome) -> bool:
        if outcome.message is None or not outcome.message.recorded:
            return True
        return self._tasks.complete(outcome)

    def _begin_arrived(self) -> None:
        """Begin to fill the batches whose messages are here."""
        inner = self._torch
        if inner._pin_memory:
            return  # torch's pinning thread takes them first, and completes them
        arrived = inner._task_info
        while not inner._data_queue.empty():
            success, result = inner._try_get_data(0)
            if not success:
                break
            inner._tasks_outstanding -= 1
            place, outcome = result
            arrived[place] += (outcome,)
        for place in sorted(arrived):
            if len(arrived[place]) == 2:
                outcome = arrived[place][1]
                if isinstance(outcome, Outcome) and outcome.task not in self._instead:
                    self._tasks.begin(outcome)

    def _made_again(self, place: int, outcome: Outcome) -> Outcome:
        """``outcome`` made again by its worker, without deferring."""
        if self._requested < 0:  # else an error has ended the wait for it
            self._request(place, outcome.worker)
        received_place, received = self._receive()
        while not received.again:
            self._early.append((received_place, received))
            received_place, received = self._receive()
        self._tasks.given.pop(received_place, None)
        self.close()
        made, *others = received.again
        self._instead |= {one.task: one for one in others}
        return made

    def close(self) -> None:
        """Wait for nothing more that was asked for again."""
        if self._requested >= 0:
            self._requested = -1
            self._torch._prefetch_factor -= 1

    def _request(self, place: int, worker: int) -> None:
        """Have ``worker`` make the batch at ``place`` again, and its later ones."""
        tasks, inner = self._tasks, self._torch
        later = self._in_flight(place, worker)
        for one in later:
            self._instead.pop(one.number, None)
        self._requested, task = tasks.request_again([tasks.given[place], *later])
        assert self._requested == inner._send_idx, "a task has a place in torch's order"
        inner._index_queues[worker].put((self._requested, task))
        inner._task_info[self._requested] = (worker,)
        if hasattr(inner, "_workers_num_tasks"):
            inner._workers_num_tasks[worker] += 1
        inner._tasks_outstanding += 1
        inner._send_idx += 1
        inner._prefetch_factor += 1

    def _in_flight(self, place: int, worker: int) -> list[Task]:
        """The tasks that ``worker`` was given after the one at ``place``, in order."""
        tasks, info = self._tasks, self._torch._task_info
        mine = {at for at, outcome in self._early if outcome.worker == worker}
        mine |= {at for at, (its, *_) in info.items() if its == worker and at > place}
        return [tasks.given[at] for at in sorted(mine) if not tasks.given[at].again]


def _with_workers(iterator: object) -> TorchWorkersIterator:
    assert has_workers(iterator), "only workers record images for another process"
    return iterator
