"""Worker processes that decode with Pillow what the core does not decode.

Most of what Pillow does with a small image is Python, for which threads of one process take turns.
Processes do not. They fill samples as the threads do (``by_pillow.py``), with the random numbers
that were drawn for the batch, so the results are the same.

How it runs
    A batch's samples are divided into one part per process, and a slab of shared memory is leased
    for them. Each process has a thread here that sends it parts and receives answers. A process
    that has a part gets a second one, so that it need not wait for it, unless another process is
    idle. The ticket copies the samples from the slab into the batch.
How it ends
    success    when there is no user any more, or with ``persistent`` when the loader is deleted.
    failure    what a sample raises travels in the answer. A process that dies fails the parts that
               it had and all later ones, until the next epoch starts new processes.
    early exit ``stop`` writes a byte that every process sees between two samples.
    parent     a process ends when its parent has ended.
    fork       a child of the training process has the objects but not the processes. It closes its
               copies of the pipes and leaves the processes alone.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import os
import pickle
import select
import signal
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from typing_extensions import override

from .._base import pixel_limit
from .._base.machine import cpu
from .._base.shared_slabs import Mapped, SharedRing, Slot
from .._base.silence import silence
from ..errors import DataError
from .base import Ticket
from .by_pillow import PillowReport, fill, stages_of
from .image_engine import ImageEngine, PillowProcesses, PixelEngine
from .kernel import BatchRequest

# Parts that a process has at a time: the one it works on, and the next one.
_ASSIGNMENTS = 2

# Slabs to keep: those of the batches that are being filled.
_SLABS = 3

# How often an idle process checks that its parent is still there.
_LOOK_MS = 5000

# How long a process may take to finish a sample when it is told to end.
_END_S = 5.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Assignment:
    """Samples of a batch for one process.

    Attributes:
        view: which of the engines fills them.
        batch: just these samples; its memory is a part of the slab ``slot``.
        offset, nbytes: that part.
    """

    view: int
    batch: BatchRequest
    slot: Slot
    offset: int
    nbytes: int


@dataclasses.dataclass(frozen=True)
class _Answer:
    """The outcome of an assignment.

    Attributes:
        filled: positions are those in it; None: see ``failure``.
        warned: text and category of Pillow's warnings, which this process gives again.
        failure: any other exception, or None.
    """

    filled: PillowReport | None
    times: np.ndarray | None
    warned: Sequence[tuple[str, type[Warning]]] = ()
    failure: ExceptionWrapper | None = None


@dataclasses.dataclass
class _Job:
    """A part on its way; it keeps the slab that a process writes into."""

    message: bytes
    slab: np.ndarray
    future: concurrent.futures.Future[_Answer]


class _Jobs:
    """The jobs that no process has yet, in order."""

    def __init__(self) -> None:
        self._waiting = collections.deque[_Job]()
        self.idle = 0
        """Processes that wait for a job: threads in ``take``."""
        self._ended = False
        self._changed = threading.Condition()

    def put(self, job: _Job) -> None:
        """Add a job."""
        with self._changed:
            self._waiting.append(job)
            self._changed.notify()

    def end(self) -> list[_Job]:
        """Make every ``take`` return None from now on. Returns the jobs that nobody took."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
            untaken = list(self._waiting)
            self._waiting.clear()
            return untaken

    def take(self) -> _Job | None:
        """The next job, for an idle process: wait for it. None: there are no more."""
        with self._changed:
            self.idle += 1
            try:
                self._changed.wait_for(lambda: self._waiting or self._ended)
            finally:
                self.idle -= 1
            return None if self._ended else self._waiting.popleft()

    def take_ahead(self) -> _Job | None:
        """The next job, for a process that has one; None if idle processes take all there are."""
        with self._changed:
            spare = len(self._waiting) > self.idle and not self._ended
            return self._waiting.popleft() if spare else None


class Processes(PillowProcesses):
    """The processes of an engine, or of the engines of all views: its ``PillowProcesses``.

    ``engines`` fill the samples in a process, one for each view; ``persistent`` processes outlive
    an epoch.
    """

    def __init__(
        self, engines: Sequence[PixelEngine], context: BaseContext, *, persistent: bool
    ) -> None:
        self._engines = tuple(engines)
        self._context = context
        self._persistent = persistent
        self._users = set[int]()
        self._team: _Team | None = None
        # A dropped iterator ends in a thread of its own while the next one starts. Re-entrant: the
        # garbage collector may close an abandoned one in between.
        self._lock = threading.RLock()
        self.ring = SharedRing(_SLABS * len(self._engines))

    @property
    def count(self) -> int:
        """How many there are."""
        return 0 if self._team is None else len(self._team.members)

    @override
    def acquire(self, user: object, count: int) -> None:
        with self._lock:
            self._users.add(id(user))  # first: see _lock
            team, alone = self._team, len(self._users) == 1
            if team is not None and (not team.whole() or (alone and self.count != count)):
                self._stop()
            if self._team is None:
                self._team = _Team(self._context, self._engines, count)
                self._end = weakref.finalize(self, self._team.stop)

    @override
    def release(self, user: object) -> None:
        with self._lock:
            self._users.discard(id(user))
            if not self._users and not self._persistent:
                self._stop()

    @override
    def submit(self, engine: ImageEngine, batch: BatchRequest, which: np.ndarray) -> Ticket | None:
        """None where there is no slab."""
        team = self._team
        nbytes = batch.memory.nbytes // len(batch.records)
        self.ring.require(nbytes * len(which))
        lease = None if team is None or not team.mine else self.ring.lease()
        if team is None or lease is None:
            return None
        slot, slab = lease
        jobs, offset = [], 0
        for rows in np.array_split(which, min(len(team.members), len(which))):
            assignment = _Assignment(
                view=engine.options.view,
                batch=batch.part(rows, slab[:0]),
                slot=slot,
                offset=offset,
                nbytes=nbytes * len(rows),
            )
            offset += assignment.nbytes
            message = pickle.dumps(assignment, pickle.HIGHEST_PROTOCOL)
            jobs.append(_Job(message, slab, concurrent.futures.Future()))
        for job in jobs:
            team.put(job)
        return _ProcessTicket(engine, batch, which, jobs)

    def _stop(self) -> None:
        if self._team is not None:
            self._team = None
            self._end()


class _Team:
    """Processes, and the threads that serve them. None of these refers to ``Processes``."""

    def __init__(self, context: BaseContext, engines: Sequence[PixelEngine], count: int) -> None:
        self._pid = os.getpid()
        self.jobs = _Jobs()
        self.members: list[BaseProcess] = []
        # Set by the thread that finds its process gone. The system closes the pipes of a process
        # some time before ``is_alive`` is False.
        self._broken = threading.Event()
        self._threads: list[threading.Thread] = []
        self._stopped = False
        told, self._tell = context.Pipe(duplex=False)
        _ends.add(self._tell)
        try:
            for number in range(count):
                ours, theirs = context.Pipe()
                _ends.add(ours)
                process = context.Process(  # type: ignore[attr-defined] # every context has it
                    target=serve,
                    args=(theirs, told, engines),
                    name=f"fastload-pillow-{number}",
                    daemon=True,
                )
                # Python 3.12 and later: other threads may hold locks, which stay locked in the
                # child. It takes none of them.
                with silence(".*multi-threaded", DeprecationWarning):
                    process.start()
                self.members.append(process)
                theirs.close()
                thread = threading.Thread(
                    target=_attend,
                    args=(ours, self.jobs, process.pid, self._broken),
                    name=f"fastload-pillow-{number}",
                    daemon=True,
                )
                self._threads.append(thread)
            for thread in self._threads:  # after the last fork
                thread.start()
        except BaseException:
            self.stop()
            raise
        finally:
            told.close()

    def put(self, job: _Job) -> None:
        """Let one of them do ``job``."""
        self.jobs.put(job)
        if self._stopped:  # the threads may have ended
            _settle(job.future, concurrent.futures.CancelledError())

    @property
    def mine(self) -> bool:
        """Whether this process started them."""
        return self._pid == os.getpid()

    def whole(self) -> bool:
        """Whether all of them are alive and children of this process."""
        if not self.mine or self._broken.is_set():
            return False
        return all(process.is_alive() for process in self.members)

    def stop(self) -> None:
        """End them. May be called again, and from any thread."""
        if not self.mine:
            return
        self._stopped = True
        with contextlib.suppress(OSError):  # it is closed
            self._tell.send_bytes(b"end")
        for job in self.jobs.end():
            _settle(job.future, concurrent.futures.CancelledError())
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join()
        for process in self.members:
            process.join(_END_S)
            if process.is_alive():
                process.kill()
                process.join()
        self._tell.close()


def _attend(
    connection: Connection,
    jobs: _Jobs,
    pid: int | None,
    broken: threading.Event,
) -> None:
    """Send parts to one process and receive its answers: runs in the thread of that process."""
    sent = collections.deque[_Job]()
    job: _Job | None = None
    try:
        while True:
            while len(sent) < _ASSIGNMENTS:
                job = jobs.take_ahead() if sent else jobs.take()
                if job is None:
                    break
                if job.future.set_running_or_notify_cancel():
                    sent.append(job)
                    connection.send_bytes(job.message)
                job = None
            if not sent:
                return
            answer: _Answer = pickle.loads(connection.recv_bytes())  # noqa: S301 - of our child
            _settle(sent.popleft().future, answer)
            del answer
    except (EOFError, OSError):
        broken.set()
        reason = "exited unexpectedly: it was killed (is there enough memory?) or crashed"
        _fail(sent, jobs, f"the worker process {pid}, which decodes with Pillow, {reason}")
    except Exception as error:  # noqa: BLE001 - its answer is lost: there was no memory for it
        broken.set()
        reason = f"sent an answer that cannot be read: {type(error).__name__}: {error}"
        _fail(sent, jobs, f"the worker process {pid}, which decodes with Pillow, {reason}")
    finally:
        for job in sent:
            job.future.cancel()
            _settle(job.future, concurrent.futures.CancelledError())
        connection.close()


def _fail(sent: collections.deque[_Job], jobs: _Jobs, message: str) -> None:
    """The process is of no more use: fail its parts, and all parts that come later.

    Each with an error of its own. The one that is raised refers to the iterator, through its
    traceback; the producer, which holds the parts in flight, must not.
    """
    job: _Job | None
    while sent or (job := jobs.take()) is not None:
        job = sent.popleft() if sent else job
        assert job is not None
        _settle(job.future, RuntimeError(message))


def _settle(future: concurrent.futures.Future[_Answer], outcome: _Answer | BaseException) -> None:
    # It may have been cancelled meanwhile.
    with contextlib.suppress(concurrent.futures.InvalidStateError):
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


class _ProcessTicket(Ticket):
    """Samples ``which`` of ``batch``, decoded with Pillow by ``jobs`` into their places."""

    def __init__(
        self, engine: ImageEngine, batch: BatchRequest, which: np.ndarray, jobs: Sequence[_Job]
    ) -> None:
        self._engine = engine
        self._batch = batch
        self.times = batch.times
        self._which = which
        self._jobs = jobs
        self._filled: list[PillowReport] = []
        # Held while the batch is written to. Re-entrant, as in the ticket of threads.
        self._copying = threading.RLock()

    def settle(self) -> tuple[torch.Tensor, dict[int, DataError]]:
        errors: dict[int, DataError] = {}
        rows_of_jobs = np.array_split(self._which, len(self._jobs))
        try:
            for rows, job in zip(rows_of_jobs, self._jobs, strict=True):
                answer = job.future.result()
                if answer.failure is not None:
                    answer.failure.reraise()  # type: ignore[no-untyped-call]
                assert answer.filled is not None, "what did not fail was filled"
                self._filled.append(answer.filled)
                for text, category in answer.warned:
                    warnings.warn(text, category, stacklevel=2)
                errors |= {int(rows[i]): error for i, error in answer.filled.errors.items()}
                if self.times is not None and answer.times is not None:
                    self.times[rows] = answer.times
        except BaseException:
            self.cancel()
            raise
        with self._copying:
            self.check_cancelled()
            self._copy()
        return self._batch.images, errors

    def _copy(self) -> None:
        memory, slab = self._batch.memory, self._jobs[0].slab
        n = len(self._batch.records)
        nbytes = memory.nbytes // n
        if len(self._which) == n:
            np.copyto(memory, slab[: memory.nbytes])
            return
        rows = memory.reshape(n, nbytes)
        for position, i in enumerate(self._which.tolist()):
            np.copyto(rows[i], slab[position * nbytes : (position + 1) * nbytes])

    def cancel(self) -> None:
        self.cancelled = True
        with self._copying:
            pass
        for job in self._jobs:
            if not job.future.cancel():
                _settle(job.future, concurrent.futures.CancelledError())

    def stages_ns(self) -> Mapping[str, int]:
        return stages_of(self._batch, self._filled)


# --- in the processes -----------------------------------------------------------------------------


def serve(connection: Connection, told: Connection, engines: Sequence[PixelEngine]) -> None:
    """Fill parts until told to end: the main function of a process."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the parent, which ends its processes
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    cpu.one_thread()
    parent, filler = os.getppid(), _AssignmentFiller(engines)
    ending, incoming = select.poll(), select.poll()
    for poll in (ending, incoming):
        poll.register(told, select.POLLIN)
    incoming.register(connection, select.POLLIN)

    def ended() -> bool:
        return bool(ending.poll(0))

    while not ended():
        if not incoming.poll(_LOOK_MS):
            if os.getppid() != parent:
                return
            continue
        if ended():
            return
        try:
            assignment = pickle.loads(connection.recv_bytes())  # noqa: S301 - of our parent
            with warnings.catch_warnings(record=True) as seen:
                answer = filler.fill(assignment, ended)
            if answer is not None:
                warned = [(str(warning.message), warning.category) for warning in seen]
                answer = dataclasses.replace(answer, warned=warned)
                connection.send_bytes(pickle.dumps(answer, pickle.HIGHEST_PROTOCOL))
        except (EOFError, ConnectionError):
            return


class _AssignmentFiller:
    """Fills parts in this process."""

    def __init__(self, engines: Sequence[PixelEngine]) -> None:
        self._engines = engines
        self._mapped = Mapped()

    def fill(self, assignment: _Assignment, ended: Callable[[], bool]) -> _Answer | None:
        """The outcome of ``assignment``; None: ``ended`` became true meanwhile."""
        try:
            slab = self._mapped.memory(assignment.slot)
            if slab is None:
                raise OSError("the slab of shared memory cannot be opened")
            memory = slab[assignment.offset : assignment.offset + assignment.nbytes]
            batch = dataclasses.replace(assignment.batch, memory=memory)
            pixel_limit.set_most_pixels(batch.most_pixels)
            filled = fill(self._engines[assignment.view], batch, range(len(batch.records)), ended)
        except Exception:  # noqa: BLE001 - raised in the training process
            location = f"in worker process {os.getpid()}, which decodes with Pillow"
            failure = ExceptionWrapper(where=location)  # type: ignore[no-untyped-call]
            return _Answer(None, None, failure=failure)
        return None if ended() else _Answer(filled, batch.times)


# --- pipes and forks ------------------------------------------------------------------------------

# The ends of pipes that this process holds. While another process has a copy of one, the pipe stays
# open when this process ends.
_ends: weakref.WeakSet[Connection] = weakref.WeakSet()


def _close_copies() -> None:
    for end in list(_ends):
        if not end.closed:
            end.close()
    _ends.clear()


os.register_at_fork(after_in_child=_close_copies)
