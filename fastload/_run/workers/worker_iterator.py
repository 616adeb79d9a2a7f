"""WorkerIterator: an epoch of a user's Dataset in worker processes.

torch's DataLoader does the work of processes, queues, signals, timeouts and pinning. It is given
tasks in place of indices and a ``Fetcher`` in place of a dataset, and so it returns ``Outcome``s,
which become batches here.

How it ends: as torch's own iterator does, which this one wraps. An iterable dataset has ended when
every worker has said so; then no more tasks are given, and torch's iterator runs out.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from typing import Any

from ..._base import callers
from ..._base.torch_loader import DataLoader
from ..._base.wrapped_iterator import WrappedIterator
from ...errors import type_next
from ..epoch_plan import EpochPlan
from ..progress import Position
from ..stream import ClosedStream, check_process
from .fetch import Fetcher
from .filled import Filled
from .refilled import Refilled
from .tasks import Outcome, OutcomeIterator, Tasks
from .torch_iterator import processes

MAIN = 'if __name__ == "__main__":'


class WorkerIterator(WrappedIterator[Any]):
    """Iterates over the batches of one epoch.

    Args:
        inner: torch's loader of outcomes.
        tasks: its sampler.
        plan: the epoch's; its progress is updated with every batch.
        reported: the length that an iterable dataset reported, or None.
    """

    def __init__(
        self,
        inner: DataLoader[Outcome],
        tasks: Tasks,
        plan: EpochPlan,
        *,
        reported: int | None,
    ) -> None:
        filled = Filled(inner, tasks)
        self._wrapped: OutcomeIterator = filled
        self._tasks = filled.tasks
        self._num_workers = inner.num_workers
        self._pid = os.getpid() if inner.num_workers else None
        assert isinstance(inner.dataset, Fetcher)
        self._fetcher = inner.dataset
        if plan.refill is not None:
            self._wrapped = Refilled(filled, plan.refill, plan.skip)
        self._refill = plan.refill
        self._progress = progress = plan.progress
        self._bad = plan.bad
        self._images = plan.images
        self._stamps = plan.stamps
        self._reported = reported
        self._yielded = self._samples = 0
        if self._fetcher.resumable is not None and not progress.workers:
            progress.workers = [Position() for _ in range(max(1, inner.num_workers))]

    def __next__(self) -> Any:
        begin = time.perf_counter_ns()
        while True:
            outcome = self._outcome(begin)
            self._count(outcome)
            if outcome.report is not None:
                self._images.add(outcome.report)
            if outcome.clock is not None:
                self._stamps.worker(outcome.clock)
            batch = self._open(outcome)
            if not outcome.empty:
                break
        self._yielded += 1
        if self._reported is not None and self._yielded > self._reported:
            warn_of_length(self._fetcher.dataset, self._reported, self._yielded, self._num_workers)
        self._stamps.batch(outcome.samples, begin)
        return batch

    def ready(self) -> bool:
        """As in BatchStream. With workers it may be True too early: another batch has arrived."""
        return self._wrapped.ready()

    def close(self) -> None:
        """End this epoch. Worker processes end with torch's iterator, unless they persist."""
        self._wrapped = _NoOutcomes()

    def start(self) -> None:
        """Draw the start of the order now; torch's iterator would wait for the first batch."""
        self._tasks.start()

    def _open(self, outcome: Outcome) -> Any:
        """The batch of ``outcome``. RuntimeError, as from torch, if its tensors got lost."""
        self._tasks.given.pop(outcome.task, None)
        if outcome.message is None:
            return self._tasks.open(outcome)
        try:
            return self._tasks.open(outcome)
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

    def _outcome(self, begin: int) -> Outcome:
        if self._pid is not None:
            check_process(self._pid)
        consumed = self._wrapped.consumed
        try:
            outcome = next(self._wrapped)
        except StopIteration:
            self._end()
            self._stamps.ended(begin)
            raise
        except Exception as error:
            # As in torch, a batch that failed counts as consumed. A batch that was not received,
            # because its worker is late or has died, remains the next one.
            late = consumed == self._wrapped.consumed
            if not (late or self._fetcher.iterable):
                self._progress.batch()
            if self._yielded == 0 and _runs_script_again(processes(self._wrapped)):
                raise RuntimeError(
                    f"{error}: this way of starting workers runs your script again in each of "
                    "them, and it would start a loader there too. Put what should run once below "
                    f"the next line, indented{type_next(MAIN)}"
                ) from error
            raise
        return outcome

    def _count(self, outcome: Outcome) -> None:
        """Update progress and bad samples from an outcome, whether or not it has a batch."""
        progress = self._progress
        self._samples += outcome.samples + len(outcome.bad)
        if progress.workers:
            progress.next_worker = (outcome.worker + 1) % len(progress.workers)
            if outcome.position is not None:
                last = progress.workers[outcome.worker]
                progress.workers[outcome.worker] = outcome.position.applied_to(last)
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
            if self._pid is None and self._fetcher.resumable is not None:
                self._fetcher.resumable.finish(self._progress.epoch)
            self._bad.report(self._progress.epoch, self._samples)


class _NoOutcomes(ClosedStream):
    """Takes the place of torch's iterator when the epoch is closed."""

    consumed = 0


def warn_of_length(dataset: object, reported: int, yielded: int, workers: int = 0) -> None:
    """Warn as torch does when an IterableDataset gives more batches than its length says."""
    advice = ""
    if workers:
        advice = (
            "For multiprocessing data-loading, this happens if each worker process gives the "
            "whole dataset instead of its own part (torch.utils.data.get_worker_info)."
        )
    warnings.warn(
        f"Length of IterableDataset {dataset} was reported to be {reported} (when accessing "
        f"len(dataloader)), but {yielded} samples have been fetched. {advice}",
        stacklevel=callers.stacklevel(),
    )


def _runs_script_again(workers: Sequence[BaseProcess]) -> bool:
    """Whether they import a script that has no part only for the main process.

    They do where they are spawned (macOS, Windows) or come from a server (Python 3.14).
    """
    if not workers:
        return False
    # None where the process is of the default kind.
    given: str | None = getattr(workers[0], "_start_method", None)
    method = given or multiprocessing.get_start_method()
    script = getattr(sys.modules["__main__"], "__file__", None)
    if method == "fork" or script is None or not os.path.isfile(script):
        return False
    with open(script, "rb") as file:
        return b"__name__" not in file.read()
