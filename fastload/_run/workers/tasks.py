"""Tasks and their outcomes: what travels between the training process and its workers.

A sampler's indices become tasks here, on the consumer's thread, with a slab for each batch; a
``Fetcher`` turns tasks into outcomes, and ``TaskIterator.open`` turns those into batches.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

from torch._utils import ExceptionWrapper
from torch.utils.data._utils.pin_memory import pin_memory

from ..._base.shared_slabs import SharedRing, Slot
from ..._base.trace import Clock
from ...errors import InternalError
from ..bad_samples.policy import BadSample
from ..progress import Position
from .transport import Message, unpack

_numbers = itertools.count()

# Whose task has which number: the pinning thread is given nothing but outcomes.
_under_way: weakref.WeakValueDictionary[int, TaskIterator] = weakref.WeakValueDictionary()


@dataclasses.dataclass(frozen=True)
class Task:
    """One batch to be made.

    Attributes:
        number: tells the tasks of a process apart.
        indices: what the sampler gave: a list of indices, or one where there are no batches; None
            for an IterableDataset.
        epoch: that it belongs to.
        repeats: how often each index came before in the epoch, or None: never.
        slot: shared memory for the batch, or None.
        idle: nothing is to be done, so that the next worker has its turn.
    """

    number: int
    indices: Any
    epoch: int
    repeats: list[int] | None = None
    slot: Slot | None = None
    idle: bool = False


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a task. One of ``batch``, ``message`` and ``error``, or nothing.

    Attributes:
        task: its number.
        worker: who did it; 0 in this process.
        samples: in the batch.
        batch: made in this process.
        message: with a batch from another process.
        error: what was raised in another process; or in this one, where a later batch must wait.
        bad: samples that could not be made.
        missing: with ``on_error="refill"``, their places in the batch, which then is not made.
        position: of an iterable dataset, after this batch.
        empty: there is no batch: all its samples were skipped, or there are no more.
        idle: nothing was done, so that the next worker has its turn.
        clock: when the batch was made; None where there is none.
    """

    task: int
    worker: int = 0
    samples: int = 0
    batch: Any = None
    message: Message | None = None
    error: ExceptionWrapper | Exception | None = None
    bad: tuple[BadSample, ...] = ()
    missing: tuple[int, ...] = ()
    position: Position | None = None
    empty: bool = False
    idle: bool = False
    clock: Clock | None = None

    def pin_memory(self) -> Outcome:
        """The same with its batch in pinned memory. Called by torch, on its pinning thread."""
        tasks = _under_way.get(self.task)
        if self.error is not None or self.empty or tasks is None:
            return self
        batch = pin_memory(tasks.open(self))  # type: ignore[no-untyped-call]
        return dataclasses.replace(self, message=None, batch=batch)


class Tasks:
    """What torch's machinery takes for a sampler: the tasks of one epoch after the other.

    Args:
        sized: what the length is taken of.
        ring: slabs for the batches, or None.
        repeats: whether the order may repeat an index and that matters.
        keep: tasks are kept until somebody takes them out of ``TaskIterator.kept``.
    """

    def __init__(
        self, sized: Any, ring: SharedRing | None, *, repeats: bool, keep: bool = False
    ) -> None:
        self._sized = sized
        self._ring = ring
        self._repeats = repeats
        self._keep = keep
        self._order: Callable[[], Iterable[Any]] = tuple
        self._epoch = self._skip = self._idle = 0
        self.current: TaskIterator | None = None

    def begin(
        self, epoch: int, order: Callable[[], Iterable[Any]], skip: int, idle: int = 0
    ) -> None:
        """The next iteration is of ``epoch``: ``order()`` without its first ``skip``.

        The first ``idle`` workers have had their turn.
        """
        self._epoch, self._order, self._skip, self._idle = epoch, order, skip, idle
        self.current = None

    def __iter__(self) -> TaskIterator:
        # Torch asks twice where it has workers. The order is asked for its iterator when torch
        # would ask the sampler for it.
        self.current = TaskIterator(
            iter(self._order()),
            self._epoch,
            self._skip,
            self._idle,
            self._ring,
            self._repeats,
            self._keep,
        )
        return self.current

    def __len__(self) -> int:
        return len(self._sized)


class TaskIterator(Iterator[Task]):
    """The tasks of one epoch, and the slabs that were reserved for them."""

    def __init__(
        self,
        order: Iterator[Any],
        epoch: int,
        skip: int,
        idle: int,
        ring: SharedRing | None,
        repeats: bool,
        keep: bool,
    ) -> None:
        self._order = order
        self._epoch = epoch
        self._skip = skip
        self._idle = idle
        self._ring = ring
        self._given: dict[int, Any] = {}
        self._repeats = Repeats() if repeats else None
        self._stopped = False
        self._keep = keep
        self._inserted: collections.deque[Task] = collections.deque()
        self.kept: dict[int, Task] = {}
        """Tasks by their numbers, if they are to be kept."""

    @property
    def counts(self) -> bool:
        """Whether tasks say how often their indices came before."""
        return self._repeats is not None

    def start(self) -> None:
        """Draw the beginning of the order now, rather than with the first task."""
        self._leave_out()
        self._order = drawn(self._order)

    def _leave_out(self) -> None:
        for _ in range(self._skip):
            self._count(next(self._order, []))
        self._skip = 0

    def stop(self) -> None:
        """Give no more tasks."""
        self._stopped = True

    def __next__(self) -> Task:
        self._leave_out()
        if self._stopped:
            raise StopIteration
        if self._idle:
            self._idle -= 1
            return Task(next(_numbers), None, self._epoch, idle=True)
        if self._inserted:
            return self._inserted.popleft()
        indices = next(self._order)
        return self._task(indices, self._count(indices))

    def insert(self, indices: list[Any], repeats: list[int] | None) -> int:
        """Let the next task be this one; its number."""
        task = self._task(indices, repeats)
        self._inserted.append(task)
        return task.number

    def forget(self, outcome: Outcome) -> None:
        """Nobody wants the batch of ``outcome``: its slab is free."""
        _under_way.pop(outcome.task, None)
        self._given.pop(outcome.task, None)

    def _task(self, indices: Any, repeats: list[int] | None) -> Task:
        number = next(_numbers)
        lease = None if self._ring is None else self._ring.lease()
        slot = None
        if lease is not None:
            slot, self._given[number] = lease
        _under_way[number] = self
        task = Task(number, indices, self._epoch, repeats, slot)
        if self._keep:
            self.kept[number] = task
        return task

    def open(self, outcome: Outcome) -> Any:
        """The batch of ``outcome``; its slab is free when nobody refers to the batch any more."""
        _under_way.pop(outcome.task, None)
        memory = self._given.pop(outcome.task, None)
        if outcome.error is not None:
            error = _raised(outcome.error)
            try:
                raise error
            finally:
                del error  # its traceback holds this frame
        if outcome.message is None:
            return outcome.batch
        assert self._ring is not None, "messages are of worker processes, for which there is a ring"
        self._ring.wanted(outcome.message.nbytes)
        self._ring.left |= outcome.message.left > 0
        return unpack(outcome.message, memory, copy=self._ring.crowded)

    def _count(self, indices: Any) -> list[int] | None:
        return None if self._repeats is None else self._repeats.of(indices)


class Repeats:
    """How often the indices of an epoch came before."""

    def __init__(self) -> None:
        self._times: collections.Counter[Hashable] = collections.Counter()

    def of(self, indices: Any) -> list[int] | None:
        """Count ``indices``, a list or one; how often each came before, None where none did."""
        before = []
        for index in indices if isinstance(indices, list) else [indices]:
            key = index if isinstance(index, Hashable) else repr(index)
            before.append(self._times[key])
            self._times[key] += 1
        return before if any(before) else None


def same(outcome: Outcome) -> Outcome:
    """What torch's machinery is given for a collate_fn: the batch is made already."""
    return outcome


def _raised(wrapper: ExceptionWrapper | Exception) -> BaseException:
    """What the wrapper raises, without the frames of raising it.

    They refer to the exception and to the iterator: a cycle, and an iterator of torch's that is
    garbage in a cycle has lost the threads that tell its workers to end, and waits 5 s for each.
    """
    if isinstance(wrapper, Exception):
        return wrapper
    try:
        wrapper.reraise()  # type: ignore[no-untyped-call]
    except BaseException as error:  # noqa: BLE001 - raised by the caller
        return error.with_traceback(None)
    raise InternalError("an exception from a worker could not be raised again")


def drawn(order: Iterator[Any]) -> Iterator[Any]:
    """The same, whose first item has been asked for."""
    try:
        first = next(order)
    except StopIteration:
        return iter(())
    return _behind(first, order)


def _behind(first: Any, order: Iterator[Any]) -> Iterator[Any]:
    """Not by itertools: a user's iterator may begin anew when it is asked for its iterator."""
    yield first
    while True:
        try:
            following = next(order)
        except StopIteration:
            return
        yield following
