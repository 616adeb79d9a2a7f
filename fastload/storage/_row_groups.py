"""Row groups of Parquet files in memory: each is decoded once while there is room for it.

A row group is the smallest part of a Parquet file that can be read. What was decoded of one, a
column of Arrow memory, is kept until there is no room; then the one is evicted whose next use in
the running epoch is farthest away. One limit holds for all stores of the process.

How it runs
    ``pin`` asks for a column of a row group, and keeps it until ``unpin``. Threads decode what was
    asked for, the most urgent first; they start when there is work and end when there is none. Who
    waits for a row group that no thread has begun decodes it itself.
How it ends
    success   ``Part.result`` gives the column.
    failure   ``Part.result`` raises why; the next ``pin`` tries again.
    cancel    what nobody pins any more before a thread began it is not decoded.
    fork      a child begins with nothing: threads and locks are the parent's.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
import itertools
import os
import threading
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from .._base.machine import memory, ranks

if TYPE_CHECKING:
    import pyarrow as pa

    from ._arrow_columns import Images

THREADS = 4
"""Row groups decoded at a time, at most. Decoding one is mostly copying and waiting for the disk,
so there are few beside the threads that decode images; at a URL it is waiting for the network."""

_SHARE = 0.25  # of the memory that is available when the first row group is read
_LEAST_NBYTES = 256 << 20

Key: TypeAlias = "tuple[str, int | bytes]"
"""The name of a column, and the number of a row group in its store; or what else says which rows,
where a store has no row groups."""


@dataclasses.dataclass(frozen=True)
class Decoded:
    """A column of a row group, and how much memory it takes."""

    column: Images | pa.ChunkedArray
    nbytes: int


class Reader(Protocol):
    """Decodes the row groups of one store."""

    def decode(self, key: Key) -> Decoded:
        """The column, from its file. Raises StoreError where it cannot be read."""

    def next_use(self, rows: int | bytes) -> float:
        """The position in the running epoch at which they are used next; inf: they are not."""


class Part:
    """One column of one row group, decoded or about to be. ``RowGroups`` makes them.

    Attributes:
        pins: how many need it.
        begun: a thread decodes it, or has, or nobody needs it any more.
        gone: it is forgotten when nobody needs it, as its store was closed, or nobody will again.
        nbytes: of memory, estimated until it is decoded.
        used: when it was pinned last, as a count of pins.
    """

    def __init__(self, reader: Reader, key: Key, nbytes: int) -> None:
        self.reader, self.key, self.nbytes = reader, key, nbytes
        self.pins, self.used = 0, 0
        self.begun = self.gone = False
        self._done = threading.Event()
        self._decoded: Decoded | None = None
        self._error: BaseException | None = None

    def ready(self) -> bool:
        """Whether it was decoded, or could not be."""
        return self._done.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is ready; whether it is."""
        return self._done.wait(timeout_s)

    def decode(self) -> None:
        """Decode it on this thread; only who has set ``begun``."""
        try:
            self._decoded = self.reader.decode(self.key)
        except BaseException as error:  # noqa: BLE001 - raised by ``result``, where it is needed
            self._error = error

    def finished(self) -> None:
        """Wake the threads that wait for it."""
        self._done.set()

    @property
    def decoded(self) -> Decoded | None:
        """What came of it so far."""
        return self._decoded

    def column(self) -> Any:  # Images or a ChunkedArray, as the name of the column says
        """The column, once it is ready. Raises why it could not be decoded."""
        if self._error is not None:
            raise self._error
        assert self._decoded is not None, "the caller waited for it"
        return self._decoded.column


class RowGroups:
    """The row groups of all stores of this process.

    ``limit`` is what they take in memory at most, beside what a single batch cannot do without;
    None: as ``default_limit`` says when it is first needed.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._parts: dict[Hashable, Part] = {}
        self._queue: list[tuple[float, int, Part]] = []
        self._count = itertools.count()
        self._threads = 0
        # Appended to without the lock, by finalizers, which may run while this thread has it.
        self._dropped: collections.deque[list[Part] | Reader] = collections.deque()
        self._nbytes = self._pinned = 0
        self.decoded = 0
        """Columns of row groups that were decoded so far."""

    @property
    def limit(self) -> int:
        if self._limit is None:
            self._limit = default_limit()
        return self._limit

    @property
    def nbytes(self) -> int:
        """Bytes in memory now, or about to be."""
        return self._nbytes

    def roomy(self) -> bool:
        """Whether what is pinned leaves room to evict something."""
        return self._pinned <= self.limit // 2

    def pin(
        self,
        reader: Reader,
        key: Key,
        nbytes: int,
        *,
        urgency: float = 0.0,
        ahead: bool = False,
        once: bool = False,
    ) -> Part | None:
        """A column of a row group, which stays in memory until ``unpin``; perhaps not decoded yet.

        Args:
            nbytes: how much memory it will take, about.
            urgency: the smallest is decoded first.
            ahead: it is not needed yet: None is returned if there is no room for it.
            once: forget it when nobody needs it, though there may be room.
        """
        limit, name = self.limit, (id(reader), key)
        with self._lock:
            self._tidy()
            part = self._parts.get(name)
            if part is None:
                if ahead and self._pinned + nbytes > limit // 2:
                    return None
                self._evict(limit - nbytes)
                part = self._parts[name] = Part(reader, key, nbytes)
                part.gone = once
                self._nbytes += nbytes
                heapq.heappush(self._queue, (urgency, next(self._count), part))
                if self._threads < THREADS:
                    self._start_thread()
            elif ahead and not part.pins and self._pinned + part.nbytes > limit // 2:
                return None
            if not part.pins:
                self._pinned += part.nbytes
            part.pins += 1
            part.used = next(self._count)
            return part

    def wait(self, part: Part) -> Any:  # as ``Part.column``
        """The column of a pinned part. Raises why it could not be decoded."""
        with self._lock:
            mine = not part.begun
            part.begun = True
        if mine:
            self._decode(part)
        else:
            part.wait()
        return part.column()

    def unpin(self, part: Part) -> None:
        with self._lock:
            self._unpin(part)

    def drop(self, what: list[Part] | Reader) -> None:
        """End one ``pin`` of each part; or forget what a reader has decoded. From anywhere.

        It happens at once, or when the lock is free: finalizers call this.
        """
        self._dropped.append(what)
        if self._lock.acquire(blocking=False):
            try:
                self._tidy()
            finally:
                self._lock.release()

    def _tidy(self) -> None:
        while self._dropped:
            what = self._dropped.popleft()
            if isinstance(what, list):
                for part in what:
                    self._unpin(part)
                continue
            for part in [part for part in self._parts.values() if part.reader is what]:
                part.gone = True
                if not part.pins and part.ready():
                    self._remove(part)

    def _unpin(self, part: Part) -> None:
        part.pins -= 1
        if part.pins:
            return
        self._pinned -= part.nbytes
        if not part.begun or part.gone:
            part.begun = True  # no thread decodes it
            self._remove(part)

    def _remove(self, part: Part) -> None:
        name = (id(part.reader), part.key)
        if self._parts.get(name) is part:
            del self._parts[name]
            self._nbytes -= part.nbytes

    def _evict(self, room: int) -> None:
        """Evict until at most ``room`` bytes are left, or nothing can be evicted."""
        while self._nbytes > room:
            idle = [part for part in self._parts.values() if not part.pins and part.ready()]
            if not idle:
                return
            self._remove(max(idle, key=lambda one: (one.reader.next_use(one.key[1]), -one.used)))

    def _start_thread(self) -> None:
        self._threads += 1
        try:
            threading.Thread(target=self._work, name="fastload-row-groups").start()
        except RuntimeError:  # the system grants no more: who waits for a part decodes it
            self._threads -= 1

    def _work(self) -> None:
        """Decode what was asked for, until there is nothing more."""
        while True:
            with self._lock:
                part = None
                while self._queue and part is None:
                    part = heapq.heappop(self._queue)[2]
                    part = None if part.begun else part
                if part is None:
                    self._threads -= 1
                    return
                part.begun = True
            self._decode(part)

    def _decode(self, part: Part) -> None:
        part.decode()
        with self._lock:
            self.decoded += 1
            if part.decoded is None:
                self._nbytes -= part.nbytes if self._present(part) else 0
                self._pinned -= part.nbytes if part.pins else 0
                part.nbytes = 0
                self._remove(part)
            else:
                more = part.decoded.nbytes - part.nbytes
                self._nbytes += more if self._present(part) else 0
                self._pinned += more if part.pins else 0
                part.nbytes = part.decoded.nbytes
                if part.gone and not part.pins:
                    self._remove(part)
        part.finished()

    def _present(self, part: Part) -> bool:
        return self._parts.get((id(part.reader), part.key)) is part


class Pins:
    """Parts that stay in memory: a ``Held``."""

    def __init__(self, groups: RowGroups) -> None:
        self._groups, self._parts = groups, list[Part]()
        self._process = os.getpid()

    def add(self, part: Part) -> None:
        """One more, which the caller has pinned."""
        self._parts.append(part)

    def ready(self) -> bool:
        return all(part.ready() for part in self._parts)

    def wait(self, ended: Callable[[], bool] = lambda: False) -> None:
        """What is wrong with a part, ``spans`` raises."""
        for part in self._parts:
            while not part.wait(0.05) and not ended():
                pass

    def release(self) -> None:
        parts, self._parts = self._parts, []
        if os.getpid() == self._process:  # what a forked child was left is not its own
            self._groups.drop(parts)

    def __del__(self) -> None:
        self.release()


def default_limit() -> int:
    """A quarter of the memory that is available, divided among the processes that read."""
    from torch.utils.data import get_worker_info  # what only writes stores needs no torch

    worker = get_worker_info()
    sharers = ranks.local() * (1 if worker is None else worker.num_workers)
    return max(_LEAST_NBYTES, int(memory.available() * _SHARE) // max(1, sharers))


_of_process = RowGroups()


def of_process() -> RowGroups:
    return _of_process


def use(groups: RowGroups) -> RowGroups:
    """Make ``groups`` those of this process; return those before."""
    global _of_process
    before, _of_process = _of_process, groups
    return before


def _begin_again() -> None:
    """Make a forked child begin with nothing, but its parent's limit."""
    use(RowGroups(_of_process._limit))


os.register_at_fork(after_in_child=_begin_again)
