"""One object's part of the cache: a sparse file and the table of what is there.

    data     the object, as large as the remote one; what was not fetched is a hole
    index    4096 bytes: magic, version | u64 bytes | u64 cells in use;
             one byte per cell: 0 absent, 1 there, k process number k fetches it;
             padding to 4096; one u32 per cell: CRC32C
    pins-K   one byte per group: 1 where process number K needs it
    about.json   the URL without credentials, and the ETag

A cell is 4 KiB, what a file system can give back; a record is read to within one cell at each end.
A group is 4 cells, what is pinned together: with more, small records that are done with would stay
because of their neighbours. Groups are evicted one by one where records are fetched one by one.
Where whole blocks of 8 MB are fetched, they are evicted as a whole, too: what was left of one would
cut the rest into many requests.

A cell's bytes are written first, its checksum second, its state last, so a process that is killed
leaves cells that count as absent. After a power failure, when the disk may have lost any of these
writes, the checksum tells: every process compares it once, before it uses the cell. The files are
allocated before they are mapped, so that a full disk is an error and no signal.

Note [What is found wrong]. Anybody may delete, truncate or overwrite these files, at any time.
There is one way to deal with it: what is found wrong is dropped, and fetched again once; if that
does not help, it is an error.

    a cell      its checksum differs, a record or a column in it is damaged, or it is claimed and
                nobody fetches it: it is absent again (``forget``). What lies there stays until it
                is overwritten, as another process may read it.
    an object   a file is missing, has another size or is no file of ours: its folder is deleted
                and made anew, so nobody writes to files that others have mapped. Who has it open
                sees that (``lost``), and opens it again (``store.py``). A truncated table reads as
                zeros meanwhile, so its cells are absent; ``SigbusGuard`` keeps the process alive.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import mmap
import os
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from ... import _native
from ...errors import StoreError
from .._crc import crc32c_of_file
from .._durable import remove, write_all
from .._read import open_regular
from ..base import BLOCK_NBYTES
from .area import Area, DiskArea, hashed, punch
from .service import RemoteObject

if TYPE_CHECKING:
    from ..._native import _core

CELL = 4096
GROUP = 4  # cells
ABSENT, THERE = 0, 1
_HEAD = struct.Struct("<8sQQ")
_MAGIC = b"FLINDEX\1"
_HEAD_NBYTES = 4096


def runs_of(cells: np.ndarray, about: int | None = None) -> Iterator[tuple[int, int]]:
    """(first, stop) of each run of consecutive ``cells`` (ascending).

    A run longer than half more than ``about`` is divided into equal pieces of about that length.
    """
    for run in np.split(cells, np.flatnonzero(np.diff(cells) != 1) + 1):
        if len(run):
            first, count = int(run[0]), len(run)
            pieces = 1 if about is None else max(1, round(count / about))
            edges = [first + count * at // pieces for at in range(pieces + 1)]
            yield from itertools.pairwise(edges)


def touched(
    offset: np.ndarray, nbytes: np.ndarray, unit: int = CELL
) -> tuple[np.ndarray, np.ndarray]:
    """The units (cells) that the ranges touch, and for each the position of its range: int64 (n,).

    All ranges have bytes.
    """
    first = offset // unit
    count = (offset + nbytes - 1) // unit - first + 1
    which = np.repeat(np.arange(len(count)), count)
    before = np.cumsum(count) - count
    return np.arange(len(which)) + (first - before)[which], which


def cells_of(offset: np.ndarray, nbytes: np.ndarray) -> np.ndarray:
    """The cells that these ranges (int64) touch, ascending, each once."""
    some = nbytes > 0
    distinct: np.ndarray = np.unique(touched(offset[some], nbytes[some])[0])
    return distinct


class SharedMap:
    """A file mapped for reading and writing, as ``array``: bytes that it loses read as zeros."""

    def __init__(self, descriptor: int, nbytes: int) -> None:
        mapped, core = mmap.mmap(descriptor, nbytes), _native.load()
        self._guard: _core.SigbusGuard | None = None if core is None else core.SigbusGuard(mapped)
        self.array = np.frombuffer(mapped, np.uint8)


def _free(descriptor: int, cells: np.ndarray) -> None:
    """Give back the disk space of ``cells`` (ascending), as far as the file system can."""
    for first, stop in runs_of(cells):
        with contextlib.suppress(OSError):
            punch(descriptor, first * CELL, (stop - first) * CELL)


class Uses:
    """When an epoch uses the pieces of an object: its groups, or blocks of groups.

    Attributes:
        first, last: int (count,), the positions at which this epoch uses a piece; -1: it does not.
        after: int (count,), the first position at which the next epoch uses a piece, counted on
            from this one's; -1: it does not. None: its order is not known.
        begun: bool (count,), of which a part was evicted: the rest goes before anything else.

    Args:
        pieces: int64 (n,), what is used, of ``count`` pieces.
        positions: int64 (n,), ascending: when; from ``length`` on by the next epoch.
        length: how many positions this epoch has.
        most: the last position of the whole store; below ``length``: only this epoch is known.
        blocks: int64 (count,) each, the first group of each piece, ascending, and the one after
            its last. Two that follow each other may share a group. None: pieces are groups.
    """

    def __init__(
        self,
        pieces: np.ndarray,
        positions: np.ndarray,
        count: int,
        *,
        length: int,
        most: int,
        blocks: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> None:
        self.length, self.blocks = length, blocks
        dtype = np.int32 if most <= np.iinfo(np.int32).max else np.int64
        until = int(np.searchsorted(positions, length))
        # Of a piece that is used several times, the last assignment counts.
        self.first, self.last = (np.full(count, -1, dtype) for _ in range(2))
        self.last[pieces[:until]] = positions[:until]
        self.first[pieces[:until][::-1]] = positions[:until][::-1]
        self.after: np.ndarray | None = None
        if most >= length:
            self.after = np.full(count, -1, dtype)
            self.after[pieces[until:][::-1]] = positions[until:][::-1]
        self.begun = np.zeros(count, bool)

    def distance(self, pieces: np.ndarray, now: int, grain: int = 1) -> np.ndarray:
        """int64 (n,): how long after position ``now`` each of ``pieces`` is used next.

        ``grain``: pieces for which the same is assumed where their next use is not known.
        """
        distance = _hash(pieces // grain)
        if self.after is None:
            distance += 1 << 40
        else:
            after = self.after[pieces].astype(np.int64)
            anywhere = distance * min(2 * self.length, 1 << 31) >> 31
            distance = np.where(after >= 0, after - now, anywhere)
        for used in (self.last, self.first):
            at = used[pieces].astype(np.int64)
            distance = np.where(at >= now, at - now, distance)
        distance[self.begun[pieces]] = 1 << 41
        return distance

    def own_groups(self, now: int) -> tuple[np.ndarray, np.ndarray]:
        """As ``blocks``, with groups that two share for the one of them that is used sooner."""
        assert self.blocks is not None, "its pieces are blocks"
        begin, end = self.blocks[0].copy(), self.blocks[1].copy()
        distance = self.distance(np.arange(len(begin)), now)
        shared, sooner = end[:-1] > begin[1:], distance[:-1] <= distance[1:]
        end[:-1] -= shared & ~sooner
        begin[1:] += shared & sooner
        return begin, np.maximum(begin, end)


def _hash(places: np.ndarray) -> np.ndarray:
    """int64 (n,), below 2**31: the same for the same place."""
    hashed: np.ndarray = places.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(33)
    return hashed.astype(np.int64)


class BlockFile:
    """The cached part of one object, in one process. Methods are called in the area's mutex.

    Attributes:
        path: of the sparse file, for whoever maps it.
        verified: bool (cells,), whose checksums this process knows to be right.
        uses, now: when this epoch uses what, and its position; None: its order is not known.
        users: how many have it open in this process.
        writers: threads that write to it, which closing waits for.
    """

    def __init__(self, area: Area, what: RemoteObject) -> None:
        self.area, self.what, self.name, self.nbytes = area, what, name_of(what), what.nbytes
        self.cells = -(-self.nbytes // CELL)
        self.groups = -(-self.cells // GROUP)
        self.uses: Uses | None = None
        self.now = 0
        self.users = self.writers = 0
        self.closed = False
        self.verified = np.zeros(self.cells, bool)
        self._pinned = np.zeros(self.groups, np.uint16)
        self._index_nbytes = index_nbytes(self.cells)
        self._pins_nbytes = max(1, self.groups)
        try:
            self._open()
        except OSError as error:
            raise StoreError(
                f"its cache cannot be made: {error.strerror}; free some of the disk, or choose "
                "another cache_dir",
                path=what.url.shown,
            ) from error
        self.path = area.path(self.name, "data", self._data)

    def _open(self) -> None:
        area = self.area
        new = not area.has(self.name)
        self._files()
        if not new and (not self._whole() or _head(self._index)[0] != self.nbytes):
            os.close(self._data)
            os.close(self._index)
            area.drop(self.name)
            recount(area)
            new = True
            self._files()
        if new:
            os.ftruncate(self._data, self.nbytes)
            os.posix_fallocate(self._index, 0, self._index_nbytes)
            os.pwrite(self._index, _HEAD.pack(_MAGIC, self.nbytes, 0), 0)
            area.add_used(self._index_nbytes)
        self._about()
        os.utime(self._index)
        self._table = SharedMap(self._index, self._index_nbytes)
        self.state = self._table.array[_HEAD_NBYTES : _HEAD_NBYTES + self.cells]
        crc = _crc_offset(self.cells)
        self._crc = self._table.array[crc : crc + 4 * self.cells].view("<u4")
        self._pins_file = f"pins-{area.slot}"
        with open(area.create(self.name, self._pins_file), "r+b", buffering=0) as pins:
            pins.truncate(0)
            os.posix_fallocate(pins.fileno(), 0, self._pins_nbytes)
            self._pins_status = os.fstat(pins.fileno())
            self._pins = SharedMap(pins.fileno(), self._pins_nbytes)

    def _files(self) -> None:
        self._data = self.area.create(self.name, "data")
        self._index = self.area.create(self.name, "index")

    def _whole(self) -> bool:
        """Whether the files are still in their folder, and as long as they should be."""
        status = os.fstat(self._data), os.fstat(self._index)
        sizes = [each.st_size for each in status]
        return sizes == [self.nbytes, self._index_nbytes] and all(each.st_nlink for each in status)

    def _about(self) -> None:
        about = {"url": self.what.url.shown, "nbytes": self.nbytes, "tag": self.what.tag}
        text = json.dumps(about).encode()
        with open(self.area.create(self.name, "about.json"), "r+b", buffering=0) as file:
            if file.read(len(text) + 1) != text:
                file.truncate(0)
                os.pwrite(file.fileno(), text, 0)

    def close(self) -> None:
        """This process needs the object no more, once nothing is written to it."""
        self.closed = True
        if self.writers or self._data < 0:
            return
        if isinstance(self.area, DiskArea):
            if self._pins_there():
                os.unlink(self.area.path(self.name, self._pins_file, -1))
        else:
            self.area.add_used(-self._index_nbytes - CELL * self.used)
        os.close(self._data)
        os.close(self._index)
        self._data = self._index = -1

    @property
    def lost(self) -> bool:
        """Whether somebody has deleted or truncated the files while they are in use."""
        if not isinstance(self.area, DiskArea):
            return False
        return self.closed or not (self._whole() and self._pins_there())

    def _pins_there(self) -> bool:
        try:
            status = os.lstat(self.area.path(self.name, self._pins_file, -1))
        except OSError:
            return False
        return os.path.samestat(status, self._pins_status) and status.st_size == self._pins_nbytes

    # --- states -----------------------------------------------------------------------------------

    @property
    def used(self) -> int:
        """Cells that are there or being fetched."""
        return min(_head(self._index)[1], self.cells)

    def _count(self, cells: int) -> None:
        used = max(0, self.used + cells)
        os.pwrite(self._index, _HEAD.pack(_MAGIC, self.nbytes, used), 0)
        self.area.add_used(CELL * cells)

    def claim(self, cells: np.ndarray) -> None:
        """This process fetches ``cells``, which are absent; there is room for them."""
        self._count(len(cells))  # first: what is counted and not there only costs room
        self.state[cells] = self.area.slot

    def publish(self, first: int, stop: int, sums: np.ndarray) -> None:
        """What ``write`` has written is the content of these cells; ``sums``: its checksums.

        Only of those that this process still claims: others may have been given up meanwhile.
        """
        mine = np.flatnonzero(self.state[first:stop] == self.area.slot)
        self._crc[first + mine] = sums[mine]
        self.verified[first + mine] = True
        self.state[first + mine] = THERE

    def punch_absent(self, first: int, stop: int) -> None:
        """Give back what was written of these cells although they are absent."""
        _free(self._data, first + np.flatnonzero(self.state[first:stop] == ABSENT))

    def write(self, first: int, data: bytes | memoryview) -> None:
        """Write claimed cells from ``first`` on; outside of the mutex. Raises OSError."""
        write_all(self._data, [data], first * CELL)

    def forget(self, cells: np.ndarray) -> None:
        """``cells`` are absent again. What lies there stays, until it is overwritten."""
        self.state[cells] = ABSENT
        self.verified[cells] = False
        self._count(-len(cells))

    def abandon(self, cells: np.ndarray) -> None:
        """``cells`` are absent again, and take no room."""
        self.forget(cells)
        _free(self._data, cells)

    def wrong(self, cells: np.ndarray) -> np.ndarray:
        """Those of ``cells``, pinned, that differ from their checksums; outside of the mutex."""
        unknown: np.ndarray = cells[~self.verified[cells]]
        if not len(unknown):
            return unknown
        try:
            right = crc32c_of_file(self._data, unknown, CELL) == self._crc[unknown]
        except OSError:  # the disk has lost it
            return unknown
        self.verified[unknown[right]] = True
        damaged: np.ndarray = unknown[~right]
        return damaged

    def claimed_by_others(self, cells: np.ndarray) -> np.ndarray:
        state = self.state[cells]
        others: np.ndarray = cells[(state > THERE) & (state != self.area.slot)]
        return others

    def claimed_by_nobody(self, cells: np.ndarray) -> np.ndarray:
        """Those of ``cells`` whose process does not live, or does not need them: see ``pin``."""
        claimed = self.claimed_by_others(cells)
        for slot in self.area.living(self.name):
            pinned = _pinned_by(self.area, self.name, self.groups, slot)
            claimed = claimed[(self.state[claimed] != slot) | ~pinned[claimed // GROUP]]
        return claimed

    # --- pins and eviction ------------------------------------------------------------------------

    def pin(self, cells: np.ndarray) -> np.ndarray:
        """Keep ``cells`` until ``unpin`` is called with what is returned.

        What is being fetched is pinned by its process, so that others know it.
        """
        groups = np.unique(cells // GROUP)
        self._pinned[groups] += 1
        self._pins.array[groups] = 1
        return groups

    def unpin(self, groups: np.ndarray) -> None:
        self._pinned[groups] -= 1
        self._pins.array[groups[self._pinned[groups] == 0]] = 0

    @property
    def needed_nbytes(self) -> int:
        """Bytes that this process needs: what is there of what it has pinned, and the index."""
        cells = (np.flatnonzero(self._pinned)[:, None] * GROUP + np.arange(GROUP)).ravel()
        there = self.state[cells[cells < self.cells]] != ABSENT
        return self._index_nbytes + CELL * int(np.count_nonzero(there))

    def _needed(self) -> np.ndarray:
        """bool (groups,): pinned by a living process."""
        return _pinned_by_others(self.area, self.name, self.groups) | (self._pinned > 0)

    def candidates(self, grain: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Pieces that may be evicted: their cells that are there, and how long until their use.

        Pieces are blocks where ``uses`` has blocks; else groups, and ``grain`` of them are kept or
        evicted together. What is pinned of a piece stays.

        Where the next epoch's order is not known, what this epoch has used already comes next at a
        place that is not known either. Of that, the same part is kept by everybody, chosen by a
        hash of its place: so it is a hit in every epoch, where the least recently used would be
        evicted just before it is used. Where it is known, the hash decides only about what other
        ranks use.
        """
        padded, uses = np.zeros(self.groups * GROUP, bool), self.uses
        padded[: self.cells] = self.state == THERE
        cells: np.ndarray = np.zeros(self.groups, np.uint8)
        for at in range(GROUP):  # several times as fast as a sum along an axis
            cells += padded[at::GROUP]
        cells[self._needed()] = 0
        if uses is not None and uses.blocks is not None:
            begin, end = uses.own_groups(self.now)
            sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(cells, dtype=np.int64)])
            cells, grain = sums[end] - sums[begin], 1
        pieces = np.flatnonzero(cells)
        cells = cells[pieces].astype(np.int64)
        if uses is None:
            return pieces, cells, _hash(pieces // grain) + (1 << 40)
        return pieces, cells, uses.distance(pieces, self.now, grain)

    def next_use(self, cells: np.ndarray) -> int:
        """After how many positions the first of ``cells`` is used; -1: it is not known."""
        uses, pieces = self.uses, cells // GROUP
        if uses is None:
            return -1
        if uses.blocks is not None:
            pieces = np.maximum(np.searchsorted(uses.blocks[0], pieces, side="right") - 1, 0)
        return int(uses.distance(pieces, self.now).min())

    def evict(self, pieces: np.ndarray) -> None:
        """Drop what is there of these ``candidates``, and is not pinned."""
        uses = self.uses
        if uses is None or uses.blocks is None:
            self._drop(np.sort(pieces))
            return
        needed, (begin, end) = self._needed(), uses.own_groups(self.now)
        for block in pieces.tolist():
            groups = np.arange(begin[block], end[block])
            self._drop(groups[~needed[groups]])
            # What batches still need of a block that this epoch is done with goes next: what is
            # left of one would cut the rest into many requests.
            uses.begun[block] = 0 <= uses.last[block] < self.now and needed[groups].any()

    def _drop(self, groups: np.ndarray) -> None:
        cells = (groups[:, None] * GROUP + np.arange(GROUP)).reshape(-1)
        cells = cells[cells < self.cells]
        self.abandon(cells[self.state[cells] == THERE])

    def has(self, cells: np.ndarray) -> bool:
        return bool((self.state[cells] == THERE).all())


def name_of(what: RemoteObject) -> str:
    """The name of an object in the cache: another one for another version of it."""
    return hashed((what.url.shown, what.tag, what.nbytes))


def _pinned_by(area: Area, name: str, groups: int, slot: int) -> np.ndarray:
    """bool (groups,): what a process has pinned of an object."""
    with open(area.create(name, f"pins-{slot}"), "rb", buffering=0) as file:
        flags = os.pread(file.fileno(), groups, 0)
    pinned: np.ndarray = np.frombuffer(flags.ljust(groups, b"\0"), np.uint8) != 0
    return pinned


def _pinned_by_others(area: Area, name: str, groups: int) -> np.ndarray:
    pinned = np.zeros(groups, bool)
    for slot in area.living(name):
        pinned |= _pinned_by(area, name, groups, slot)
    return pinned


def _head(index: int) -> tuple[int, int]:
    """Bytes and cells in use, as the index of an object says; -1 and 0: it is damaged."""
    head = os.pread(index, _HEAD.size, 0)
    if len(head) < _HEAD.size or not head.startswith(_MAGIC):
        return -1, 0
    _, nbytes, used = _HEAD.unpack(head)
    return nbytes, used


def _crc_offset(cells: int) -> int:
    return _HEAD_NBYTES + -(-cells // 4096) * 4096


def index_nbytes(cells: int) -> int:
    """Bytes of the index of so many cells."""
    return _crc_offset(cells) + 4 * max(1, cells)


def recover(area: Area, slots: list[int]) -> None:
    """Free what dead processes had claimed, and forget what they had pinned. In the mutex."""
    for name in area.names():
        for slot in slots:
            with contextlib.suppress(NotADirectoryError):
                remove(area.path(name, f"pins-{slot}", -1))
        with _unopened(area, name) as found:
            if found is None:
                continue
            found.abandon(np.flatnonzero(np.isin(found.state, slots)))
            absent = np.flatnonzero(found.state == ABSENT)
            if os.fstat(found.data).st_blocks * 512 > CELL * (len(found.state) - len(absent) + 1):
                # Killed after it had evicted something, or cancelled it, and before it gave that
                # back.
                _free(found.data, absent)
    recount(area)


def evict_of_others(area: Area, name: str, nbytes: int) -> None:
    """Free ``nbytes`` of an object that only others have open, or what they do not need just now.

    The same part is kept by everybody, as in ``BlockFile.candidates``. In the mutex.
    """
    with _unopened(area, name) as found:
        if found is None:
            return
        count, most = len(found.state), -(-nbytes // CELL)
        free = found.state == THERE
        free &= ~np.repeat(_pinned_by_others(area, name, -(-count // GROUP)), GROUP)[:count]
        # By blocks, as sorting all cells would take seconds.
        begins = np.arange(0, count, BLOCK_NBYTES // CELL)
        counts = np.add.reduceat(free, begins, dtype=np.int64)
        order = np.argsort(-_hash(np.arange(len(begins))), kind="stable")
        evicted = np.zeros(len(begins), bool)
        evicted[order[: np.searchsorted(np.cumsum(counts[order]), most) + 1]] = True
        free &= np.repeat(evicted, BLOCK_NBYTES // CELL)[:count]
        chosen = np.flatnonzero(free)[:most]
        found.abandon(chosen)
        area.add_used(-CELL * len(chosen))


@dataclasses.dataclass(frozen=True)
class _Unopened:
    """The files of an object that this process has not open; ``state`` of its cells."""

    index: int
    data: int
    state: np.ndarray

    def abandon(self, cells: np.ndarray) -> None:
        """As ``BlockFile.abandon``; what all objects take is left to the caller."""
        for first, stop in runs_of(cells):
            os.pwrite(self.index, bytes(stop - first), _HEAD_NBYTES + first)
        _free(self.data, cells)
        self.state[cells] = ABSENT
        used = int((self.state != ABSENT).sum()).to_bytes(8, "little")
        os.pwrite(self.index, used, _HEAD.size - len(used))


@contextlib.contextmanager
def _unopened(area: Area, name: str) -> Iterator[_Unopened | None]:
    """The files of an object; None if they are damaged, which opening the object finds.

    Or if they were made a moment before their process was killed; opening makes them whole.
    """
    with contextlib.ExitStack() as stack:
        found = None
        with contextlib.suppress(OSError):  # of a pipe nothing can be read at a place
            flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            index = os.open(area.path(name, "index", -1), flags)
            stack.callback(os.close, index)
            data = os.open(area.path(name, "data", -1), flags)
            stack.callback(os.close, data)
            nbytes, _ = _head(index)
            cells = -(-nbytes // CELL)
            if nbytes >= 0 and os.fstat(index).st_size == index_nbytes(cells):
                state = np.frombuffer(bytearray(os.pread(index, cells, _HEAD_NBYTES)), np.uint8)
                found = _Unopened(index, data, state)
        yield found


def recount(area: Area) -> None:
    """Compute anew what all objects of a folder take. In the mutex."""
    total = 0
    for name in area.names():
        with contextlib.suppress(OSError):
            with open(area.path(name, "index", -1), "rb", opener=open_regular) as file:
                size, (_, used) = os.fstat(file.fileno()).st_size, _head(file.fileno())
            total += size + CELL * min(used, size)
    area.add_used(total - area.used)
