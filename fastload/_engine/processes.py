"""Worker processes that decode what the core leaves to Pillow.

Most of what Pillow does with a small image is Python, so that threads of one process take turns at
it. Processes do not. They fill samples just as the threads do (``python.py``), with the random
numbers that were drawn for the batch, so that it does not matter who decodes.

How it runs
    A ticket cuts its samples into one part for each process, and leases a slab of shared memory
    for them. Each process has a thread here that sends it parts and receives answers; a process has
    up to two parts, so that it need not wait for the next one. The ticket then copies the samples
    out of the slab into the batch, wherever that lies.
How it ends
    success    when nobody iterates any more, or with ``persistent`` when the loader goes.
    failure    what a sample raises travels in the answer. A process that dies fails the parts that
               it had and all that come after, until the next epoch begins with new processes.
    early exit ``stop`` writes a byte that every process sees between two samples.
    parent     a process ends when its parent is gone.
    fork       a child of the training process has the objects but not the processes, and lets them
               alone; it closes its copies of the pipes.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import os
import pickle
import queue
import select
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch._utils import ExceptionWrapper

from .. import _native
from .._base.machine import cpu
from .._base.shared_slabs import Mapped, SharedRing, Slot
from ..errors import DataError, sample_error
from .decoder import Batch, Decoder, Ticket
from .python import PythonDecoder, Spent, as_array, fill, fill_one, read_indirect

if TYPE_CHECKING:
    from .native import NativeDecoder

# Parts that a process has at a time: the one it works on, and the next one.
_PARTS = 2

# Slabs that are kept: of the batches that are being filled.
_SLABS = 3

# How often an idle process looks whether its parent is still there, should nobody tell it.
_LOOK_MS = 5000

# How long a process may take for the sample that it is at when it is told to end.
_END_S = 5.0

# Decoded images that wait for the core to go on with them: as many as a processor's cache holds.
_WAITING_NBYTES = 1 << 21

# In the place of an image that could not be decoded.
_NOTHING = np.zeros((1, 1, 3), np.uint8)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Part:
    """Samples of a batch for one process.

    Attributes:
        view: which of the decoders makes them.
        batch: just these samples; its memory is a part of a slab.
        slot: names that slab.
        offset, nbytes: the part.
    """

    view: int
    batch: Batch
    slot: Slot
    offset: int
    nbytes: int


@dataclasses.dataclass(frozen=True)
class _Answer:
    """What became of a part.

    Attributes:
        errors: by position in the part.
        spent: see ``PythonTicket``, added up.
        times: as ``Batch.times``, or None.
        failure: what is no DataError, or None.
    """

    errors: dict[int, DataError]
    spent: Spent
    times: np.ndarray | None
    failure: ExceptionWrapper | None = None


@dataclasses.dataclass
class _Job:
    """A part on its way; it keeps the slab that a process writes into."""

    message: bytes
    slab: np.ndarray
    future: concurrent.futures.Future[_Answer]


class Processes:
    """The processes of one decoder, or of the decoders of all views.

    Args:
        decoders: what they do, one for each view.
        context: of multiprocessing.
        persistent: whether they outlive an epoch.
    """

    def __init__(
        self, decoders: Sequence[PythonDecoder], context: Any, *, persistent: bool
    ) -> None:
        self._decoders = tuple(decoders)
        self._context = context
        self._persistent = persistent
        self._users = set[int]()
        self._team: _Team | None = None
        # An iterator that was let go ends in its own thread while the next one begins. Re-entrant:
        # the collector may close an abandoned one in between.
        self._lock = threading.RLock()
        self.ring = SharedRing(_SLABS * len(self._decoders))

    @property
    def count(self) -> int:
        """How many there are."""
        return 0 if self._team is None else len(self._team.members)

    def acquire(self, user: object, count: int) -> None:
        """``user`` iterates, until ``release``; there are ``count`` processes, if none are yet."""
        with self._lock:
            self._users.add(id(user))  # first: see _lock
            team, alone = self._team, len(self._users) == 1
            if team is not None and (not team.whole() or (alone and self.count != count)):
                self._stop()
            if self._team is None:
                self._team = _Team(self._context, self._decoders, count)
                self._end = weakref.finalize(self, self._team.stop)

    def release(self, user: object) -> None:
        """End of one ``acquire``. Another call does nothing."""
        with self._lock:
            self._users.discard(id(user))
            if not self._users and not self._persistent:
                self._stop()

    def submit(self, view: int, batch: Batch, which: np.ndarray) -> list[_Job] | None:
        """Begin to fill samples ``which`` of ``batch``, in parts; None: there is no slab."""
        team = self._team
        nbytes = batch.memory.nbytes // len(batch.records)
        self.ring.wanted(nbytes * len(which))
        lease = None if team is None or not team.mine else self.ring.lease()
        if team is None or lease is None:
            return None
        slot, slab = lease
        jobs, at = [], 0
        for rows in np.array_split(which, min(len(team.members), len(which))):
            part = _Part(
                view=view,
                batch=batch.part(rows, slab[:0]),
                slot=slot,
                offset=at,
                nbytes=nbytes * len(rows),
            )
            at += part.nbytes
            message = pickle.dumps(part, pickle.HIGHEST_PROTOCOL)
            jobs.append(_Job(message, slab, concurrent.futures.Future()))
        for job in jobs:
            team.put(job)
        return jobs

    def _stop(self) -> None:
        if self._team is not None:
            self._team = None
            self._end()


class _Team:
    """Processes, and the threads that attend to them. None of these refers to ``Processes``."""

    def __init__(self, context: Any, decoders: Sequence[PythonDecoder], count: int) -> None:
        self._pid = os.getpid()
        self.jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.members: list[Any] = []
        # Set by the thread that finds its process gone. The system closes the pipes of a process
        # some time before it lets ``is_alive`` know.
        self._broken = threading.Event()
        self._threads: list[threading.Thread] = []
        self._stopped = False
        told, self._tell = context.Pipe(duplex=False)
        _keep(self._tell)
        try:
            for number in range(count):
                ours, theirs = context.Pipe()
                _keep(ours)
                process = context.Process(
                    target=serve,
                    args=(theirs, told, decoders),
                    name=f"fastload-pillow-{number}",
                    daemon=True,
                )
                with warnings.catch_warnings():
                    # Python 3.12 and later: a child may not go on with what other threads were at.
                    warnings.filterwarnings("ignore", ".*multi-threaded", DeprecationWarning)
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
            for thread in self._threads:  # behind the last fork
                thread.start()
        except BaseException:
            self.stop()
            raise
        finally:
            told.close()

    def put(self, job: _Job) -> None:
        """Let one of them do ``job``."""
        self.jobs.put(job)
        if self._stopped:  # nobody may look there any more
            _settle(job.future, concurrent.futures.CancelledError())

    @property
    def mine(self) -> bool:
        """Whether this process started them."""
        return self._pid == os.getpid()

    def whole(self) -> bool:
        """Whether all of them are there and this process's own."""
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
        for _ in self._threads:
            self.jobs.put(None)  # whichever thread takes it
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
    jobs: queue.SimpleQueue[_Job | None],
    pid: int,
    broken: threading.Event,
) -> None:
    """Send parts to one process and receive its answers: the thread that it has here."""
    sent = collections.deque[_Job]()
    job: _Job | None = None
    try:
        while True:
            while len(sent) < _PARTS:
                try:
                    job = jobs.get(block=not sent)
                except queue.Empty:
                    break
                if job is None:
                    return
                if job.future.set_running_or_notify_cancel():
                    sent.append(job)
                    connection.send_bytes(job.message)
                job = None
            answer: _Answer = pickle.loads(connection.recv_bytes())  # noqa: S301 - of our child
            _settle(sent.popleft().future, answer)
            del answer
    except (EOFError, OSError):
        broken.set()
        _fail(sent, jobs, pid)
    finally:
        for job in sent:
            job.future.cancel()
            _settle(job.future, concurrent.futures.CancelledError())
        connection.close()


def _fail(sent: collections.deque[_Job], jobs: queue.SimpleQueue[_Job | None], pid: int) -> None:
    """The process is gone: so are its parts, and whoever asks for more is told."""
    job: _Job | None
    while sent or (job := jobs.get()) is not None:
        job = sent.popleft() if sent else job
        assert job is not None
        _settle(
            job.future,
            RuntimeError(
                f"the worker process {pid}, which decodes with Pillow, exited unexpectedly: it was "
                "killed (is there enough memory?) or crashed"
            ),
        )


def _settle(future: concurrent.futures.Future[_Answer], outcome: _Answer | BaseException) -> None:
    # One that was cancelled meanwhile is nobody's any more.
    with contextlib.suppress(concurrent.futures.InvalidStateError):
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


class ProcessTicket(Ticket):
    """Samples ``which`` of ``batch``, decoded with Pillow by ``jobs`` into their places."""

    def __init__(
        self, decoder: Decoder, batch: Batch, which: np.ndarray, jobs: Sequence[_Job]
    ) -> None:
        self._decoder = decoder
        self._batch = batch
        self.times = batch.times
        self._which = which
        self._jobs = jobs
        self._spent: list[Spent] = []

    def result(self) -> torch.Tensor:
        images, errors = self.settle()
        if errors:
            raise errors[min(errors)]
        return images

    def settle(self) -> tuple[torch.Tensor, dict[int, DataError]]:
        errors: dict[int, DataError] = {}
        parts = np.array_split(self._which, len(self._jobs))
        try:
            for rows, job in zip(parts, self._jobs, strict=True):
                answer = job.future.result()
                if answer.failure is not None:
                    answer.failure.reraise()  # type: ignore[no-untyped-call]
                self._spent.append(answer.spent)
                errors |= {int(rows[i]): error for i, error in answer.errors.items()}
                if self.times is not None and answer.times is not None:
                    self.times[rows] = answer.times
        except BaseException:
            self.cancel()
            raise
        self._copy()
        if not errors:
            self._decoder.checked(self._batch)
        return self._batch.images, errors

    def _copy(self) -> None:
        memory, slab = self._batch.memory, self._jobs[0].slab
        n = len(self._batch.records)
        nbytes = memory.nbytes // n
        if len(self._which) == n:
            np.copyto(memory, slab[: memory.nbytes])
            return
        rows = memory.reshape(n, nbytes)
        for at, i in enumerate(self._which.tolist()):
            np.copyto(rows[i], slab[at * nbytes : (at + 1) * nbytes])

    def cancel(self) -> None:
        # The processes write into the slab only, never into the batch.
        for job in self._jobs:
            if not job.future.cancel():
                _settle(job.future, concurrent.futures.CancelledError())

    def stages_ns(self) -> Mapping[str, int]:
        later = "resize" if self._batch.recipe is None else "augment"
        return {
            "decode": sum(decoding for decoding, _ in self._spent),
            later: sum(rest for _, rest in self._spent),
        }


# --- in the processes -----------------------------------------------------------------------------


def serve(connection: Connection, told: Connection, decoders: Sequence[PythonDecoder]) -> None:
    """Fill parts until told to end: the main function of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's Ctrl-C ends its processes
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    cpu.one_thread()
    parent, filler = os.getppid(), _Filler(decoders)
    ending, asked = select.poll(), select.poll()
    for wanted in (ending, asked):
        wanted.register(told, select.POLLIN)
    asked.register(connection, select.POLLIN)

    def ended() -> bool:
        return bool(ending.poll(0))

    while not ended():
        if not asked.poll(_LOOK_MS):
            if os.getppid() != parent:
                return
            continue
        if ended():
            return
        try:
            part = pickle.loads(connection.recv_bytes())  # noqa: S301 - of our parent
            answer = filler.fill(part, ended)
            if answer is not None:
                connection.send_bytes(pickle.dumps(answer, pickle.HIGHEST_PROTOCOL))
        except (EOFError, ConnectionError):
            return


class _Filler:
    """Fills parts in this process."""

    def __init__(self, decoders: Sequence[PythonDecoder]) -> None:
        self._decoders = decoders
        self._mapped = Mapped()
        self._natives: dict[int, NativeDecoder] = {}

    def fill(self, part: _Part, ended: Callable[[], bool]) -> _Answer | None:
        """What became of ``part``; None: ``ended`` became true meanwhile."""
        errors: dict[int, DataError] = {}
        decoding, rest = 0, 0
        decoder = self._decoders[part.view]
        try:
            slab = self._mapped.memory(part.slot)
            if slab is None:
                raise OSError("the slab of shared memory cannot be opened")
            memory = slab[part.offset : part.offset + part.nbytes]
            batch = dataclasses.replace(part.batch, memory=memory)
            out = as_array(decoder, batch)
            data = None if decoder.origin.indirect is None else read_indirect(decoder.origin, batch)
            behind = self._behind(part.view, batch, errors)
            for i in range(len(batch.records)):
                if ended():
                    return None
                try:
                    later = None if behind is None else behind.take
                    spent = fill_one(decoder, batch, i, out, data, later)
                except DataError as error:
                    errors[i] = error
                else:
                    decoding, rest = decoding + spent[0], rest + spent[1]
            if behind is not None:
                behind.fill()
                rest += behind.nanoseconds
        except Exception:  # noqa: BLE001 - raised in the training process
            where = f"in worker process {os.getpid()}, which decodes with Pillow"
            failure = ExceptionWrapper(where=where)  # type: ignore[no-untyped-call]
            return _Answer({}, (0, 0), None, failure)
        return _Answer(errors, (decoding, rest), batch.times)

    def _behind(self, view: int, batch: Batch, errors: dict[int, DataError]) -> _Behind | None:
        """What makes samples of decoded images; None where there is no core, and Pillow does."""
        if _native.load() is None:
            return None
        if view not in self._natives:
            from .native import NativeDecoder

            decoder = self._decoders[view]
            self._natives[view] = NativeDecoder(
                decoder.origin,
                decoder.plan,
                channels_last=decoder.channels_last,
                threads=0,
                check_crc="never",
                ring=None,
            )
        return _Behind(self._natives[view], batch, errors)


class _Behind:
    """Lets the core do with decoded images what comes behind decoding, some at a time."""

    def __init__(self, decoder: NativeDecoder, batch: Batch, errors: dict[int, DataError]) -> None:
        self._decoder = decoder
        self._batch = batch
        self._out = as_array(decoder, batch)
        self._errors = errors
        self._begin = self._end = 0  # of the samples that are waiting
        self._pixels: dict[int, np.ndarray] = {}
        self._nbytes = 0
        self.nanoseconds = 0

    def take(self, i: int, image: Image.Image) -> None:
        """The next sample: just what its box shows of ``image``."""
        x, y, w, h = self._batch.geometry.box[i].tolist()
        if (w, h) != image.size:
            image = image.crop((x, y, x + w, y + h))
        self._pixels[i] = pixels = np.asarray(image)
        self._end = i + 1
        self._nbytes += pixels.nbytes
        if self._nbytes > _WAITING_NBYTES:
            self.fill()

    def fill(self) -> None:
        """Fill the samples that are waiting."""
        if self._pixels:
            begin_ns = time.perf_counter_ns()
            rows = slice(self._begin, self._end)
            nbytes = len(self._batch.memory) // len(self._batch.records)
            memory = self._batch.memory[nbytes * self._begin : nbytes * self._end]
            pixels = [self._pixels.get(i, _NOTHING) for i in range(self._begin, self._end)]
            for i in self._decoder.of_pixels(self._batch.part(rows, memory), pixels):
                self._by_pillow(self._begin + i)
            self.nanoseconds += time.perf_counter_ns() - begin_ns
        self._begin, self._nbytes = self._end, 0
        self._pixels = {}

    def _by_pillow(self, i: int) -> None:
        """Fill sample ``i`` as the threads of ``PythonTicket`` would."""
        image = Image.fromarray(self._pixels[i])
        box = self._batch.geometry.box.copy()
        box[i] = 0, 0, *image.size
        geometry = dataclasses.replace(self._batch.geometry, box=box)
        try:
            fill(image, i, geometry, self._decoder.plan, self._out, self._batch.recipe)
        except Exception as error:  # noqa: BLE001 - what Pillow or the system may raise
            self._errors[i] = sample_error(
                error, **self._decoder.where(int(self._batch.records[i]))
            )


# --- pipes and forks ------------------------------------------------------------------------------

# The ends of pipes that this process holds. As long as another process has a copy of one, nobody
# learns that this process is gone.
_ends: weakref.WeakSet[Connection] = weakref.WeakSet()
_registered = False


def _keep(end: Connection) -> None:
    global _registered
    _ends.add(end)
    if not _registered:
        os.register_at_fork(after_in_child=_close_copies)
        _registered = True


def _close_copies() -> None:
    for end in list(_ends):
        if not end.closed:
            end.close()
    _ends.clear()
