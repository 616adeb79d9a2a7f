"""Worker processes that decode with Pillow what the core does not decode.

Most of what Pillow does with a small image is Python, for which threads of one process take turns.
Processes do not. They fill samples as the threads do (``by_pillow.py``), with the random numbers
that were drawn for the batch, so the results are the same.

How it runs
    A batch's samples are divided into one part per process, and a slab of shared memory is leased
    for them. The processes of a ``ProcessPoolExecutor`` fill the parts. The ticket copies the
    samples from the slab into the batch.
How it ends
    success    when there is no user any more, or with ``persistent`` when the loader is deleted.
    failure    what a part raises is raised here. A process that dies fails all parts, until the
               next epoch starts new processes.
    early exit a cancelled ticket sets the last byte of its slab, which its processes see between
               two samples.
    parent     a process ends when its parent has ended.
    fork       a child of the training process leaves the processes alone, and starts its own.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import os
import signal
import threading
import warnings
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from multiprocessing.context import BaseContext

import numpy as np
import torch

from .._base import pixel_limit
from .._base.machine import cpu, parent
from .._base.shared_slabs import Mapped, SharedRing, Slot
from .._base.silence import silence
from ..errors import DataError
from .base import Ticket
from .by_pillow import PillowReport, fill, stages_of
from .image_engine import BatchRequest, ImageEngine, PixelEngine

# Slabs to keep: those of the batches that are being filled.
_SLABS = 3

# What a forked child has of its parent's. To drop one there would need locks that another thread
# of the parent may have held.
_of_parent: list[ProcessPoolExecutor] = []


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Part:
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
class _Filled:
    """What became of a part.

    Attributes:
        report: positions are those in the part.
        warned: text and category of Pillow's warnings, which the training process gives again.
    """

    report: PillowReport
    times: np.ndarray | None
    warned: Sequence[tuple[str, type[Warning]]]


class Processes:
    """The processes of an engine, or of the engines of all views.

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
        self._pool: ProcessPoolExecutor | None = None
        self._count = self._pid = 0
        # A dropped iterator ends in a thread of its own while the next one starts. Re-entrant: the
        # garbage collector may close an abandoned one in between.
        self._lock = threading.RLock()
        self._ring = SharedRing(_SLABS * len(self._engines))

    def acquire(self, user: object, count: int) -> None:
        """``user`` iterates, until ``release``; ``count`` processes start unless some run."""
        with self._lock:
            self._users.add(id(user))  # first: see _lock
            if self._pid != os.getpid() or (len(self._users) == 1 and self._count != count):
                self._stop()
            try:
                self._start(count)
            except BrokenProcessPool:
                self._stop()
                self._start(count)

    def release(self, user: object) -> None:
        """End one ``acquire``. Another call does nothing."""
        with self._lock:
            self._users.discard(id(user))
            if not self._users and not self._persistent:
                self._stop()

    def submit(self, engine: ImageEngine, batch: BatchRequest, which: np.ndarray) -> Ticket | None:
        """Start to fill samples ``which`` of ``batch``; None where there is no slab."""
        pool = self._pool
        nbytes = batch.memory.nbytes // len(batch.records)
        self._ring.wanted(nbytes * len(which) + 1)
        lease = None if pool is None or self._pid != os.getpid() else self._ring.lease()
        if pool is None or lease is None:
            return None
        slot, slab = lease
        slab[-1] = 0
        filling, at = [], 0
        for rows in np.array_split(which, min(self._count, len(which))):
            part = _Part(
                view=engine.options.view,
                batch=batch.part(rows, slab[:0]),
                slot=slot,
                offset=at,
                nbytes=nbytes * len(rows),
            )
            at += part.nbytes
            try:
                filling.append(pool.submit(_fill, part))
            except BrokenProcessPool:
                raise _died() from None
            filling[-1].add_done_callback(functools.partial(_kept, slab))
        return _ProcessTicket(batch, which, slab, filling)

    def _start(self, count: int) -> None:
        """Start the processes, unless there are some. Raises BrokenProcessPool if one has died."""
        if self._pool is None:
            self._count, self._pid = count, os.getpid()
            self._pool = ProcessPoolExecutor(count, self._context, _begin, (self._engines,))
            # Also at exit: Python has an error to show of a pool that nobody has shut down by then.
            self._end = weakref.finalize(self, _shut_down, self._pool, self._pid)
        # Python 3.12 and later: other threads may hold locks, which stay locked in the child. It
        # takes none of them.
        with silence(".*multi-threaded", DeprecationWarning):
            for _ in range(count):  # each starts a process; that of a fork all of them
                self._pool.submit(os.getpid)

    def _stop(self) -> None:
        if self._pool is not None:
            self._pool = None
            self._end()


def _shut_down(pool: ProcessPoolExecutor, pid: int) -> None:
    if pid == os.getpid():
        pool.shutdown(cancel_futures=True)
    else:
        _of_parent.append(pool)


def _kept(slab: np.ndarray, part: concurrent.futures.Future[_Filled]) -> None:
    """Keeps the slab until the part is done, which may be after its ticket was cancelled."""


def _died() -> RuntimeError:
    return RuntimeError(
        "a worker process, which decodes with Pillow, exited unexpectedly: it was killed (is there "
        "enough memory?) or crashed"
    )


class _ProcessTicket(Ticket):
    """Samples ``which`` of ``batch``, which processes are ``filling`` into ``slab``."""

    def __init__(
        self,
        batch: BatchRequest,
        which: np.ndarray,
        slab: np.ndarray,
        filling: Sequence[concurrent.futures.Future[_Filled]],
    ) -> None:
        self._batch = batch
        self.times = batch.times
        self._which = which
        self._slab = slab
        self._filling = filling
        self._reports: list[PillowReport] = []
        # Held while the batch is written to. Re-entrant, as in the ticket of threads.
        self._copying = threading.RLock()

    def settle(self) -> tuple[torch.Tensor, dict[int, DataError]]:
        errors: dict[int, DataError] = {}
        parts = np.array_split(self._which, len(self._filling))
        try:
            for rows, part in zip(parts, self._filling, strict=True):
                filled = part.result()
                self._reports.append(filled.report)
                for text, category in filled.warned:
                    warnings.warn(text, category, stacklevel=2)
                errors |= {int(rows[i]): error for i, error in filled.report.errors.items()}
                if self.times is not None and filled.times is not None:
                    self.times[rows] = filled.times
        except BrokenProcessPool:
            # Another error: this one is that of all parts, and what is raised refers to the
            # iterator, through its traceback. The producer, which holds them, must not.
            self.cancel()
            raise _died() from None
        except BaseException:
            self.cancel()
            raise
        with self._copying:
            self.check_cancelled()
            self._copy()
        return self._batch.images, errors

    def _copy(self) -> None:
        memory, slab = self._batch.memory, self._slab
        n = len(self._batch.records)
        nbytes = memory.nbytes // n
        if len(self._which) == n:
            np.copyto(memory, slab[: memory.nbytes])
            return
        rows = memory.reshape(n, nbytes)
        for at, i in enumerate(self._which.tolist()):
            np.copyto(rows[i], slab[at * nbytes : (at + 1) * nbytes])

    def cancel(self) -> None:
        self.cancelled = True
        with self._copying:
            self._slab[-1] = 1
        for part in self._filling:
            part.cancel()

    def stages_ns(self) -> Mapping[str, int]:
        return stages_of(self._batch, self._reports)


# --- in the processes -----------------------------------------------------------------------------

_engines: Sequence[PixelEngine] = ()
_mapped = Mapped()


def _begin(engines: Sequence[PixelEngine]) -> None:
    """Make this a process that fills parts with ``engines``."""
    global _engines
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # reaches the parent, which ends its processes
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    cpu.one_thread()
    _engines = engines
    parent.end_with_it()


def _fill(part: _Part) -> _Filled:
    slab = _mapped.memory(part.slot)
    if slab is None:
        raise OSError("the slab of shared memory cannot be opened")
    memory = slab[part.offset : part.offset + part.nbytes]
    batch = dataclasses.replace(part.batch, memory=memory)
    pixel_limit.set_most_pixels(batch.most_pixels)
    with warnings.catch_warnings(record=True) as seen:
        which = range(len(batch.records))
        report = fill(_engines[part.view], batch, which, lambda: bool(slab[-1]))
    return _Filled(report, batch.times, [(str(one.message), one.category) for one in seen])
