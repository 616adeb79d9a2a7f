"""One epoch of a loader that runs the user's Dataset, in worker processes or in this one.

Torch's DataLoader does the work of processes, queues, signals, timeouts and pinning. It is given
tasks for indices and a ``Fetcher`` for a dataset, and so hands out ``Outcome``s, which become
batches here.

How it ends: as torch's own iterator does, which this one only wraps. An iterable dataset has ended
when every worker has said so; then no more tasks are given, and torch's iterator runs out.
"""

from __future__ import annotations

import errno
import functools
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..._base.torch_loader import DataLoader
from ..._base.trace import Stamps
from ...errors import UsageError
from ..bad_samples.policy import BadSamples
from ..bad_samples.refill import Refill
from ..progress import Position, Progress
from .background import Background
from .completed import Completed
from .fetch import Fetcher
from .tasks import Outcome, Task, TaskIterator, Tasks


class WorkerIterator(Iterator[Any]):
    """Iterates over the batches of one epoch.

    Args:
        inner: torch's loader of outcomes.
        tasks: its sampler.
        progress: is kept up to date.
        bad: samples that cannot be made are counted there.
        stamps: where times are added up.
        reported: the length that an iterable dataset reported, or None.
        ahead: batches that a thread makes ahead; 0: none does.
        refill, number: where batches are filled up from, and which batch comes first; or None.
        turn: held by the thread while it makes a batch; threads of earlier iterations may not have
            ended yet, and the dataset is the user's.
    """

    def __init__(
        self,
        inner: DataLoader[Outcome],
        tasks: Tasks,
        progress: Progress,
        bad: BadSamples,
        stamps: Stamps,
        reported: int | None,
        ahead: int = 0,
        refill: Refill | None = None,
        number: int = 0,
        turn: threading.Lock | None = None,
    ) -> None:
        self._wrapped: Any = _in_this_process(iter(inner))
        self._pid = os.getpid() if hasattr(self._wrapped, "_workers") else None
        assert tasks.current is not None  # torch's iterator has asked for its sampler's
        self._tasks: TaskIterator = tasks.current
        self._fetcher: Fetcher = inner.dataset  # type: ignore[assignment]
        if ahead:
            pinned = inner.pin_memory and torch.cuda.is_available()
            make = functools.partial(_make, self._fetcher, turn or threading.Lock(), pinned)
            self._wrapped = Background(self._tasks, make, ahead, self._wrapped)
        if refill is not None:
            self._wrapped = Completed(self._wrapped, self._tasks, refill, number)
        self._refill = refill
        self._came = _counter(self._wrapped)
        self._progress = progress
        self._bad = bad
        self._stamps = stamps
        self._reported = reported
        self._yielded = self._samples = 0
        workers = max(1, inner.num_workers)
        if (self._fetcher.iterable or self._fetcher.stateful) and not progress.workers:
            progress.workers = [Position() for _ in range(workers)]

    def __len__(self) -> int:
        return len(self._wrapped)

    def __next__(self) -> Any:
        begin = time.perf_counter_ns()
        while True:
            outcome = self._outcome(begin)
            self._count(outcome)
            if outcome.clock is not None:
                self._stamps.worker(outcome.clock)
            batch = self._open(outcome)
            if not outcome.empty:
                break
        self._yielded += 1
        if self._reported is not None and self._yielded > self._reported:
            dataset, workers = self._fetcher.dataset, self._wrapped._num_workers
            warnings.warn(too_long(dataset, self._reported, self._yielded, workers), stacklevel=2)
        self._stamps.batch(outcome.samples, begin)
        return batch

    def ready(self) -> bool:
        """Whether ``next`` would not wait, as far as can be told.

        True where a batch is made in the call that asks for it.
        """
        wrapped = self._wrapped
        if isinstance(wrapped, Background):
            return wrapped.ready()
        arrived = getattr(wrapped, "_data_queue", None)
        if arrived is None:
            return True
        # As torch keeps what came before its turn: (worker, data) in the place of (worker,).
        known = wrapped._task_info.get(wrapped._rcvd_idx, ())
        return len(known) == 2 or not arrived.empty()

    def close(self) -> None:
        """End this epoch: worker processes that do not persist end with torch's iterator."""
        self._wrapped = iter(())

    def start(self) -> None:
        """Draw the beginning of the order now, where torch's iterator waits for the first batch."""
        self._tasks.start()

    def _open(self, outcome: Outcome) -> Any:
        """The batch. RuntimeError, as from torch, where tensors sent torch's way are lost."""
        if outcome.message is None:
            return self._tasks.open(outcome)
        try:
            return self._tasks.open(outcome)
        except (EOFError, ConnectionError) as error:
            raise RuntimeError(
                f"DataLoader worker {outcome.worker} exited unexpectedly: a batch that it had made "
                "can no longer be received"
            ) from error
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            raise RuntimeError(
                "too many open files: tensors that come from worker processes in files of their "
                "own take a descriptor each while they are in use. Raise the limit (ulimit -n), or "
                "call torch.multiprocessing.set_sharing_strategy('file_system') at the beginning"
            ) from error

    def _outcome(self, begin: int) -> Outcome:
        if self._pid not in (None, os.getpid()):
            raise UsageError("the iterator is of the process before the fork; make one in this one")
        came = self._came()
        try:
            outcome: Outcome = next(self._wrapped)
        except StopIteration:
            self._end()
            self._stamps.ended(begin)
            raise
        except Exception:
            # A batch that failed is behind us, as in torch. One that did not come, as its worker
            # is late or gone, is the next one still.
            late = came is not None and came == self._came()
            if not (late or self._fetcher.iterable):
                self._progress.batch()
            raise
        return outcome

    def _count(self, outcome: Outcome) -> None:
        """Note what the outcome says, whether or not it carries a batch."""
        progress = self._progress
        self._samples += outcome.samples + len(outcome.bad)
        if progress.workers:
            progress.turn = (outcome.worker + 1) % len(progress.workers)
            if outcome.position is not None:
                last = progress.workers[outcome.worker]
                progress.workers[outcome.worker] = outcome.position.after(last)
                if all(worker.ended for worker in progress.workers):
                    self._tasks.stop()
        if not outcome.idle and not (self._fetcher.iterable and outcome.empty):
            progress.batch()
        if self._refill is not None:
            progress.refilled = self._refill.spent
        self._bad.add(outcome.bad, self._samples)

    def _end(self) -> None:
        if not self._progress.ended:
            self._progress.ended = True
            if self._pid is None:
                self._fetcher.settle(self._progress.epoch)
            self._bad.report(self._progress.epoch, self._samples)

    def __getattr__(self, name: str) -> Any:
        if name == "_wrapped":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self._wrapped, name)

    def __reduce__(self) -> Any:
        return self._wrapped.__reduce__()  # torch's says that it cannot be pickled


def _counter(wrapped: Any) -> Callable[[], int | None]:
    """What tells how many batches came of ``wrapped``; None where each is made when asked for."""
    if isinstance(wrapped, Completed):
        return lambda: wrapped.number
    if isinstance(wrapped, Background):
        return lambda: wrapped.came
    if hasattr(wrapped, "_rcvd_idx"):
        return lambda: int(wrapped._rcvd_idx)
    return lambda: None


# Torch's iterators with workers; in a child they are to be left alone.
_alive: weakref.WeakSet[Any] = weakref.WeakSet()
_registered = False


def _in_this_process(iterator: Any) -> Any:
    """The same, which after a fork does not end its parent's workers when the child lets it go."""
    global _registered
    if hasattr(iterator, "_workers"):
        _alive.add(iterator)
        if not _registered:
            os.register_at_fork(after_in_child=_leave_alone)
            _registered = True
    return iterator


def _leave_alone() -> None:
    # As if it had been shut down already: the event and the queues by which it would are shared.
    for iterator in list(_alive):
        iterator._shutdown = True


def too_long(dataset: Any, reported: int, yielded: int, workers: int = 0) -> str:
    """What is warned of when an IterableDataset gives more batches than its length says."""
    advice = ""
    if workers:
        advice = (
            "For multiprocessing data-loading, this happens where each worker process gives "
            "the whole dataset instead of its own part (torch.utils.data.get_worker_info)."
        )
    return (
        f"Length of IterableDataset {dataset} was reported to be {reported} (when accessing "
        f"len(dataloader)), but {yielded} samples have been fetched. {advice}"
    )


def _make(fetcher: Fetcher, turn: threading.Lock, pinned: bool, task: Task) -> Outcome:
    with turn:
        outcome = fetcher[task]
    return outcome.pin_memory() if pinned else outcome
