"""What runs in a worker process: ``TaskFetcher`` turns tasks into outcomes."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess

from torch._utils import ExceptionWrapper
from torch.utils.data import Dataset, get_worker_info

from ..._base.machine import cpu, memory
from ..._base.shared_slabs import Mapped
from .fetch import Fetcher, Wanted
from .tasks import SentOutcome, Task
from .transport import Packer, sweep

_LOOK_S = 5.0


class TaskFetcher(Fetcher, Dataset[SentOutcome]):
    """The dataset that torch's worker processes are given: its indices are tasks."""

    _mapped: Mapped | None = None
    _eagerly = False  # the next batch is made again

    def __getitem__(self, task: Task) -> SentOutcome:
        info = get_worker_info()
        assert info is not None, "this process makes batches without tasks"
        if task.idle:
            return SentOutcome(task=task.number, worker=info.id, empty=True, idle=True)
        try:
            if self._mapped is None:
                self._mapped = Mapped()
            if task.again:
                return self._again(task, info.id)
            memory = None if task.slot is None else self._mapped.memory(task.slot)
            return self._sent(task, info.id, Packer(memory))
        except Exception:  # noqa: BLE001 - raised in the training process, at this batch
            sweep()
            where = f"in DataLoader worker process {info.id}"
            wrapped = ExceptionWrapper(where=where)  # type: ignore[no-untyped-call]
            return SentOutcome(
                task=task.number, worker=info.id, raised=wrapped, position=self.position()
            )

    def _sent(self, task: Task, worker: int, packer: Packer) -> SentOutcome:
        begin_ns = time.perf_counter_ns()
        if self.deferral is not None:
            self.deferral.choice.elsewhere_ns = task.elsewhere_ns
            self.deferral.forget_before(task.number if task.oldest is None else task.oldest)
        make = self.make_again if self._eagerly else self.make
        made = make(
            Wanted(task.indices, task.epoch, task.repeats, begin_ns, worker, packer, task.number)
        )
        clock = made.clock
        if clock is not None:
            clock = clock._replace(end_ns=time.perf_counter_ns())
        return SentOutcome(
            task=task.number,
            message=made.batch,
            samples=made.samples,
            empty=made.empty,
            bad=made.bad,
            missing=made.missing,
            worker=worker,
            position=None if made.position is None else made.position.delta(),
            clock=clock,
            report=made.report,
        )

    def _again(self, task: Task, worker: int) -> SentOutcome:
        """Make a batch again without deferring, and then those after it; see ``Task.again``."""
        assert self.deferral is not None, "only batches with deferred images are made again"
        state = self.deferral.state_before(task.again[0].number)
        if state is not None:
            state.restore()
        made = []
        for n, one in enumerate(task.again):
            self._eagerly = not n
            try:
                made.append(self[one])
            finally:
                self._eagerly = False
        return SentOutcome(task=task.number, worker=worker, empty=True, again=tuple(made))


class WorkerInit:
    """The ``worker_init_fn`` that torch is given; it calls the user's."""

    def __init__(self, user_init: Callable[[int], None] | None) -> None:
        self._user_init = user_init

    def __call__(self, worker_id: int) -> None:
        info = get_worker_info()
        assert info is not None, "called in a worker process"
        # get_worker_info().dataset must be the user's dataset, not the TaskFetcher that wraps it.
        object.__setattr__(info, "dataset", info.dataset.dataset)  # type: ignore[attr-defined]
        cpu.one_thread()
        memory.keep_freed()
        parent = multiprocessing.parent_process()
        if parent is not None and parent.pid != os.getppid():
            # A fork server has forked this process, and torch's worker looks for that one.
            threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
        if self._user_init is not None:
            self._user_init(worker_id)


def _end_with(parent: BaseProcess) -> None:
    """End this process when its parent has ended, also where that was killed."""
    forked_by = os.getppid()
    while parent.is_alive() and os.getppid() == forked_by:
        parent.join(_LOOK_S)  # returns at once when the parent ends, unless a child of it lives on
    os._exit(1)
