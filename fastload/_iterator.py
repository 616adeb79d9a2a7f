"""One epoch of a loader whose batches an engine fills.

How it runs
    The consumer (the thread of the training loop) draws the order, because samplers may be the
    user's code. It keeps ``prefetch`` index batches ahead in a queue. One producer thread turns
    them into tickets of the engine, waits for each in order, and passes the images on, together
    with the record numbers they belong to. At every ``next`` the consumer takes one batch of images
    and adds one index batch. In that order: by the time the engine wants memory for the added one,
    the consumer has let go of the batch before, and ``prefetch + 1`` slabs do. Large ones are fewer:
    an index batch waits in the producer until there is one for it (``_gate``).
How it ends
    success    the order is exhausted: the producer ends after the last batch.
    failure    an error, the sampler's too, travels in the place of its batch and is raised at that
               ``next``; the batches after it can still be had, as in torch's DataLoader. What
               ``on_error`` lets pass is no failure (``_salvage``).
    early exit ``close`` (and the exit of the interpreter) ends the queue, cancels what is being
               filled, and joins the producer. Dropping the iterator tells the producer to end by
               itself, after the batch that it waits for.
    fork       a child has no producer: there ``next`` raises, and letting go does nothing.
With ``prefetch=0`` there is no thread: every batch is made inside ``next``.
"""

from __future__ import annotations

import atexit
import collections
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sized
from typing import Any, TypeVar

import numpy as np

from ._engine.decoder import Decoder, Images
from ._erasing import Drawn
from ._gate import Gate
from ._governor import Governor, Pace
from ._policy import BadSamples, OnError
from ._progress import Progress
from ._readahead import ReadAhead
from ._refill import Refill
from ._salvage import Filled, Filler, Filling
from ._sampler import Batches, Order
from ._source import Source
from ._trace import Stamps
from .errors import UsageError

_E = TypeVar("_E", bound=BaseException)

# How long the exit of the interpreter waits for a producer.
_EXIT_S = 5.0

# Whose producer runs, also after its iterator was dropped: a thread that is still in native code
# when the interpreter is torn down would abort the process.
_running: set[_Pipeline] = set()


class BatchIterator(Iterator[Any]):
    """Iterates over the batches of one epoch.

    Args:
        source: what is read.
        decoder: what fills the batches.
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
    """

    def __init__(
        self,
        *,
        source: Source,
        decoder: Decoder,
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
    ) -> None:
        self._order = order
        self._sized = sized
        self._assemble = assemble
        self._stamps = stamps
        self._prefetch = self._ahead = prefetch
        self._pace = Pace(governor, stamps) if governor is not None and prefetch else None
        self._progress = progress
        self._bad = bad
        self._samples = 0
        known = order.known
        if refill is not None:
            refill.order = lambda: known.indices
        filler = Filler(
            decoder,
            source,
            seed=seed,
            epoch=epoch,
            on_error=on_error,
            refill=refill,
            left_out=left_out,
        )
        self._pipeline = _Pipeline(source, decoder, known, filler, timeout_s, stamps)
        if prefetch:
            self._pipeline.start(self)
            for _ in range(prefetch):
                self._order_one()

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
                if self._prefetch:
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
        try:
            filled = self._pipeline.next()
        except Exception:
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
        """Order what is missing to the batches ahead, after one of them was taken."""
        self._ahead -= 1
        while self._ahead < self._prefetch:
            self._order_one()
            self._ahead += 1

    def _order_one(self) -> None:
        """Draw one more index batch and hand it to the producer; None after the last one."""
        begin = time.perf_counter_ns()
        try:
            self._pipeline.put(next(self._order, None))
        except Exception as error:  # noqa: BLE001 - raised at its batch; those before it come first
            # without this frame: it holds the iterator, which has to be able to go
            self._pipeline.put(below(error))
        self._stamps.stage("order", begin)


# Indices of a batch, or what the sampler raised instead; None after the last one; the weak
# reference to an iterator that is gone; that to memory that was let go; _WAITS: the consumer does.
_WAITS = "the consumer waits"
_Task = np.ndarray | BaseException | weakref.ref[Any] | str | None
_Filling = Filling | BaseException


class _Pipeline:
    """The producer's side: no reference to the iterator, so that dropping the iterator ends it."""

    def __init__(
        self,
        source: Source,
        decoder: Decoder,
        known: Batches,
        filler: Filler,
        timeout_s: float,
        stamps: Stamps,
    ) -> None:
        self._decoder = decoder
        self._filler = filler
        self._timeout_s = timeout_s or None
        self._stamps = stamps
        self._ahead = ReadAhead(decoder, source.lookup, known)
        self._pid = os.getpid()
        self._tasks: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self._owner: weakref.ref[BatchIterator] | None = None
        self._ordered: collections.deque[np.ndarray | BaseException] = collections.deque()
        self._filling: collections.deque[_Filling] = collections.deque()
        self._gate: Gate | None = None
        self._results: Any = None
        self._closing = threading.Event()

    def start(self, owner: BatchIterator) -> None:
        """Start the producer; it ends when ``owner`` is gone."""
        from prefetch_generator import BackgroundGenerator

        self._decoder.acquire(self)
        _running.add(self)
        # When the iterator is dropped, its weak reference is put among the tasks, which tells the
        # producer to end. The callback is a C function on purpose: a finalizer in Python could be
        # interrupted by Ctrl-C, and what a finalizer raises is swallowed.
        self._owner = weakref.ref(owner, self._tasks.put)
        self._gate = Gate(self._decoder.rings, self._tasks.put)
        # Unbounded: the number of tasks bounds it, and a producer that never blocks on a full queue
        # can always be ended (with a bound, leaving early would leave it blocked for ever).
        self._results = BackgroundGenerator(self._produce(), max_prefetch=0)

    def use_threads(self, threads: int) -> None:
        """Batches submitted from now on are worked on by so many threads."""
        self._decoder.threads = threads

    def put(self, indices: np.ndarray | BaseException | None) -> None:
        """Ask for one more batch; None says that there are no more, an error takes its place."""
        self._tasks.put(indices)

    def next(self) -> Filled | None:
        """The next batch, or None after the last one. Raises what making it raised."""
        if self._closing.is_set():
            return None
        if os.getpid() != self._pid:
            raise UsageError("the iterator is of the process before the fork; make one in this one")
        outcome = self._make() if self._results is None else self._take()
        if not isinstance(outcome, BaseException):
            return outcome
        try:
            raise outcome
        finally:
            del outcome  # its traceback holds this frame: the cycle would keep the thread

    def results(self) -> Any:
        """The queue of batches that are ready; None where each is made when it is asked for."""
        return None if self._results is None else self._results.queue

    def _make(self) -> Filled | BaseException | None:
        """The next batch, made here."""
        indices = self._tasks.get()
        if isinstance(indices, BaseException):
            return indices
        return self._finish(self._submit(indices)) if isinstance(indices, np.ndarray) else None

    def _take(self) -> Any:
        """The next batch from the producer."""
        assert self._gate is not None
        if self._gate.ask():
            self._tasks.put(_WAITS)
        try:
            made, outcome = self._results.queue.get(timeout=self._timeout_s)
        except queue.Empty:
            raise RuntimeError(
                f"DataLoader timed out after {self._timeout_s} seconds: reading or decoding a "
                "batch took longer"
            ) from None
        # It ends with the type StopIteration.
        return outcome if made or isinstance(outcome, BaseException) else None

    def close(self, timeout_s: float | None = None) -> None:
        """End the producer, waiting at most ``timeout_s``. May be called again if interrupted."""
        if os.getpid() != self._pid:
            return
        self._closing.set()
        self._tasks.put(None)  # also to a thread whose start was interrupted
        for filling in list(self._filling):
            _cancel(filling)
        if self._results is not None:
            if self._results is not threading.current_thread():
                self._results.join(timeout_s)
            while not self._results.queue.empty():  # let go of the slabs of batches nobody wants
                self._results.queue.get()
            self._results.queue.put((False, StopIteration))  # to a thread that waits in next()
        self._decoder.release(self)
        _running.discard(self)

    def _produce(self) -> Iterator[Filled | BaseException]:
        """Fill batches in order, with as many in the engine at a time as were asked for."""
        ended = False
        try:
            while not self._closing.is_set():
                while (self._ordered or not ended) and not (self._filling and self._tasks.empty()):
                    task = self._tasks.get()
                    if self._closing.is_set() or task is self._owner:
                        return
                    if task is None:
                        ended = True
                    elif isinstance(task, (np.ndarray, BaseException)):
                        self._ordered.append(task)
                    self._begin()  # also after what says that it may begin now
                if not self._filling:
                    return
                yield self._finish_first()
                self._begin()
        finally:
            for filling in self._filling:
                _cancel(filling)
            self._decoder.release(self)
            _running.discard(self)

    def _begin(self) -> None:
        """Give the engine what was ordered and may begin."""
        assert self._gate is not None
        while self._ordered and not self._closing.is_set():
            first = self._ordered[0]
            if isinstance(first, np.ndarray) and not self._gate.open():
                return
            self._ordered.popleft()
            self._gate.begun()
            self._filling.append(self._submit(first) if isinstance(first, np.ndarray) else first)

    def _submit(self, indices: np.ndarray) -> _Filling:
        begin = time.perf_counter_ns()
        try:
            filling = self._filler.begin(indices, timed=self._stamps.timeline is not None)
            self._ahead.submitted(filling.records)
            return filling
        except Exception as error:  # noqa: BLE001 - raised in the consumer, at this batch
            return error
        finally:
            self._stamps.stage("prepare", begin)

    def _finish_first(self) -> Filled | BaseException:
        # It stays in the queue while it is being filled, where close() finds it.
        assert self._gate is not None
        filling = self._filling[0]
        filled = self._finish(filling)
        self._filling.popleft()
        count = 0 if isinstance(filling, BaseException) else len(filling.records)
        # On average a thread that finds nothing more to begin waits for half a sample of another's.
        self._gate.made(self._decoder.threads / (2 * count) if count else 0.0)
        return filled

    def _finish(self, filling: _Filling) -> Filled | BaseException:
        if isinstance(filling, BaseException):
            return filling
        ticket = filling.ticket
        try:
            filled = self._filler.finish(filling)
        except Exception as error:  # noqa: BLE001 - raised in the consumer, at this batch
            return error
        except BaseException:  # Ctrl-C while the caller's thread decodes: nothing may go on writing
            _cancel(filling)
            raise
        if ticket is not None:
            stages = dict(ticket.stages_ns())
            if ticket.moving is not None:
                stages["fields"] = ticket.moving.nanoseconds
            self._stamps.work(stages, ticket.times)
            self._stamps.read(ticket.nbytes)
            if ticket.hits is not None:
                self._stamps.cache(ticket.hits, len(filling.tried) - ticket.hits)
        if self._stamps.timeline is not None:
            self._stamps.count(
                batches_ready=0 if self._results is None else self._results.queue.qsize(),
                batches_being_filled=len(self._filling),
                slabs_in_use=self._decoder.slabs_in_use(),
            )
        return filled


def below(error: _E) -> _E:
    """``error`` without the frame that caught it in its traceback."""
    trace = error.__traceback__
    return error.with_traceback(None if trace is None else trace.tb_next)


def _cancel(filling: _Filling) -> None:
    if not isinstance(filling, BaseException) and filling.ticket is not None:
        filling.ticket.cancel()


def _close_all() -> None:
    for pipeline in list(_running):
        pipeline.close(_EXIT_S)


atexit.register(_close_all)
