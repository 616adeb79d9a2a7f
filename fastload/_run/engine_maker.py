"""One epoch of a loader whose batches an engine fills.

How it runs
    The consumer (the thread of the training loop) draws the order, because samplers may be the
    user's code, and when torch would, because they may share a generator. It keeps ``prefetch``
    index batches in a queue. One producer thread turns them into tickets of the engine, waits for
    each in order, and passes on the images with their record numbers. At every ``next`` the
    consumer first takes a batch of images and then adds an index batch: by the time the engine
    needs memory for that, the consumer has dropped the batch before, so ``prefetch + 1`` slabs are
    enough.
How it ends
    success    the order is exhausted: the producer ends after the last batch.
    failure    an error, also of the sampler, takes the place of its batch and is raised at that
               ``next``. The batches after it are still delivered, as in torch's DataLoader. A
               sample that ``on_error`` skips or replaces is no failure
               (``_run/bad_samples/batch_filler.py``).
    early exit ``close`` (also called when the interpreter exits) ends the queue, cancels what is
               being filled, and joins the producer. When the iterator is deleted, the producer ends
               by itself after the batch that it waits for.
    fork       a child has no producer: there ``next`` raises, and deleting the iterator does
               nothing.
With ``prefetch=0`` there is no thread: every batch is made inside ``next``.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Sized
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.trace import Stamps
from .bad_samples.batch_filler import FilledBatch
from .drawing import IndexBatches
from .maker import Maker, Outcome
from .point import PREFETCH
from .producer import Pipeline, below

if TYPE_CHECKING:
    from .governor import Governor, Pace

# Batches of this size and above are a large part of a loop's memory. Smaller ones gain more speed
# from a second batch ahead than it takes: 5 % for 64 photos, 38 MB.
_LARGE_NBYTES = 64 << 20

# At the end of a batch a thread is idle for half a sample on average: 3 % of so many samples.
_SAMPLES_PER_THREAD = 16


def default_prefetch(
    sample_nbytes: int | None = None, batch_size: int | None = None, threads: int = 1
) -> int:
    """Batches ahead of the consumer where ``prefetch_factor`` is not given, or torch's default.

    2, or 1 where batches are large: then memory holds the batch that the loop works on and the
    one that is being filled. But not where ``threads`` would be idle too long between two
    batches.
    """
    if sample_nbytes is None or batch_size is None:
        return PREFETCH
    large = sample_nbytes * batch_size >= _LARGE_NBYTES
    return 1 if large and batch_size >= _SAMPLES_PER_THREAD * threads else PREFETCH


class EngineMaker(Maker):
    """Has an engine make the batches of one epoch.

    Args:
        pipeline: not started yet.
        sized: has the iterator's ``len``; asked only for that, because it may have none.
        prefetch: batches ahead of the consumer; 0: no thread.
        ahead_in_torch: batches that DataLoader asks its sampler for ahead of the consumer.
        drawn_by_next: the first batch is drawn from generators, in ``next`` as with a DataLoader
            without workers, so nothing starts before.
    """

    _workers: tuple[()] = ()
    """Worker processes, under the name of torch's iterator: there are none."""

    def __init__(
        self,
        order: IndexBatches,
        pipeline: Pipeline,
        *,
        sized: Sized,
        assemble: Callable[[FilledBatch], Any],
        prefetch: int,
        ahead_in_torch: int,
        drawn_by_next: bool,
        stamps: Stamps,
        governor: Governor | None,
    ) -> None:
        self._order = order
        self._pipeline = pipeline
        self._sized = sized
        self._assemble = assemble
        self._stamps = stamps
        self._prefetch = prefetch
        self._ahead_in_torch = ahead_in_torch
        self._drawn = collections.deque[np.ndarray | BaseException | None]()
        self._ordered = 0
        self._given = 0  # of the batches that the pipeline gave: those in outcomes
        self._pace: Pace | None = None
        if governor is not None and prefetch:
            from .governor import Pace

            self._pace = Pace(governor, stamps)
        self._to_start = threading.Lock() if prefetch else None
        if not drawn_by_next:
            self._start()

    def _start(self) -> None:
        """Start the producer, unless it runs or there is none."""
        lock = self._to_start
        if lock is None:
            return
        with lock:
            if self._to_start is None:
                return
            self._to_start = None
            try:
                self._pipeline.start(self)
                self._keep_ahead()
            except BaseException:  # Ctrl-C among them: perhaps only a part has started
                self._pipeline.close()
                raise

    def __len__(self) -> int:
        return len(self._sized)

    def __next__(self) -> Outcome:
        if self._pace is not None:
            setting = self._pace.batch()
            self._pipeline.use_threads(setting.workers)
            self._prefetch = setting.prefetch
        if self._to_start is not None:
            self._start()
        if not self._prefetch:
            self._order_one()
        if not self._ahead_in_torch:
            self._order.asked(self._pipeline.taken + 1)
        try:
            outcome = self._pipeline.next()
            if outcome is None:
                self.close()
                raise StopIteration
            if outcome.batch is not None:
                self._finish(outcome)
        finally:  # after the batch has been taken: see the module
            self._keep_ahead()
        taken = self._pipeline.taken
        outcome.taken, self._given = taken - self._given, taken
        return outcome

    def _finish(self, outcome: Outcome) -> None:
        """Make the caller's batch. What its code raises takes the place of the batch."""
        begin = time.perf_counter_ns()
        try:
            outcome.batch = self._assemble(outcome.batch)
        except Exception as error:  # noqa: BLE001 - raised at this batch
            outcome.batch, outcome.error = None, below(error)
        self._stamps.stage("collate", begin)

    def ready(self) -> bool:
        """Whether ``next`` need not wait for the producer."""
        results = self._pipeline.results()
        return results is None or not results.empty()

    def close(self) -> None:
        """End this epoch now. Afterwards nothing runs and no batch is written to."""
        self._pipeline.close()

    def _keep_ahead(self) -> None:
        """Order batches until ``prefetch`` are ahead, and draw as many as torch does."""
        taken = self._pipeline.taken
        while self._ordered - taken < self._prefetch:
            self._order_one()
        if self._ahead_in_torch:
            while self._ordered + len(self._drawn) - taken < self._ahead_in_torch:
                self._drawn.append(self._draw())
            self._order.asked(taken + self._ahead_in_torch)

    def _draw(self) -> np.ndarray | BaseException | None:
        """One more index batch; None after the last one."""
        begin = time.perf_counter_ns()
        try:
            return next(self._order, None)
        except Exception as error:  # noqa: BLE001 - raised at its batch, after those before it
            # without this frame: it holds the iterator, which could not be deleted
            return below(error)
        finally:
            self._stamps.stage("order", begin)

    def _order_one(self) -> None:
        """Hand one more index batch to the producer."""
        self._pipeline.put(self._drawn.popleft() if self._drawn else self._draw())
        self._ordered += 1  # last: a batch that is counted and not ordered would be waited for
