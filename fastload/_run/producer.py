"""The producer of one epoch: a thread that has the engine fill batches, in order.

``engine_maker.py`` says how it runs and how it ends.
"""

from __future__ import annotations

import atexit
import collections
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import numpy as np

from .._base.trace import Stamps
from ..errors import DataError, UsageError
from .bad_samples.batch_filler import EngineFiller, PendingBatch
from .fetch_ahead import FetchAhead
from .index_batches import Batches
from .maker import Outcome, check_process
from .readahead import ReadAhead

_E = TypeVar("_E", bound=BaseException)

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

_Result = tuple[bool, Outcome | BaseException | type[StopIteration] | None]
"""What the producer puts into its queue: (whether it is an outcome, that or how it ended)."""


class Pipeline:
    """The producer and its queues. It does not refer to the iterator, whose deletion ends it.

    Args:
        filler: makes the batches, with its engine.
        known: all batches, if they are known.
        timeout_s: RuntimeError after waiting so long for a batch, as in torch; 0: wait for ever.
        following: gives the indices of the next epoch, for a remote store.
        blocks: the order keeps to whole blocks of the store.
    """

    def __init__(
        self,
        filler: EngineFiller,
        known: Batches,
        timeout_s: float,
        stamps: Stamps,
        *,
        following: Callable[[], np.ndarray],
        blocks: bool,
    ) -> None:
        self._engine = engine = filler.engine
        self._filler = filler
        lookup = filler.source.lookup
        self._timeout_s = timeout_s or None
        self._stamps = stamps
        memory = engine.store.memory()
        in_memory = memory and len(memory) == len(engine.store.files)
        self._ahead = None if in_memory else ReadAhead(engine, lookup, known)
        self._pid = os.getpid()
        self._tasks: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self._owner: _Owner | None = None
        self._filling: collections.deque[_Pending] = collections.deque()
        self._results: _Thread | None = None
        self._closing = threading.Event()
        self._fetch: FetchAhead | None = None
        if engine.store.remote:
            self._fetch = FetchAhead(
                engine.store,
                lookup,
                known,
                following,
                blocks=blocks,
                ended=self._ended,
            )
        self.taken = 0
        """Batches that the consumer has taken, errors included."""

    def start(self, owner: Iterator[object]) -> None:
        """Start the producer. It ends when ``owner`` is deleted."""
        self._engine.acquire(self)
        _running.add(self)
        # Registered again, so that it runs first: libraries that an engine has loaded meanwhile end
        # at exit too, and DALI complains if it is still in use.
        atexit.unregister(_close_all)
        atexit.register(_close_all)
        # When the iterator is deleted, its weak reference is put into the queue of tasks, which
        # tells the producer to end. The callback is a C function on purpose: Ctrl-C could interrupt
        # a finalizer in Python, and what a finalizer raises is swallowed.
        self._owner = weakref.ref(owner, self._tasks.put)
        # Unbounded: the number of tasks bounds it, and a producer that never blocks on a full queue
        # can always be ended.
        try:
            self._results = _started(self._produce())
        except RuntimeError:  # the system grants no more threads
            self._release()
            raise

    def use_threads(self, threads: int) -> None:
        """Fill the batches submitted from now on with so many threads."""
        self._engine.use_threads(threads)

    def put(self, indices: np.ndarray | BaseException | None) -> None:
        """Ask for one more batch. None: there are no more; an error is raised in its place."""
        self._tasks.put(indices)

    def next(self) -> Outcome | None:
        """What came of the next batch, or None after the last one."""
        if self._closing.is_set():
            return None
        check_process(self._pid)
        return self._make() if self._results is None else self._take()

    def results(self) -> queue.Queue[_Result] | None:
        """The queue of batches that are ready; None where each is made when it is wanted."""
        return None if self._results is None else self._results.queue

    def _make(self) -> Outcome | None:
        """The next batch, made on this thread."""
        indices = self._tasks.get()
        self.taken += 1
        if isinstance(indices, BaseException):
            return Outcome(error=indices)
        return self._finish(self._submit(indices)) if isinstance(indices, np.ndarray) else None

    def _take(self) -> Outcome | None:
        """The next batch from the producer."""
        assert self._results is not None
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

    def close(self, timeout_s: float | None = None) -> None:
        """End the producer, waiting at most ``timeout_s``. May be called again if interrupted."""
        if os.getpid() != self._pid:
            return
        self._closing.set()
        self._tasks.put(None)  # also for a thread whose start was interrupted
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
        ended = False
        waiting: np.ndarray | None = None  # for its bytes to be fetched
        try:
            while not self._closing.is_set():
                # Wait for a task, or for its bytes, only while nothing is being filled.
                while not ended and not (self._filling and waiting is None and self._tasks.empty()):
                    task = self._tasks.get() if waiting is None else waiting
                    waiting = None
                    if self._closing.is_set() or task is self._owner:
                        return
                    if task is None:
                        ended = True
                        continue
                    assert isinstance(task, (np.ndarray, BaseException))
                    if isinstance(task, BaseException):
                        self._filling.append(task)
                    elif self._filling and not self._fetched(task):
                        waiting = task
                        break
                    else:
                        self._filling.append(self._submit(task))
                if not self._filling:
                    return
                yield self._finish_first()
        finally:
            for filling in self._filling:
                _cancel(filling)
            if self._fetch is not None:
                self._fetch.close()
            self._release()

    def _release(self) -> None:
        self._engine.release(self)
        _running.discard(self)

    def _submit(self, indices: np.ndarray) -> _Pending:
        begin = time.perf_counter_ns()
        try:
            if self._fetch is not None:
                self._fetch.wait(indices)
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

    def _fetched(self, indices: np.ndarray) -> bool:
        """Whether the bytes of a batch of a remote store need not be waited for."""
        try:
            return self._fetch is None or self._fetch.ready(indices)
        except DataError:
            return True  # raised again when it is submitted

    def _ended(self) -> bool:
        """Whether nobody wants more batches."""
        gone = self._owner is not None and self._owner() is None
        return self._closing.is_set() or gone

    def _finish_first(self) -> Outcome:
        # It stays in the queue while it is being filled, so that close() finds it.
        outcome = self._finish(self._filling[0])
        self._filling.popleft()
        return outcome

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
            self._stamps.work(stages, ticket.times)
            self._stamps.read(ticket.nbytes)
            if ticket.hits is not None:
                self._stamps.cache(ticket.hits, len(filling.tried) - ticket.hits)
        if self._stamps.timeline is not None:
            self._stamps.count(
                batches_ready=0 if self._results is None else self._results.queue.qsize(),
                batches_being_filled=len(self._filling),
                slabs_in_use=sum(ring.in_use() for ring in self._engine.rings),
            )
        return outcome


def below(error: _E) -> _E:
    """``error``, without the frame that caught it in its traceback."""
    trace = error.__traceback__
    return error.with_traceback(None if trace is None else trace.tb_next)


def _cancel(filling: _Pending) -> None:
    if isinstance(filling, PendingBatch) and filling.ticket is not None:
        filling.ticket.cancel()


class _Thread(Protocol):
    """``prefetch_generator.BackgroundGenerator``, as far as it is used here.

    It is a daemon thread, so that an abandoned iterator cannot keep the process alive. But torch
    aborts the process if a daemon thread drops a tensor while the interpreter shuts down. So the
    interpreter ends and joins the threads at exit.
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
