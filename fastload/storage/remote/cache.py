"""BlockCache: what is there is used, what is missing is fetched once, what is used last is evicted.

``hold`` is the one way in. It pins ranges of objects, starts to fetch what is missing of them, and
returns a ``Hold``. As long as that lives, these bytes are not evicted; ``Hold.wait`` returns when
they can be read through the sparse files.

    missing             it is claimed in the table that processes share, and fetched
    fetched already     by this process: its request is joined; by another one: its table is looked
                        at until the bytes are there. If that process dies, its claims are freed.
    no room             what is used farthest in the future is evicted. If everything is pinned, a
                        hold that is only wanted ahead of time is not given, any other is an error:
                        ``Crowded`` if others have pinned it, and the store goes on in memory.
    failed, cancelled   the claims are given back.
    found wrong         it is fetched again: see the note in ``blocks.py``.

A hold that is deleted is released a moment later, by the next call of any method: an object can be
deleted in the middle of anything, also while its thread has a lock.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..._base.fork_lock import ForkLock
from ...errors import StoreError
from .._crc import crc32c_blocks
from .._spans import CLEAR
from ..base import BLOCK_NBYTES
from . import requests
from .area import Area, DiskArea
from .blocks import (
    ABSENT,
    CELL,
    GROUP,
    THERE,
    BlockFile,
    evict_of_others,
    index_nbytes,
    name_of,
    recount,
    recover,
    runs_of,
)
from .options import RemoteOptions
from .requests import Origin, Request
from .service import RemoteObject

_ROUNDS = 8  # in which a hold may find that others have given up what they were to fetch
_POLL_S = 0.02  # between looks at what another process fetches
_DEAD_S = 0.5  # and whether it lives
_SLACK = 256  # at least so much of the limit is evicted at a time, as finding it takes time
_AHEAD = 128  # of the limit: what is fetched ahead takes the place of what is kept
_MAX_SLACK_NBYTES = 64 << 20
_GRAIN = BLOCK_NBYTES // (GROUP * CELL)  # kept or evicted together, as they are requested together

Ranges = Sequence[tuple[BlockFile, np.ndarray]]
"""Objects and the cells of each: int64, ascending."""


class LostFiles(StoreError):
    """The cache's files were deleted or truncated while they are in use: open them again."""


class Crowded(LostFiles):
    """Other processes need so much of the folder that this one has to do without."""


class _RangeFetch:
    """One request in flight, and how many holds wait for it. Made in the mutex."""

    def __init__(self, file: BlockFile, first: int, stop: int) -> None:
        self.file, self.first, self.stop = file, first, stop
        self.pins = file.pin(np.arange(first, stop))
        self.users = 1
        self.done = False
        self.error: Exception | None = None
        self.request: Request | None = None


class Hold:
    """Bytes that stay in the cache, or come into it, as long as this lives."""

    def __init__(
        self, cache: BlockCache, ranges: Ranges, origin: Origin, *, urgency: float, ahead: bool
    ) -> None:
        self.cache: BlockCache | None = cache
        self.ranges, self.origin, self.urgency, self.ahead = ranges, origin, urgency, ahead
        self.rounds = self.ahead_nbytes = 0
        self.pins: list[tuple[BlockFile, np.ndarray]] = []
        self.fetches: list[_RangeFetch] = []
        self.others: list[tuple[BlockFile, np.ndarray]] = []  # that other processes fetch

    def ready(self) -> bool:
        if any(not fetch.done for fetch in self.fetches):
            return False
        return not any((file.state[cells] != THERE).any() for file, cells in self.others)

    def wait(self, ended: Callable[[], bool] = lambda: False) -> None:
        """Return when the bytes are there, or ``ended``, which is asked now and then, is True."""
        if self.cache is not None:
            self.cache.wait(self, ended)

    def release(self) -> None:
        """End the hold. Requests that nobody else waits for are cancelled."""
        cache, self.cache = self.cache, None
        if cache is not None:
            cache.release(self)

    def __del__(self) -> None:
        cache, self.cache = self.cache, None
        if cache is not None:
            cache.dropped.append(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # in another process, the one that has it keeps the bytes


class BlockCache:
    """The cache of one process in one area. See the module."""

    def __init__(self, area: Area) -> None:
        self.area = area
        self.dropped: collections.deque[Hold] = collections.deque()
        self.later: collections.deque[Callable[[], None]] = collections.deque()
        self._arrived = threading.Condition()
        self.users = 0
        self._ahead_nbytes = 0
        self._ahead_urgency = 0.0  # of the last hold ahead that had something to fetch
        self._open: dict[str, BlockFile] = {}
        self._fetches: dict[BlockFile, list[_RangeFetch]] = {}
        if isinstance(area, DiskArea):
            with area.mutex():
                if area.died:
                    recover(area, area.died)
                else:
                    recount(area)

    # --- objects ----------------------------------------------------------------------------------

    def open(self, what: RemoteObject) -> BlockFile:
        """The file of an object, shared by all who open it; ``close`` it as often."""
        with self.area.mutex():
            self._forget_dropped()
            name = name_of(what)
            file = self._open.get(name)
            if file is None or file.lost:
                nbytes = index_nbytes(-(-what.nbytes // CELL))
                if not self.make_room(nbytes):
                    raise self._too_little(what, nbytes)
                file = self._open[name] = BlockFile(self.area, what)
                self._fetches[file] = []
            file.users += 1
            return file

    def close(self, file: BlockFile) -> None:
        with self.area.mutex():
            self._forget_dropped()
            file.users -= 1
            if file.users:
                return
            if self._open.get(file.name) is file:
                del self._open[file.name]
            for fetch in list(self._fetches[file]):
                fetch.error = StoreError("the store was closed", path=file.what.url.shown)
                self._cancel(fetch)
            del self._fetches[file]
            file.close()

    @property
    def fits(self) -> bool:
        """Whether all objects that this process has open may be cached whole."""
        with self.area.mutex():
            return self.area.limit >= sum(file.nbytes for file in self._files())

    # --- holds ------------------------------------------------------------------------------------

    def hold(
        self, ranges: Ranges, origin: Origin, *, urgency: float = 0.0, ahead: bool = False
    ) -> Hold | None:
        """Pin ``ranges``, and fetch what is missing; the smallest ``urgency`` is served first.

        ``ahead``: it is not needed yet: None is returned where there is no room.

        Raises LostFiles where the cache's files were deleted or truncated.
        """
        hold = Hold(self, ranges, origin, urgency=urgency, ahead=ahead)
        try:
            with self.area.mutex():
                self._forget_dropped()
                if ahead and not self._may_hold(hold, ranges):
                    return None
                missed = 0
                for file, cells in ranges:
                    self._check(file)
                    hold.pins.append((file, file.pin(cells)))
                    state = file.state[cells]
                    missed += int(((state != THERE) & (state != self.area.slot)).sum())
                for file, cells in ranges:
                    if not self._take(hold, file, cells, ahead=ahead):
                        self._release(hold)
                        return None
        except BaseException:
            hold.release()
            raise
        self._send(hold)
        self._verify(hold)
        origin.counters.add(missed_nbytes=CELL * missed)
        if not ahead:
            origin.counters.add(asked_nbytes=CELL * sum(len(cells) for _, cells in ranges))
        return hold

    def _may_hold(self, hold: Hold, ranges: Ranges) -> bool:
        """Whether ``ranges`` may be fetched ahead: one batch, or a share of all. In the mutex.

        What is fetched ahead takes the place of what is used later, unless it is there already or
        there is room for it. A batch of several stores has a hold in each, of the same urgency.
        """
        nbytes = sum(CELL * int((file.state[cells] == ABSENT).sum()) for file, cells in ranges)
        free = self.area.limit - self.area.used
        most = self.area.limit if self.area.soft else max(free, self.area.limit // _AHEAD)
        begun = self._ahead_nbytes and hold.urgency != self._ahead_urgency
        if begun and self._ahead_nbytes + nbytes > most:
            return False
        if nbytes:
            self._ahead_urgency = hold.urgency
        hold.ahead_nbytes = nbytes
        self._ahead_nbytes += nbytes
        return True

    def _check(self, file: BlockFile) -> None:
        if file.closed:
            raise StoreError("the store was closed", path=file.what.url.shown)
        if file.lost or self.area.lost:
            raise LostFiles(
                "the cache's files were deleted or truncated while they are in use, again and "
                f"again: find out who does that, or choose another cache_dir; {CLEAR}",
                path=file.what.url.shown,
            )

    def _too_little(self, what: RemoteObject, more: int) -> StoreError:
        """The error where there is no room for what is pinned, and ``more`` bytes. In the mutex."""
        if sum(file.needed_nbytes for file in self._files()) + more <= self.area.limit:
            return Crowded(
                f"disk_limit: what other processes need of the {self.area.limit} bytes leaves too "
                "few for this one, which goes on in memory and keeps nothing on the disk: raise "
                "it, or choose another cache_dir",
                path=what.url.shown,
            )
        return StoreError(
            f"disk_limit: {self.area.limit} bytes are too few, as the batches in flight and the "
            "columns of the store need more: raise it",
            path=what.url.shown,
        )

    def _take(self, hold: Hold, file: BlockFile, cells: np.ndarray, *, ahead: bool) -> bool:
        """Claim or join what is missing of ``cells``; False: there is no room. In the mutex."""
        file.forget(self._join(hold, file, cells[file.state[cells] == self.area.slot]))
        absent = cells[file.state[cells] == ABSENT]
        if len(absent):
            beyond = file.next_use(absent) if ahead else -1
            if not self.make_room(len(absent) * CELL, beyond=beyond):
                if ahead:
                    return False
                raise self._too_little(file.what, len(absent) * CELL)
            file.claim(absent)
            for first, stop in runs_of(absent, BLOCK_NBYTES // CELL):
                fetch = _RangeFetch(file, first, stop)
                self._fetches[file].append(fetch)
                hold.fetches.append(fetch)
        others = file.claimed_by_others(cells)
        if len(others):
            hold.others.append((file, others))
        return True

    def _join(self, hold: Hold, file: BlockFile, cells: np.ndarray) -> np.ndarray:
        """Wait for what fetches ``cells``, which this process has claimed; those of no fetch."""
        fetches = sorted(self._fetches[file], key=lambda fetch: fetch.first) if len(cells) else []
        if not fetches:
            return cells
        first = np.array([fetch.first for fetch in fetches])
        stop = np.array([fetch.stop for fetch in fetches])
        which = np.maximum(0, np.searchsorted(first, cells, side="right") - 1)
        inside = (cells >= first[which]) & (cells < stop[which])
        for number in np.unique(which[inside]).tolist():
            fetch = fetches[number]
            if fetch not in hold.fetches:
                fetch.users += 1
                hold.fetches.append(fetch)
        return cells[~inside]

    def _send(self, hold: Hold) -> None:
        """Send the requests of new fetches; outside of the mutex."""
        origin = hold.origin
        new = [fetch for fetch in hold.fetches if fetch.request is None and not fetch.done]
        for number, fetch in enumerate(new):
            file = fetch.file
            begin, end = fetch.first * CELL, min(fetch.stop * CELL, file.nbytes)
            fetch.request = Request(
                origin,
                file.what.url,
                functools.partial(origin.service.read, file.what, begin, end),
                end - begin,
                deliver=functools.partial(self._deliver, fetch),
                fail=functools.partial(self._end, fetch),
            )
            try:
                requests.of_process().send(fetch.request, hold.urgency)
            except BaseException as error:
                for rest in new[number:]:
                    self._end(rest, error if isinstance(error, Exception) else None)
                raise

    def _deliver(self, fetch: _RangeFetch, data: bytes | memoryview) -> None:
        self._end(fetch, self._put(fetch, data))

    def _put(self, fetch: _RangeFetch, data: bytes | memoryview) -> StoreError | None:
        file, wanted = fetch.file, min(fetch.stop * CELL, fetch.file.nbytes) - fetch.first * CELL
        if len(data) != wanted:
            return StoreError(
                f"expected {wanted} bytes, got {len(data)}: the object was truncated",
                path=file.what.url.shown,
                offset=fetch.first * CELL,
            )
        with self.area.mutex():
            if fetch not in self._fetches.get(file, ()):
                return None  # cancelled
            file.writers += 1  # so that its descriptor is not closed, and used for another file
        try:
            self._write(file, fetch.first, data)
            sums = crc32c_blocks(data, CELL)
            with self.area.mutex():
                if fetch in self._fetches.get(file, ()):
                    file.publish(fetch.first, fetch.stop, sums)
                else:  # given back while it was written
                    file.punch_absent(fetch.first, fetch.stop)
        except OSError as error:
            return StoreError(
                f"its cache cannot be written: {error.strerror}; free some of the disk, or choose "
                "a smaller disk_limit or another cache_dir",
                path=file.what.url.shown,
            )
        finally:
            with self.area.mutex():
                file.writers -= 1
                if file.closed:
                    file.close()
        return None

    def _write(self, file: BlockFile, first: int, data: bytes | memoryview) -> None:
        while True:
            try:
                file.write(first, data)
                return
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                with self.area.mutex():  # others fill the disk too: make do with less
                    before = self.area.used
                    self._evict(4 * len(data))
                    if self.area.used == before:
                        raise
            # Other threads may take what was freed: then again, as long as anything is.

    def _end(self, fetch: _RangeFetch, error: Exception | None) -> None:
        """``fetch`` has succeeded, or failed with ``error``."""
        with self.area.mutex():
            self._give_back(fetch)
        with self._arrived:
            fetch.error, fetch.done = fetch.error or error, True  # it may have been cancelled
            self._arrived.notify_all()

    def _give_back(self, fetch: _RangeFetch) -> None:
        """``fetch`` is no more in flight; what of it is still claimed is absent. In the mutex."""
        in_flight = self._fetches.get(fetch.file, [])
        if fetch not in in_flight:
            return
        in_flight.remove(fetch)
        fetch.file.unpin(fetch.pins)
        if fetch.file.closed and not fetch.file.writers:
            return
        cells = np.arange(fetch.first, fetch.stop)
        claimed = cells[fetch.file.state[cells] == self.area.slot]
        if len(claimed):
            fetch.file.abandon(claimed)

    def _verify(self, hold: Hold) -> None:
        """Compare with its checksums what is there, and fetch again what differs."""
        for file, cells in hold.ranges:
            wrong = file.wrong(cells[file.state[cells] == THERE])
            if len(wrong):
                with self.area.mutex():
                    # Another process may have fetched it anew meanwhile.
                    self._doubt(file, file.wrong(wrong[file.state[wrong] == THERE]), hold.origin)
                    self._take(hold, file, wrong, ahead=False)
                self._send(hold)

    def doubt(self, ranges: Ranges, origin: Origin) -> None:
        """What is there of ``ranges`` is damaged, whatever its checksums say: it is absent again.

        They are those of the bytes that came, which something may have changed on the way.
        """
        with self.area.mutex():
            for file, cells in ranges:
                if not file.closed:
                    self._doubt(file, cells[file.state[cells] == THERE], origin)

    def _doubt(self, file: BlockFile, cells: np.ndarray, origin: Origin) -> None:
        origin.counters.add(damaged=len(cells), missed_nbytes=CELL * len(cells))
        file.forget(cells)

    # --- waiting ----------------------------------------------------------------------------------

    def wait(self, hold: Hold, ended: Callable[[], bool]) -> None:
        begin = looked = time.monotonic()
        try:
            while hold.ready() or not ended():
                with self._arrived:
                    if not hold.ready():
                        self._arrived.wait(_POLL_S if hold.others else 0.2)
                for fetch in hold.fetches:
                    if fetch.done and fetch.error is not None:
                        raise fetch.error
                if not hold.others and not hold.ready():
                    continue
                dead = time.monotonic() - looked > _DEAD_S
                looked = time.monotonic() if dead else looked
                if self._complete(hold, dead=dead):
                    return
        except LostFiles:
            if not hold.ahead:
                raise
            # Who needs the bytes now asks for them, and opens the files again.
        finally:
            hold.origin.counters.add(wait_s=time.monotonic() - begin)

    def _complete(self, hold: Hold, *, dead: bool) -> bool:
        """Whether all is there, and right; what nobody fetches any more is fetched.

        ``dead``: look whether those who fetch the rest live.
        """
        self._verify(hold)
        missing = [(file, cells[file.state[cells] != THERE]) for file, cells in hold.ranges]
        missing = [(file, cells) for file, cells in missing if len(cells)]
        hold.others = []
        if not missing:
            return True
        before = len(hold.fetches)
        with self.area.mutex():
            for file, cells in missing:
                self._check(file)
                if dead:
                    self._give_up(file, cells)
                self._take(hold, file, cells, ahead=False)
        self._send(hold)
        hold.rounds += len(hold.fetches) > before
        if hold.rounds > _ROUNDS:
            raise StoreError(
                f"what was fetched has gone from the cache {_ROUNDS} times: find out who changes "
                f"its files, or choose another cache_dir; {CLEAR}",
                path=missing[0][0].what.url.shown,
            )
        return False

    def _give_up(self, file: BlockFile, cells: np.ndarray) -> None:
        """What processes have claimed that fetch it no more is absent. In the mutex."""
        slots = np.unique(file.state[cells]).tolist()
        gone = [slot for slot in slots if slot > THERE and not self.area.alive(slot)]
        if gone:
            recover(self.area, gone)
        file.forget(file.claimed_by_nobody(cells))

    # --- releasing --------------------------------------------------------------------------------

    def release(self, hold: Hold) -> None:
        with self.area.mutex():
            self._forget_dropped()
            self._release(hold)

    def _release(self, hold: Hold) -> None:
        """Unpin, and cancel what nobody waits for. In the mutex."""
        hold.cache = None
        self._ahead_nbytes -= hold.ahead_nbytes
        for fetch in hold.fetches:
            fetch.users -= 1
            if fetch.users == 0 and not fetch.done and fetch in self._fetches.get(fetch.file, ()):
                self._cancel(fetch)
        for file, groups in hold.pins:
            file.unpin(groups)
        hold.ahead_nbytes = 0
        hold.pins, hold.fetches, hold.others = [], [], []

    def _forget_dropped(self) -> None:
        while self.dropped:
            self._release(self.dropped.popleft())
        while self.later:
            self.later.popleft()()

    def _cancel(self, fetch: _RangeFetch) -> None:
        """Nobody waits for ``fetch`` any more. In the mutex."""
        if fetch.request is not None:
            requests.of_process().cancel(fetch.request)
        fetch.done = True
        self._give_back(fetch)

    # --- room -------------------------------------------------------------------------------------

    def make_room(self, nbytes: int, *, beyond: int = -1) -> bool:
        """Evict until ``nbytes`` more fit; whether they do. In the mutex.

        ``beyond``: they are used after so many positions, and only what is used later makes room
        for them.
        """
        for counted in (False, True):
            over = self.area.used + nbytes - self.area.limit
            if over > 0:
                slack = min(self.area.limit // _SLACK, _MAX_SLACK_NBYTES)
                if any(file.uses and file.uses.blocks for file in self._files()):
                    slack = slack // BLOCK_NBYTES * BLOCK_NBYTES  # no block more for a part of it
                self._evict(over + slack, beyond)
            if self.area.soft or self.area.used + nbytes <= self.area.limit:
                return True
            if not counted:  # the sum may be wrong
                recount(self.area)
        return False

    def _files(self) -> list[BlockFile]:
        return [file for file in self._open.values() if not file.closed]

    def _evict(self, nbytes: int, beyond: int = -1) -> None:
        """Free ``nbytes``, or as many as can be freed. In the mutex.

        What is used farthest in the future goes first, and nothing that is used in less than
        ``beyond`` positions. What other processes keep of other objects goes last, whenever they
        use that: else one that begins would get no room to fetch ahead.
        """
        goal = self.area.used - nbytes
        for name in self.area.others():
            if self.area.used <= goal:
                return
            with contextlib.suppress(OSError):  # who may not delete it has to do with less
                self.area.drop(name)
            recount(self.area)
        if self.area.used > goal:
            self._evict_own(goal, beyond)
        for name in self.area.names():
            if self.area.used <= goal:
                return
            if name not in self._open:
                evict_of_others(self.area, name, self.area.used - goal)

    def _evict_own(self, goal: int, beyond: int) -> None:
        files = self._files()
        if not files:
            return
        found = [file.candidates(_GRAIN) for file in files]
        which = np.repeat(np.arange(len(files)), [len(pieces) for pieces, _, _ in found])
        pieces, cells, distance = map(np.concatenate, zip(*found, strict=True))
        # Each has a cell at least. Sorting all of them would take seconds for a large store.
        most = min(len(pieces), -(-(self.area.used - goal) // CELL))
        farthest = np.argpartition(distance, -most)[-most:] if most else which
        order = farthest[np.argsort(-distance[farthest], kind="stable")]
        order = order[distance[order] > beyond]
        enough = np.searchsorted(np.cumsum(cells[order]) * CELL, self.area.used - goal) + 1
        chosen = order[:enough]
        for number, file in enumerate(files):
            evicted = pieces[chosen[which[chosen] == number]]
            if len(evicted):
                file.evict(evicted)


# Of a parent too: its areas must never be closed, see ``area.py``.
_caches: dict[tuple[int, str], BlockCache] = {}
_choosing = ForkLock()


def cache_for(options: RemoteOptions) -> BlockCache:
    """The cache that ``options`` name, one for each folder in each process, until ``let_go``."""
    if options.limit == 0:
        return BlockCache(Area())
    key = os.getpid(), os.path.realpath(options.folder)
    with _choosing:
        while True:
            cache = _caches.get(key)
            if cache is None or cache.area.lost:
                cache = _caches[key] = BlockCache(DiskArea(options.folder, options.limit))
            elif options.limit is not None:
                cache.area.limit = options.limit
            cache.users += 1
            # Garbage may be collected anywhere above, which closes a cache that no other store had.
            if _caches.get(key) is cache:
                return cache


def let_go(cache: BlockCache) -> None:
    """End one ``cache_for``; the last one closes the folder's lock."""
    with _choosing:
        cache.users -= 1
        if cache.users > 0 or not isinstance(cache.area, DiskArea):
            return
        for key, other in list(_caches.items()):
            if other is cache:
                del _caches[key]
        with cache.area.mutex():
            cache.area.close()
