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

import atexit
import collections
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sized
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .._base.trace import Stamps
from ..errors import UsageError
from .bad_samples.batch_filler import EngineFiller, FilledBatch, PendingBatch
from .drawing import IndexBatches
from .maker import Maker, Outcome, below, check_process
from .order import Batches
from .readahead import ReadAhead

if TYPE_CHECKING:
    from .fetch_ahead import FetchAhead
    from .governor import Governor, Pace

# How long the exit of the interpreter waits for a thread.
_EXIT_S = 5.0

# Pipelines whose producer runs, also after their iterator was dropped: a thread that is in native
# code when the interpreter shuts down would abort the process.
_running: set[Pipeline] = set()

_threads: weakref.WeakSet[_Thread] = weakref.WeakSet()

_Owner = weakref.ref[Iterator[object]]

_Task = np.ndarray | BaseException | _Owner | None
"""The indices of a batch, or what the sampler raised instead; None after the last batch; the weak
reference to the iterator when that has been deleted."""

_Pending = PendingBatch | BaseException


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

    # What programs ask torch's iterators about their workers, under the same names.
    _workers: tuple[()] = ()  # processes

    @property
    def _send_idx(self) -> int:
        """Batches that were drawn from the sampler."""
        return self._sent

    @property
    def _rcvd_idx(self) -> int:
        """Those of them that the consumer has."""
        return self._given

    @property
    def _tasks_outstanding(self) -> int:
        return self._sent - self._given

    @property
    def _shutdown(self) -> bool:
        return self._pipeline.closed

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
        self._ordered = self._sent = 0
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
            self._pipeline.engine.use_threads(setting.workers)
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
        return self._pipeline.ready()

    def close(self) -> None:
        """End this epoch now. Afterwards nothing runs and no batch is written to."""
        self._pipeline.close()

    # As programs end workers that persist.
    _shutdown_workers = close

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
            drawn = next(self._order, None)
            self._sent += drawn is not None
            return drawn
        except Exception as error:  # noqa: BLE001 - raised at its batch, after those before it
            # without this frame: it holds the iterator, which could not be deleted
            return below(error)
        finally:
            self._stamps.stage("order", begin)

    def _order_one(self) -> None:
        """Hand one more index batch to the producer."""
        self._pipeline.tasks.put(self._drawn.popleft() if self._drawn else self._draw())
        self._ordered += 1  # last: a batch that is counted and not ordered would be waited for


class Pipeline:
    """The producer and its queues. It does not refer to the iterator, whose deletion ends it.

    Args:
        filler: makes the batches, with its engine.
        known: all batches, if they are known.
        timeout_s: RuntimeError after waiting so long for a batch, as in torch; 0: wait for ever.
        fetch: for a remote store; else None.
    """

    def __init__(
        self,
        filler: EngineFiller,
        known: Batches,
        timeout_s: float,
        stamps: Stamps,
        fetch: FetchAhead | None,
    ) -> None:
        self.engine = engine = filler.engine
        self._filler = filler
        self._timeout_s = timeout_s or None
        self._stamps = stamps
        memory = engine.store.memory()
        in_memory = memory and len(memory) == len(engine.store.files)
        self._ahead = None if in_memory else ReadAhead(engine, filler.source.lookup, known)
        self._pid = os.getpid()
        self.tasks: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        """Batches to fill, in order."""
        self._owner: _Owner | None = None
        self._filling: collections.deque[_Pending] = collections.deque()
        self._results: _Thread | None = None
        self._closing = threading.Event()
        self._fetch = fetch
        self.taken = 0
        """Batches that the consumer has taken, errors included."""

    @property
    def closed(self) -> bool:
        return self._closing.is_set()

    def start(self, owner: Iterator[object]) -> None:
        """Start the producer. It ends when ``owner`` is deleted."""
        self.engine.acquire(self)
        _running.add(self)
        # Registered again, so that it runs first: libraries that an engine has loaded meanwhile end
        # at exit too, and DALI complains if it is still in use.
        atexit.unregister(_close_all)
        atexit.register(_close_all)
        # When the iterator is deleted, its weak reference is put into the queue of tasks, which
        # tells the producer to end. The callback is a C function on purpose: Ctrl-C could interrupt
        # a finalizer in Python, and what a finalizer raises is swallowed.
        self._owner = weakref.ref(owner, self.tasks.put)
        # Unbounded: the number of tasks bounds it, and a producer that never blocks on a full queue
        # can always be ended.
        try:
            self._results = _started(self._produce())
        except RuntimeError:  # the system grants no more threads
            self._release()
            raise

    def next(self) -> Outcome | None:
        """What came of the next batch, or None after the last one."""
        if self._closing.is_set():
            return None
        check_process(self._pid)
        if self._results is None:
            return self._make()
        try:
            _, outcome = self._results.queue.get(timeout=self._timeout_s)
        except queue.Empty:
            raise RuntimeError(
                f"DataLoader timed out after {self._timeout_s} seconds: reading or decoding a "
                "batch took longer"
            ) from None
        self.taken += 1
        if isinstance(outcome, BaseException):  # the producer itself has failed
            raise outcome
        return None if isinstance(outcome, type) else outcome  # the type is StopIteration: the end

    def ready(self) -> bool:
        """Whether a batch is ready, or each is made when it is wanted."""
        return self._results is None or not self._results.queue.empty()

    def _make(self) -> Outcome | None:
        """The next batch, made on this thread."""
        indices = self.tasks.get()
        self.taken += 1
        if isinstance(indices, BaseException):
            return Outcome(error=indices)
        return self._finish(self._submit(indices)) if isinstance(indices, np.ndarray) else None

    def close(self, timeout_s: float | None = None) -> None:
        """End the producer, waiting at most ``timeout_s``. May be called again if interrupted."""
        if os.getpid() != self._pid:
            return
        self._closing.set()
        self.tasks.put(None)  # also for a thread whose start was interrupted
        for filling in list(self._filling):
            _cancel(filling)
        if self._results is not None:
            current: object = threading.current_thread()
            if self._results is not current:
                self._results.join(timeout_s)
            while not self._results.queue.empty():  # release the slabs of batches not taken
                self._results.queue.get()
            self._results.queue.put((False, StopIteration))  # for a thread that waits in next()
        elif self._fetch is not None:
            self._fetch.close()
        self._release()

    def _produce(self) -> Iterator[Outcome]:
        """Fill batches in order; the engine has as many at a time as were asked for."""
        ended, fetch = False, self._fetch
        waiting: np.ndarray | None = None  # for its bytes to be fetched
        try:
            while not self._closing.is_set():
                # Wait for a task, or for its bytes, only while nothing is being filled.
                while not ended and not (self._filling and waiting is None and self.tasks.empty()):
                    task = self.tasks.get() if waiting is None else waiting
                    waiting = None
                    if self._closing.is_set() or task is self._owner:
                        return
                    if task is None:
                        ended = True
                        continue
                    assert isinstance(task, (np.ndarray, BaseException))
                    if isinstance(task, BaseException):
                        self._filling.append(task)
                    elif fetch is not None and self._filling and not fetch.ready(task):
                        waiting = task
                        break
                    else:
                        self._filling.append(self._submit(task))
                if not self._filling:
                    return
                # It stays in the queue while it is being filled, so that close() finds it.
                outcome = self._finish(self._filling[0])
                self._filling.popleft()
                yield outcome
        finally:
            for filling in self._filling:
                _cancel(filling)
            if fetch is not None:
                fetch.close()
            self._release()

    def _release(self) -> None:
        self.engine.release(self)
        _running.discard(self)

    def _submit(self, indices: np.ndarray) -> _Pending:
        begin = time.perf_counter_ns()
        try:
            if self._fetch is not None:
                self._fetch.wait(indices, self._ended)
                self._stamps.stage("network", begin)
                begin = time.perf_counter_ns()
                if self._ended():
                    return UsageError("this iterator was closed while it was waiting for data")
            timed = self._stamps.timeline is not None
            filling = self._filler.begin(indices, timed=timed)
            if self._ahead is not None:
                self._ahead.submitted(filling.records)
            return filling
        except Exception as error:  # noqa: BLE001 - raised in the consumer, at this batch
            return error
        finally:
            if self._fetch is not None:
                self._fetch.submitted()
            self._stamps.stage("prepare", begin)

    def _ended(self) -> bool:
        """Whether nobody wants more batches."""
        gone = self._owner is not None and self._owner() is None
        return self._closing.is_set() or gone

    def _finish(self, filling: _Pending) -> Outcome:
        if isinstance(filling, BaseException):
            return Outcome(error=filling)
        ticket = filling.ticket
        try:
            outcome = self._filler.finish(filling)
        except Exception as error:  # noqa: BLE001 - raised in the consumer, at this batch
            return Outcome(error=error)
        except BaseException as error:
            _cancel(filling)  # stop all writing
            if self._results is None:  # Ctrl-C while the caller's thread decodes
                raise
            return Outcome(error=error)  # what on_error raises may be of any kind: SystemExit
        if ticket is not None:
            stages = dict(ticket.stages_ns())
            if ticket.moving is not None:
                stages["fields"] = ticket.moving.nanoseconds
            self._stamps.work(stages, ticket.times, ticket.nbytes)
            if ticket.hits is not None:
                self._stamps.cache(ticket.hits, len(filling.tried) - ticket.hits)
        if self._stamps.timeline is not None:
            self._stamps.count(
                batches_ready=0 if self._results is None else self._results.queue.qsize(),
                batches_being_filled=len(self._filling),
                slabs_in_use=sum(ring.in_use() for ring in self.engine.rings),
            )
        return outcome


def _cancel(filling: _Pending) -> None:
    if isinstance(filling, PendingBatch) and filling.ticket is not None:
        filling.ticket.cancel()


class _Thread(Protocol):
    """``prefetch_generator.BackgroundGenerator``, as far as it is used here.

    It puts (whether it is an outcome, that or how it ended) into its queue. It is a daemon thread,
    so that an abandoned iterator cannot keep the process alive. But torch aborts the process if a
    daemon thread drops a tensor while the interpreter shuts down. So the interpreter ends and joins
    the threads at exit.
    """

    queue: queue.Queue[Any]
    name: str

    def join(self, timeout: float | None = None) -> None: ...


def _started(generator: Iterator[object]) -> _Thread:
    """A thread that runs ``generator`` and puts (True, item) into an unbounded queue."""
    from prefetch_generator import BackgroundGenerator

    thread: _Thread = BackgroundGenerator(generator, max_prefetch=0)
    thread.name = "fastload producer"
    _threads.add(thread)
    return thread


def _close_all() -> None:
    for pipeline in list(_running):
        pipeline.close(_EXIT_S)
    for thread in list(_threads):  # one that has ended its work may still hold its last batch
        thread.join(_EXIT_S)


atexit.register(_close_all)
