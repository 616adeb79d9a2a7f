"""Row groups of Parquet files in memory: each is decoded once while there is room for it.

A row group is the smallest part of a Parquet file that can be read. What was decoded of one, a
column of Arrow memory, is kept until there is no room; then the one is evicted whose next use in
the running epoch is farthest away. One limit holds for all stores of the process.

How it runs
    ``pin`` asks for a column of a row group, and keeps it until ``unpin``. Threads decode what was
    asked for, the most urgent first; they start when there is work and end when there is none. Who
    waits for a row group that no thread has begun decodes it itself.
How it ends
    success   ``wait`` gives the column.
    failure   ``wait`` raises why; the next ``pin`` tries again.
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

    from ._arrow_columns import ImagePlaces

THREADS = 4
"""Row groups decoded at a time, at most. Decoding one is mostly copying and waiting for the disk,
so there are few beside the threads that decode images; at a URL it is waiting for the network."""

_SHARE = 0.25  # of the memory that is available when the first row group is read
_LEAST_NBYTES = 256 << 20

Key: TypeAlias = "tuple[str, int | bytes]"
"""The name of a column, and the number of a row group in its store; or what else says which rows,
where a store has no row groups."""


@dataclasses.dataclass(frozen=True)
class DecodedColumn:
    """A column of a row group, and how much memory it takes."""

    column: ImagePlaces | pa.ChunkedArray
    nbytes: int


class RowGroupReader(Protocol):
    """Decodes the row groups of one store."""

    def decode(self, key: Key) -> DecodedColumn:
        """The column, from its file. Raises StoreError where it cannot be read."""

    def next_use(self, rows: int | bytes) -> float:
        """The position in the running epoch at which they are used next; inf: they are not."""


class ColumnChunk:
    """One column of one row group, decoded or about to be. ``RowGroups`` makes them.

    Attributes:
        pins: how many need it.
        begun: a thread decodes it, or has, or nobody needs it any more.
        gone: it is forgotten when nobody needs it, as its store was closed, or nobody will again.
        nbytes: of memory, estimated until it is decoded.
        used: when it was pinned last, as a count of pins.
    """

    def __init__(self, reader: RowGroupReader, key: Key, nbytes: int) -> None:
        self.reader, self.key, self.nbytes = reader, key, nbytes
        self.pins, self.used = 0, 0
        self.begun = self.gone = False
        self.done = threading.Event()
        self.decoded: DecodedColumn | None = None
        self.error: BaseException | None = None


class RowGroups:
    """The row groups of all stores of this process.

    ``limit`` is what they take in memory at most, beside what a single batch cannot do without;
    None: as ``default_limit`` says when it is first needed.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._chunks: dict[Hashable, ColumnChunk] = {}
        self._queue: list[tuple[float, int, ColumnChunk]] = []
        self._count = itertools.count()
        self._threads = 0
        # Appended to without the lock, by finalizers, which may run while this thread has it.
        self._dropped: collections.deque[list[ColumnChunk] | RowGroupReader] = collections.deque()
        self._pinned = 0
        self.nbytes = 0
        """Bytes in memory now, or about to be."""
        self.decoded = 0
        """Columns of row groups that were decoded so far."""

    @property
    def limit(self) -> int:
        if self._limit is None:
            self._limit = default_limit()
        return self._limit

    def roomy(self) -> bool:
        """Whether what is pinned leaves room to evict something."""
        return self._pinned <= self.limit // 2

    def pin(
        self,
        reader: RowGroupReader,
        key: Key,
        nbytes: int,
        *,
        urgency: float = 0.0,
        ahead: bool = False,
        once: bool = False,
    ) -> ColumnChunk | None:
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
            chunk = self._chunks.get(name)
            if chunk is None:
                if ahead and self._pinned + nbytes > limit // 2:
                    return None
                self._evict(limit - nbytes)
                chunk = self._chunks[name] = ColumnChunk(reader, key, nbytes)
                chunk.gone = once
                self.nbytes += nbytes
                heapq.heappush(self._queue, (urgency, next(self._count), chunk))
                if self._threads < THREADS:
                    self._start_thread()
            elif ahead and not chunk.pins and self._pinned + chunk.nbytes > limit // 2:
                return None
            if not chunk.pins:
                self._pinned += chunk.nbytes
            chunk.pins += 1
            chunk.used = next(self._count)
            return chunk

    def wait(self, chunk: ColumnChunk) -> Any:  # Images or a ChunkedArray: its key says which
        """The column of a pinned chunk. Raises why it could not be decoded."""
        with self._lock:
            mine = not chunk.begun
            chunk.begun = True
        if mine:
            self._decode(chunk)
        else:
            chunk.done.wait()
        if chunk.error is not None:
            raise chunk.error
        assert chunk.decoded is not None, "this has waited for it"
        return chunk.decoded.column

    def unpin(self, chunk: ColumnChunk) -> None:
        with self._lock:
            self._unpin(chunk)

    def drop(self, what: list[ColumnChunk] | RowGroupReader) -> None:
        """End one ``pin`` of each chunk; or forget what a reader has decoded. From anywhere.

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
                for chunk in what:
                    self._unpin(chunk)
                continue
            for chunk in [chunk for chunk in self._chunks.values() if chunk.reader is what]:
                chunk.gone = True
                if not chunk.pins and chunk.done.is_set():
                    self._remove(chunk)

    def _unpin(self, chunk: ColumnChunk) -> None:
        chunk.pins -= 1
        if chunk.pins:
            return
        self._pinned -= chunk.nbytes
        if not chunk.begun or chunk.gone:
            chunk.begun = True  # no thread decodes it
            self._remove(chunk)

    def _remove(self, chunk: ColumnChunk) -> None:
        if self._present(chunk):
            del self._chunks[id(chunk.reader), chunk.key]
            self.nbytes -= chunk.nbytes

    def _evict(self, room: int) -> None:
        """Evict until at most ``room`` bytes are left, or nothing can be evicted."""
        while self.nbytes > room:
            chunks = self._chunks.values()
            idle = [chunk for chunk in chunks if not chunk.pins and chunk.done.is_set()]
            if not idle:
                return
            self._remove(max(idle, key=lambda it: (it.reader.next_use(it.key[1]), -it.used)))

    def _start_thread(self) -> None:
        self._threads += 1
        try:
            threading.Thread(target=self._work, name="fastload-row-groups").start()
        except RuntimeError:  # the system grants no more: who waits for a chunk decodes it
            self._threads -= 1

    def _work(self) -> None:
        while True:
            with self._lock:
                chunk = None
                while self._queue and chunk is None:
                    chunk = heapq.heappop(self._queue)[2]
                    chunk = None if chunk.begun else chunk
                if chunk is None:
                    self._threads -= 1
                    return
                chunk.begun = True
            self._decode(chunk)

    def _decode(self, chunk: ColumnChunk) -> None:
        """Decode on this thread; only who has set ``begun``."""
        try:
            chunk.decoded = chunk.reader.decode(chunk.key)
        except BaseException as error:  # noqa: BLE001 - raised by ``wait``, where it is needed
            chunk.error = error
        with self._lock:
            self.decoded += 1
            nbytes = 0 if chunk.decoded is None else chunk.decoded.nbytes
            more, chunk.nbytes = nbytes - chunk.nbytes, nbytes
            self.nbytes += more if self._present(chunk) else 0
            self._pinned += more if chunk.pins else 0
            if chunk.decoded is None or (chunk.gone and not chunk.pins):
                self._remove(chunk)
        chunk.done.set()

    def _present(self, chunk: ColumnChunk) -> bool:
        return self._chunks.get((id(chunk.reader), chunk.key)) is chunk


class Pins:
    """Pinned chunks, which stay in memory: a ``Held``."""

    def __init__(self, groups: RowGroups, *chunks: ColumnChunk) -> None:
        self._groups, self._chunks = groups, list(chunks)
        self._process = os.getpid()

    def add(self, chunk: ColumnChunk) -> None:
        self._chunks.append(chunk)

    def ready(self) -> bool:
        return all(chunk.done.is_set() for chunk in self._chunks)

    def wait(self, ended: Callable[[], bool] = lambda: False) -> None:
        """What is wrong with a chunk, ``spans`` raises."""
        for chunk in self._chunks:
            while not chunk.done.wait(0.05) and not ended():
                pass

    def release(self) -> None:
        chunks, self._chunks = self._chunks, []
        if os.getpid() == self._process:  # what a forked child was left is not its own
            self._groups.drop(chunks)

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
    use(RowGroups(_of_process._limit))


os.register_at_fork(after_in_child=_begin_again)
