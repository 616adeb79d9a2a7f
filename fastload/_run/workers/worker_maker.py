"""WorkerMaker: the batches of a user's Dataset, made in worker processes.

torch's DataLoader does the work of processes, queues, signals, timeouts and pinning. It is given
tasks in place of indices and a ``TaskFetcher`` in place of a dataset, and so it returns outcomes.

Workers run the user's code and send what was recorded (``transport.py``); the core's threads in
this process fill the batches. A batch is begun as soon as its message is here, not when the
consumer asks for it, so several are being filled while the consumer computes.

How it ends
    success   a batch is complete when it is handed over. An iterable dataset has ended when every
              worker has said so; then no more tasks are given, and torch's iterator runs out.
    damaged   an image cannot be made. Its worker is asked to make the batch again without
              deferring, from the generators' states before it, by a task that is inserted. What
              the user's code draws then may differ, so the worker also makes all its later batches
              again that were in flight. Outcomes that arrive meanwhile wait for their turn.
    error     a worker died, or a timeout: raised; the next ``next`` continues waiting. An outcome
              that torch had taken out of its queue by then is lost, and counts with the next one.
"""

from __future__ import annotations

import collections
import errno
import functools
import os
import sys
from collections.abc import Sequence
from typing import Any, cast

from torch._utils import ExceptionWrapper

from ..._base.shared_slabs import SharedRing
from ..._base.torch_loader import PlainLoader
from ...errors import InternalError, type_next
from ..config import LoaderConfig
from ..cursor import EpochCursor
from ..epoch_plan import EpochPlan
from ..maker import Maker, NoMaker, PersistentWorkers, check_process
from ..progress import Position
from ..resources import Resources, slabs_held
from .choice import Choice
from .dataset_epoch import decoder_of, fetcher_of
from .queues import ArrivalQueue, with_arrivals
from .task_fetcher import TaskFetcher, WorkerInit
from .tasks import SentOutcome, Tasks, identity
from .torch_iterator import TorchWorkersIterator, alive, has_result, processes

MAIN = 'if __name__ == "__main__":'


def worker_maker(
    plan: EpochPlan,
    resources: Resources,
    cursor: EpochCursor,
    kept: PersistentWorkers,
    choice: Choice | None,
) -> WorkerMaker:
    """As ``dataset_epoch.maker``, which imports this with workers only: it takes as long as it
    takes to load fifty small images. ``choice``: as for ``fetcher_of``.
    """
    config, outcomes = plan.config, kept.holder
    if not isinstance(outcomes, PlainLoader) or not _usable(config, outcomes):
        outcomes = _outcome_loader(plan, resources, choice)
    progress = plan.progress
    idle = progress.positions.turn if plan.resumed else 0
    tasks, fetcher = outcomes.sampler, outcomes.dataset
    assert isinstance(tasks, Tasks) and isinstance(fetcher, TaskFetcher)
    tasks.begin(progress.epoch, plan.order(), skip=plan.skip, idle=idle, times=plan.times)
    workers = progress.positions.workers
    if fetcher.resumable is not None and not workers:
        workers += [Position() for _ in range(config.num_workers)]
    maker = WorkerMaker(outcomes, iterable=config.iterable, positions=workers)
    if config.persistent:
        kept.holder = outcomes
        if cursor.base_seed is None:
            cursor.base_seed = maker.base_seed
    return maker


def _usable(config: LoaderConfig, outcomes: PlainLoader[SentOutcome]) -> bool:
    """Whether there are as many workers, all alive; torch would wait for a dead one."""
    same = config.persistent and outcomes.num_workers == config.num_workers
    return same and all(process.is_alive() for process in processes(outcomes._iterator))


def _outcome_loader(
    plan: EpochPlan, resources: Resources, choice: Choice | None
) -> PlainLoader[SentOutcome]:
    config = plan.config
    count, ahead = config.num_workers, config.num_workers * (config.prefetch_factor or 0)
    if resources.ring is None:
        # batches ahead, the consumer's batch, and the one that it has just freed
        resources.ring = SharedRing(ahead + 2 + slabs_held(config, resources))
    fetcher = fetcher_of(plan, resources, choice, TaskFetcher)
    assert isinstance(fetcher, TaskFetcher)
    tasks = Tasks(
        sized=config.index_sampler,
        ring=resources.ring,
        repeats=plan.repeats,
        workers=count,
        decoder=functools.partial(decoder_of, config, resources) if choice else None,
        choice=choice or Choice(),
    )
    loader = PlainLoader(
        fetcher,
        batch_size=None,
        sampler=tasks,
        num_workers=count,
        collate_fn=identity,  # type: ignore[arg-type]
        pin_memory=config.pinned,
        pin_memory_device=config.pin_memory_device,
        timeout=config.timeout,
        generator=plan.seeding(),
        prefetch_factor=config.prefetch_factor,
        persistent_workers=config.persistent_workers,
        multiprocessing_context=with_arrivals(config.multiprocessing_context),
        worker_init_fn=WorkerInit(config.worker_init_fn),
    )
    loader.warns = resources.governor is None  # in each epoch, as torch; "auto" chose them itself
    return loader


class WorkerMaker(Maker):
    """Has torch's worker processes make the batches of one epoch.

    Args:
        outcomes: torch's loader, with the tasks of the epoch.
        iterable: whether the dataset is an IterableDataset.
        positions: of the workers when the epoch begins; empty where they have none.
    """

    def __init__(
        self, outcomes: PlainLoader[SentOutcome], *, iterable: bool, positions: Sequence[Position]
    ) -> None:
        self._method: str = outcomes.multiprocessing_context.get_start_method()
        self._dataset_type = type(getattr(outcomes.dataset, "dataset", None))
        try:
            self._torch = cast(TorchWorkersIterator, iter(outcomes))
        except (OSError, EOFError, RuntimeError) as error:  # a fork server runs the script first
            self._explain(error)
            raise
        alive.add(self._torch)
        self.base_seed = self._torch._base_seed
        tasks = outcomes.sampler
        assert isinstance(tasks, Tasks) and tasks.current is not None, (
            "torch has called iter(tasks)"
        )
        self._tasks = tasks.current
        self._iterable = iterable
        self._once = bool(positions)  # no batch can be made again
        self._reading = {w for w, position in enumerate(positions) if not position.ended}
        self._pid = os.getpid()
        self._first = True
        self._asked_ahead = self._tasks.asked  # before any outcome was returned
        self._complete: collections.deque[SentOutcome] = collections.deque()
        self._early: collections.deque[SentOutcome] = collections.deque()
        self._instead: dict[int, SentOutcome] = {}  # by task number
        self._awaited: SentOutcome | None = None
        self._requested: int | None = None  # number of the task that has batches made again
        if self._tasks.recorded:
            self._arrived()

    @property
    def torch(self) -> Any:
        return self._torch

    def __next__(self) -> SentOutcome:
        check_process(self._pid)
        try:
            outcome = self._complete.popleft() if self._complete else self._completed()
        except Exception as error:
            if self._first:
                self._explain(error)
            raise
        self._open(outcome)
        outcome.taken = self._taken(outcome)
        self._first = False
        return outcome

    def _explain(self, error: Exception) -> None:
        """Say so if workers cannot start since they import what the program defines."""
        if self._method == "fork":
            return
        script = getattr(sys.modules["__main__"], "__file__", None)
        if script is None and self._dataset_type.__module__ == "__main__":
            raise RuntimeError(
                f"{error}: this way of starting workers imports {self._dataset_type.__name__} in "
                "each of them, and nothing can be imported from a notebook. Put the class into a "
                "file that the notebook imports, or give multiprocessing_context='fork'"
            ) from error
        if script is not None and _is_without_main(script):
            raise RuntimeError(
                f"{error}: this way of starting workers runs your script again in each of them, "
                "and it would start a loader there too. Put what should run once below the next "
                f"line, indented{type_next(MAIN)}"
            ) from error

    def ready(self) -> bool:
        """As in Maker. It may be True too early: another batch has arrived."""
        return bool(self._complete or self._early) or has_result(self._torch)

    def close(self) -> None:
        """As in Maker. Worker processes end with torch's iterator, unless they persist."""
        self._torch = cast(TorchWorkersIterator, NoMaker())

    def ask(self, indices: list[Any], repeats: list[int] | None) -> int:
        """As in Remaker: insert a task for these samples; return its number."""
        number = self._tasks.insert(indices, repeats if repeats and any(repeats) else None)
        self._take_inserted()
        return number

    def answer(self, ticket: int) -> SentOutcome:
        """As in Remaker. Its worker gets to the task after those that were handed out before."""
        outcome = self._completed()
        while outcome.task != ticket:
            self._complete.append(outcome)
            outcome = self._completed()
        self._open(outcome)
        return outcome

    def _taken(self, outcome: SentOutcome) -> int:
        """How many batches of the order ``outcome`` uses up."""
        if outcome.idle:
            return 0
        taken = 1
        while self._tasks.ordered.popleft() != outcome.task:
            taken += 1
        if not self._iterable:
            return taken
        if outcome.position is not None and outcome.position.ended:
            self._reading.discard(outcome.worker)
            if not self._reading:
                self._tasks.stop()
        return 0 if outcome.empty else 1

    def _open(self, outcome: SentOutcome) -> None:
        """Put the batch into ``outcome``. RuntimeError, as from torch, if its tensors got lost."""
        self._tasks.given.pop(outcome.task, None)
        if outcome.report is not None:
            self._tasks.choice.learn(outcome.report)
        elif self._tasks.records and self._tasks.choice.measures:
            outcome.report = self._tasks.choice.passed(outcome.samples)
        if outcome.raised is not None:
            outcome.error = _raised(outcome.raised)
        try:
            outcome.batch = self._tasks.open(outcome)
        except (EOFError, ConnectionError) as error:
            raise RuntimeError(
                f"DataLoader worker {outcome.worker} exited unexpectedly: a batch that it made "
                "can no longer be received"
            ) from error
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            raise RuntimeError(
                "too many open files: each tensor that a worker process sends in a shared file "
                "uses a file descriptor while it is in use. Raise the limit (ulimit -n), or call "
                "torch.multiprocessing.set_sharing_strategy('file_system') at the start"
            ) from error

    # --- images that workers recorded -------------------------------------------------------------

    def _completed(self) -> SentOutcome:
        """The next outcome that counts, with all of its images."""
        if not self._tasks.records:
            return cast(SentOutcome, next(self._torch))
        outcome = self._awaited or self._following()
        while True:
            self._awaited = outcome
            if self._tasks.recorded:  # else nothing is there to be filled
                for arrived in self._arrived():
                    self._tasks.begin(arrived)
            if self._once or self._tasks.complete(outcome):
                break
            outcome = self._made_again(outcome)
        self._awaited = None
        return outcome

    def _following(self) -> SentOutcome:
        """The next outcome that counts."""
        outcome: SentOutcome = self._early.popleft() if self._early else next(self._torch)
        instead = self._instead.pop(outcome.task, None)
        if instead is None:
            return outcome
        self._tasks.replaced(outcome)
        return instead

    def _take_inserted(self) -> None:
        """Have torch take a task that was inserted, if it might not ask for another one."""
        # With each outcome that it returns, torch asks for a task.
        if self._tasks.count == self._tasks.asked - self._asked_ahead:
            self._asked_ahead += 1
            self._torch._try_put_index()

    def _arrived(self) -> list[SentOutcome]:
        """What arrived since the last call and is not replaced, in whatever order."""
        # With pinned memory, torch's thread takes it out of the queue, and completes it.
        queue = self._torch._data_queue
        arrived: list[Any] = queue.arrived() if isinstance(queue, ArrivalQueue) else []
        return [
            outcome
            for _, outcome in arrived
            if isinstance(outcome, SentOutcome) and outcome.task not in self._instead
        ]

    def _made_again(self, outcome: SentOutcome) -> SentOutcome:
        """``outcome`` made again by its worker, without deferring."""
        if self._requested is None:  # else an error has ended the wait for it
            self._requested = self._tasks.insert_again(outcome.task)
            self._take_inserted()
        received: SentOutcome = next(self._torch)
        while received.task != self._requested:
            self._early.append(received)
            received = next(self._torch)
        self._tasks.given.pop(self._requested)
        self._requested = None
        assert received.worker == outcome.worker, "torch gives tasks to its workers in turn"
        if received.raised is not None:
            received.task = outcome.task
            return received
        made, *others = received.again
        self._instead |= {one.task: one for one in others}
        return made


def _raised(wrapper: ExceptionWrapper) -> BaseException:
    """The exception that the wrapper raises, without the frames of raising it.

    Those frames refer to the exception and to the iterator. In such a cycle, torch's iterator would
    be collected after the threads that tell its workers to end, and wait 5 s for each worker.
    """
    try:
        wrapper.reraise()  # type: ignore[no-untyped-call]
    except BaseException as error:  # noqa: BLE001 - raised by the caller
        return error.with_traceback(None)
    raise InternalError("an exception from a worker could not be raised again")


def _is_without_main(script: str) -> bool:
    """Whether it has no part only for the main process."""
    if not os.path.isfile(script):
        return False
    with open(script, "rb") as file:
        return b"__name__" not in file.read()
