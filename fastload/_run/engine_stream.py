"""One epoch of a loader whose batches an engine fills.

How it runs
    The consumer (the thread of the training loop) draws the order, because samplers may be the
    user's code. It keeps ``prefetch`` index batches ahead in a queue. One producer thread turns
    them into tickets of the engine, waits for each in order, and passes the images on, together
    with the record numbers they belong to. At every ``next`` the consumer takes one batch of images
    and adds one index batch. In that order: by the time the engine wants memory for the added one,
    the consumer has let go of the batch before, and ``prefetch + 1`` slabs do. Where batches are
    large, ``default_prefetch`` is 1.
How it ends
    success    the order is exhausted: the producer ends after the last batch.
    failure    an error, the sampler's too, travels in the place of its batch and is raised at that
               ``next``; the batches after it can still be had, as in torch's DataLoader. What
               ``on_error`` lets pass is no failure (``_run/bad_samples/batch_filler.py``).
    early exit ``close`` (and the exit of the interpreter) ends the queue, cancels what is being
               filled, and joins the producer. Dropping the iterator tells the producer to end by
               itself, after the batch that it waits for.
    fork       a child has no producer: there ``next`` raises, and letting go does nothing.
With ``prefetch=0`` there is no thread: every batch is made inside ``next``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sized
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.trace import Stamps
from .._engine.base import BatchEngine, Images
from .._sources.source import Source
from .._transforms.pixels.erasing import Drawn
from .._transforms.plan import Plan
from ..hints import OnError
from .bad_samples.batch_filler import Filled, Filler
from .bad_samples.policy import BadSamples
from .bad_samples.refill import Refill
from .order import Order
from .producer import Pipeline, below
from .progress import Progress

if TYPE_CHECKING:
    from .governor import Governor, Pace

# torch's own default per worker.
_PREFETCH = 2

# Batches of this size and above are a large part of a loop's memory.
_LARGE_NBYTES = 8 << 20

# Between two batches a thread is idle for half a sample on average: 3 % of so many.
_SAMPLES_PER_THREAD = 16


def default_prefetch(
    sample_nbytes: int | None = None, batch_size: int | None = None, threads: int = 1
) -> int:
    """Batches ahead of the consumer where ``prefetch_factor`` does not say.

    One where batches are large: the one that the loop works on and the one that is being filled.
    But two where threads would be idle for too long between them.

    Args:
        sample_nbytes, batch_size: None where they are not known.
        threads: that fill a batch.
    """
    if sample_nbytes is None or batch_size is None:
        return _PREFETCH
    large = sample_nbytes * batch_size >= _LARGE_NBYTES
    return 1 if large and batch_size >= _SAMPLES_PER_THREAD * threads else _PREFETCH


class BatchIterator(Iterator[Any]):
    """Iterates over the batches of one epoch.

    Args:
        source: what is read.
        engine: what fills the batches.
        order: index batches, iterated on the consumer's thread.
        sized: what ``len`` of the iterator is taken of; asked only then, as it may have none.
        assemble: (images, record numbers, fields that moved, rectangles) -> the caller's batch.
        prefetch: batches ahead of the consumer; 0 works without a thread.
        timeout_s: RuntimeError after waiting so long for a batch, as in torch; 0 waits for ever.
        seed, epoch: of the augmentation.
        stamps: where times are added up.
        progress: is kept up to date.
        left_out: indices of this epoch that come before the order's, or None.
        on_error, bad: what becomes of samples that cannot be read, and where they are counted.
        refill: where batches are filled up from, or None.
        governor: adjusts threads and batches ahead; None leaves them as they are.
        rest: the whole plan, where the device stage applies what the engine leaves of it.
    """

    _workers: tuple[()] = ()
    """Its worker processes, by the name that torch's iterator has them under: none."""

    def __init__(
        self,
        *,
        source: Source,
        engine: BatchEngine,
        order: Order,
        sized: Sized,
        assemble: Callable[[Images, np.ndarray, dict[str, Any], Drawn | None], Any],
        prefetch: int,
        timeout_s: float,
        seed: int,
        epoch: int,
        stamps: Stamps,
        progress: Progress,
        left_out: np.ndarray | None,
        on_error: OnError,
        bad: BadSamples,
        refill: Refill | None = None,
        governor: Governor | None = None,
        rest: Plan | None = None,
    ) -> None:
        self._order = order
        self._sized = sized
        self._assemble = assemble
        self._stamps = stamps
        self._prefetch = prefetch
        self._ordered = 0
        self._pace: Pace | None = None
        if governor is not None and prefetch:
            from .governor import Pace

            self._pace = Pace(governor, stamps)
        self._progress = progress
        self._bad = bad
        self._samples = 0
        known = order.known
        if refill is not None:
            refill.order = lambda: known.indices
        filler = Filler(
            engine,
            source,
            seed=seed,
            epoch=epoch,
            on_error=on_error,
            refill=refill,
            left_out=left_out,
            rest=rest,
        )
        self._pipeline = Pipeline(source, engine, known, filler, timeout_s, stamps)
        if prefetch:
            self._pipeline.start(self)
            self._keep_ahead()

    def __len__(self) -> int:
        return len(self._sized)

    def __next__(self) -> Any:
        begin = time.perf_counter_ns()
        while True:
            if not self._prefetch:
                self._order_one()
            try:
                filled = self._filled()
                if filled is None:
                    self._end()
                    self._stamps.ended(begin)
                    raise StopIteration
                if not filled.empty:
                    got = time.perf_counter_ns()
                    batch = self._assemble(
                        filled.images, filled.records, filled.moved, filled.drawn
                    )
                    self._stamps.stage("collate", got)
                    break
            finally:  # last: see above
                self._keep_ahead()
        self._stamps.batch(len(filled.records), begin)
        if self._pace is not None:
            setting = self._pace.batch()
            self._pipeline.use_threads(setting.workers)
            self._prefetch = setting.prefetch
        return batch

    def ready(self) -> bool:
        """Whether a batch lies ready, or is made in the call that asks for it."""
        results = self._pipeline.results()
        return results is None or not results.empty()

    def _filled(self) -> Filled | None:
        """The next batch from the engine; one that failed is behind us, as in torch."""
        taken = self._pipeline.taken
        try:
            filled = self._pipeline.next()
        except Exception:
            if self._pipeline.taken != taken:  # one that did not come in time is the next one still
                self._progress.batch()
            raise
        if filled is not None:
            self._progress.batch()
            self._progress.refilled = filled.refilled or self._progress.refilled
            self._samples += len(filled.records) + len(filled.bad)
            self._bad.add(filled.bad, self._samples)
        return filled

    def _end(self) -> None:
        self.close()
        if not self._progress.ended:
            self._progress.ended = True
            self._bad.report(self._progress.epoch, self._samples)

    def close(self) -> None:
        """End this epoch now. Nothing runs and nothing is written afterwards."""
        self._pipeline.close()

    def _keep_ahead(self) -> None:
        """Order what is missing to the batches ahead."""
        while self._ordered - self._pipeline.taken < self._prefetch:
            self._order_one()

    def _order_one(self) -> None:
        """Draw one more index batch and hand it to the producer; None after the last one."""
        begin = time.perf_counter_ns()
        try:
            self._pipeline.put(next(self._order, None))
        except Exception as error:  # noqa: BLE001 - raised at its batch; those before it come first
            # without this frame: it holds the iterator, which has to be able to go
            self._pipeline.put(below(error))
        self._ordered += 1  # not before: one too few would be waited for in vain
        self._stamps.stage("order", begin)
