"""Epoch: counts the batches of one iteration, ends it, and reports. Nothing else does.

How it counts
    An outcome counts when the maker has returned it, whether it holds a batch, an error or nothing.
    What the maker raises (a worker died, a timeout, Ctrl-C) counts nothing: a state that is saved
    then resumes with the batch that did not come. Batches that are on their way, to a device for
    example, do not count yet.
How it ends
    success    the maker has no more: the epoch is marked as ended, and bad samples are reported.
    early exit ``close``: nothing is marked, so a state resumes where the consumer stopped.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from typing import Any

from .._base import callers
from .._base.trace import Stamps
from .bad_samples.policy import BadSamples
from .image_counts import ImageCounts
from .maker import Maker, Outcome
from .progress import Progress

_EACH_WHOLE = (
    "For multiprocessing data-loading, this happens if each worker process gives the whole dataset "
    "instead of its own part (torch.utils.data.get_worker_info)."
)


@dataclasses.dataclass(frozen=True)
class ReportedLength:
    """What an IterableDataset said of its length, in batches of so many worker processes."""

    dataset: object
    batches: int
    workers: int

    def check(self, given: int) -> None:
        """Warn as torch does if it gave more batches."""
        if given > self.batches:
            warnings.warn(
                f"Length of IterableDataset {self.dataset} was reported to be {self.batches} (when "
                f"accessing len(dataloader)), but {given} samples have been fetched. "
                f"{_EACH_WHOLE if self.workers else ''}",
                stacklevel=callers.stacklevel(),
            )


class Epoch:
    """One iteration, of the batches of ``maker``. It updates ``progress`` and the rest.

    ``length`` is what an IterableDataset reported; None: no warning of more batches.

    Attributes:
        yielded: batches that the consumer got, and those that were skipped before.
    """

    def __init__(
        self,
        maker: Maker,
        progress: Progress,
        stamps: Stamps,
        bad: BadSamples,
        images: ImageCounts,
        length: ReportedLength | None = None,
    ) -> None:
        self.maker = maker
        self.progress = progress
        self.yielded = self._before = progress.batches
        self._settle = maker.settle
        self._stamps = stamps
        self._bad = bad
        self._images = images
        self._length = length
        self._samples = 0

    def next(self) -> Any:
        """The next batch. Raises what took its place, or StopIteration at the end."""
        if self._settle is not None:
            self._settle()
        begin_ns = time.perf_counter_ns()
        maker = self.maker
        while True:
            try:
                outcome = next(maker)
            except StopIteration:
                self._end(begin_ns)
                raise
            self._count(outcome)
            if outcome.error is not None:
                # Its traceback refers to this frame: a cycle that would keep the maker.
                error, outcome.error = outcome.error, None
                try:
                    raise error
                finally:
                    del error
            if not outcome.empty:
                break
        self.yielded += 1
        if self._length is not None:
            self._length.check(self.yielded - self._before)
        self._stamps.batch(outcome.samples, begin_ns)
        batch, outcome.batch = outcome.batch, None  # a thread may hold the outcome for a while
        return batch

    def _count(self, outcome: Outcome) -> None:
        self.progress.count(outcome)
        self._samples += outcome.samples
        if outcome.clock is not None:
            self._stamps.worker(outcome.clock)
        if outcome.report is not None:
            self._images.add(outcome.report)
        if outcome.bad:
            self._samples += len(outcome.bad)
            self._bad.add(outcome.bad, self._samples)

    def _end(self, begin_ns: int) -> None:
        if not self.progress.ended:
            self.progress.ended = not self.progress.unordered  # that never has a state
            self._bad.report(self.progress.epoch, self._samples)
        self._stamps.ended(begin_ns)
