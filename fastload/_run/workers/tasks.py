"""Tasks and their outcomes: what the training process and its workers exchange.

A sampler's indices become tasks on the consumer's thread, with a slab for each batch. A
``TaskFetcher`` turns tasks into outcomes, and ``TaskIterator.open`` opens what these sent.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import operator
import time
import weakref
from collections.abc import Callable, Iterator, Sized
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data._utils.pin_memory import pin_memory

from ..._base.shared_slabs import SharedRing, Slot
from ..drawing import IndexCounter, skip_counted
from ..maker import Outcome
from .choice import Choice
from .transport import Message, unpack

if TYPE_CHECKING:
    from ..._sources.deferred.batch import BatchDecoder, Filling

_numbers = itertools.count()

# Task number -> its iterator: torch's pinning thread gets nothing but outcomes.
_open_tasks: weakref.WeakValueDictionary[int, TaskIterator] = weakref.WeakValueDictionary()


class Task(NamedTuple):
    """One batch to make.

    Attributes:
        number: unique in this process.
        indices: what the sampler gave: a list of indices, or one index where there are no batches;
            None for an IterableDataset.
        epoch: its epoch.
        repeats: how often each index occurred before in the epoch; None: never.
        slot: shared memory for the batch, or None.
        idle: there is nothing to do; the task only passes the turn to the next worker.
        again: batches of this worker to make again, one after the other: the first one without
            deferring, from the generators' states before it, the others from where it ends.
        elsewhere_ns: as in ``Choice``.
        oldest: number of the first task of its worker that may still have to be made again; None:
            this one.
    """

    number: int
    indices: Any
    epoch: int
    repeats: list[int] | None = None
    slot: Slot | None = None
    idle: bool = False
    again: tuple[Task, ...] = ()
    elsewhere_ns: float = 0.0
    oldest: int | None = None


@dataclasses.dataclass(slots=True, eq=False)
class SentOutcome(Outcome):
    """The outcome of a task, as a worker sends it.

    Attributes:
        task: number of the task.
        message: carries the batch; None: there is none, or it is opened.
        idle: the task was idle.
        raised: what was raised in place of the batch.
        again: the outcomes of ``Task.again``.
    """

    task: int = -1
    message: Message | None = None
    idle: bool = False
    raised: ExceptionWrapper | None = None
    again: tuple[SentOutcome, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return SentOutcome, _values(self)  # without the names: it is short

    def pin_memory(self) -> SentOutcome:
        """The outcome with its batch in pinned memory. torch calls this on its pinning thread."""
        tasks = _open_tasks.get(self.task)
        if self.again:
            again = tuple(outcome.pin_memory() for outcome in self.again)
            return dataclasses.replace(self, again=again)
        if self.message is None or tasks is None:
            return self
        if not tasks.complete(self):
            return self  # the consumer has it made again
        batch = pin_memory(tasks.open(self))  # type: ignore[no-untyped-call]
        return dataclasses.replace(self, message=None, batch=batch)


_values = operator.attrgetter(*(field.name for field in dataclasses.fields(SentOutcome)))


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class Tasks:
    """The sampler that torch's machinery is given: the tasks of one epoch after the other.

    Attributes:
        sized: has the length.
        ring: slabs for the batches.
        repeats: whether to count how often each index occurs in an epoch.
        workers: that torch gives tasks to, in turn.
        decoder: gives what fills tensors that workers recorded; None: they record nothing.
        choice: learns what workers report.
        current: the newest iteration.
    """

    sized: object
    ring: SharedRing
    repeats: bool
    workers: int
    decoder: Callable[[], BatchDecoder] | None
    choice: Choice
    current: TaskIterator | None = None

    def begin(
        self,
        epoch: int,
        order: Callable[[], Iterator[Any]],
        *,
        skip: int,
        idle: int,
        times: np.ndarray | None,
    ) -> None:
        """Prepare the next iteration: ``order()`` of ``epoch``, without its first ``skip`` items.

        The first ``idle`` workers get an idle task first, because it is another worker's turn.
        ``times`` says how often each index came before, if that is known.
        """
        self.epoch, self._order, self.skip, self.idle = epoch, order, skip, idle
        self.times = times
        self.current = None
        self.ring.left = False

    def __iter__(self) -> TaskIterator:
        # With workers, torch calls iter twice. The order is begun when torch would call iter of
        # the sampler.
        self.current = TaskIterator(self, self._order())
        return self.current

    def __len__(self) -> int:
        sized: Sized = self.sized  # type: ignore[assignment] # TypeError without a length, as in torch
        return len(sized)


class _Begun(NamedTuple):
    """A batch that arrived. Complete when all of ``fillings`` are.

    Attributes:
        message, batch, fillings: of the batch.
        begun_ns: CPU time of this thread to begin it.
    """

    message: Message
    batch: Any
    fillings: list[Filling]
    begun_ns: int


class TaskIterator(Iterator[Task]):
    """The tasks of one epoch of ``tasks``, and the slabs that are reserved for them."""

    def __init__(self, tasks: Tasks, order: Iterator[Any]) -> None:
        self._order = order
        self._epoch = tasks.epoch
        self._skip = tasks.skip
        self._idle = tasks.idle
        self._ring = tasks.ring
        self._reserved: dict[int, np.ndarray] = {}  # slabs by task number
        self._repeats = IndexCounter(tasks.times) if tasks.repeats else None
        self._workers = tasks.workers
        self._stopped = False
        self._inserted: collections.deque[Task] = collections.deque()
        self._decoder = tasks.decoder
        self.records = tasks.decoder is not None
        """Whether workers record images, which are made in this process."""
        self.choice = tasks.choice
        """Learns what workers report."""
        self._begun: dict[int, _Begun] = {}
        self.given: dict[int, tuple[int, Task]] = {}
        """(worker, task) by the task's number, until its batch is taken; only with a decoder."""
        self.ordered: collections.deque[int] = collections.deque()
        """Numbers of the tasks of the order whose outcomes were not taken."""
        self.asked = 0
        """How often torch has asked for a task."""
        self.count = 0
        """Tasks that torch was given."""

    def stop(self) -> None:
        """Give no more tasks."""
        self._stopped = True

    def __next__(self) -> Task:
        self.asked += 1
        if self._skip:
            skip_counted(self._order, self._skip, self._repeats)
            self._skip = 0
        if self._stopped:
            raise StopIteration
        if self._idle:
            self._idle -= 1
            task = self._idle_task()
        elif self._inserted:
            task = self._inserted.popleft()
        else:
            indices = next(self._order)
            repeats = None if self._repeats is None else self._repeats.count(indices)
            task = self._task(indices, repeats)
            self.ordered.append(task.number)
        if self.records:
            worker = self.count % self._workers
            oldest = next((n for n, (its, _) in self.given.items() if its == worker), None)
            task = task._replace(oldest=oldest)
            self.given[task.number] = worker, task
        self.count += 1
        return task

    def _idle_task(self) -> Task:
        return Task(next(_numbers), None, self._epoch, idle=True)

    @property
    def recorded(self) -> bool:
        """Whether workers have recorded an image, in this epoch or one before."""
        return self.records and self.choice.opened

    def insert_again(self, number: int) -> int:
        """Have the worker of task ``number`` make it again, and its later ones.

        Returns the number of the task that does this. The others get an idle task each, so that
        all later batches are made by the worker that makes them with torch's DataLoader.
        """
        worker, _ = self.given[number]
        tasks = [task for n, (its, task) in self.given.items() if its == worker and n >= number]
        for task in tasks:
            self._begun.pop(task.number, None)
            _open_tasks[task.number] = self
        # Without slabs: their first outcomes may still be written there.
        again = tuple(task._replace(slot=None) for task in tasks)
        request = Task(next(_numbers), None, self._epoch, again=again)
        begin = self.count + len(self._inserted)
        for place in range(begin, begin + self._workers):
            mine = place % self._workers == worker
            self._inserted.append(request if mine else self._idle_task())
        return request.number

    def insert(self, indices: list[Any], repeats: list[int] | None) -> int:
        """Make this the next task; return its number."""
        task = self._task(indices, repeats)
        self._inserted.append(task)
        return task.number

    def replaced(self, outcome: SentOutcome) -> None:
        """Free the slab of ``outcome``, which arrived after it was asked for again."""
        if outcome.message is not None:
            self._reserved.pop(outcome.task, None)

    def _task(self, indices: Any, repeats: list[int] | None) -> Task:
        number = next(_numbers)
        lease = self._ring.lease()
        slot = None
        if lease is not None:
            slot, self._reserved[number] = lease
        _open_tasks[number] = self
        elsewhere_ns = self.choice.elsewhere_ns
        return Task(number, indices, self._epoch, repeats, slot, elsewhere_ns=elsewhere_ns)

    def open(self, outcome: SentOutcome) -> Any:
        """The batch of ``outcome``. Its slab is free when nothing refers to the batch any more.

        If an image that a worker recorded cannot be made, ``outcome`` has what Pillow raises.
        """
        _open_tasks.pop(outcome.task, None)
        if outcome.message is None:
            self._reserved.pop(outcome.task, None)
            return outcome.batch
        self.begin(outcome)
        begun = self._begun.pop(outcome.task)
        if begun.fillings:
            from ..._sources.deferred.batch import damage_raised

            try:
                with damage_raised():
                    for filling in begun.fillings:
                        filling.result()
            except Exception as error:  # noqa: BLE001 - raised at this batch
                outcome.error = error.with_traceback(None)
        if outcome.report is not None and outcome.report.run:
            filled_ns = sum(filling.cpu_ns for filling in begun.fillings)
            begun_ns = begun.begun_ns if begun.fillings else 0
            self.choice.filled(outcome.report.spent.deferred, begun_ns + filled_ns)
        return begun.batch

    def begin(self, outcome: SentOutcome) -> None:
        """Start to fill what a worker recorded, before the batch is asked for."""
        if outcome.message is None:
            return
        known = self._begun.get(outcome.task)
        if known is not None and known.message is outcome.message:
            return
        begin_ns = time.thread_time_ns()
        memory = self._reserved.pop(outcome.task, None)
        self._ring.require(outcome.message.nbytes)
        self._ring.left |= outcome.message.unplaced > 0
        fillings: list[Filling] = []

        def fill(*facts: Any) -> torch.Tensor:
            from ..._sources.deferred.completion import start

            assert self._decoder is not None, "workers record only where this process can decode"
            filling = start(self._decoder(), *facts)
            fillings.append(filling)
            return filling.tensor

        together: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if self._decoder is not None and outcome.message.recorded:
            self.choice.opened = True
            decoder = self._decoder()
            decoder.memory.begin_batch()
            if outcome.message.recorded > 1:
                together = decoder.together()
        with together:
            batch = unpack(outcome.message, memory, copy=self._ring.crowded, fill=fill)
        begun_ns = time.thread_time_ns() - begin_ns
        self._begun[outcome.task] = _Begun(outcome.message, batch, fillings, begun_ns)

    def complete(self, outcome: SentOutcome) -> bool:
        """Wait for what is being filled; False: an image is damaged."""
        if outcome.message is None or not outcome.message.recorded:
            return True
        from ..._sources.deferred.batch import Damaged

        self.begin(outcome)
        try:
            for filling in self._begun[outcome.task].fillings:
                filling.result()
        except Damaged:
            return False
        return True


def identity(outcome: SentOutcome) -> SentOutcome:
    """The ``collate_fn`` that torch's machinery is given, because the batch is already made."""
    return outcome
