"""RemoteStore: a store at a URL, read through sparse files that hold only what was needed."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ..._base.fork_lock import ForkLock
from ...errors import DataError, StoreError, StoreNotFoundError, UsageError
from .._crc import crc32c
from .._sidecar import SUFFIX, are_of_one, listed_in
from .._spans import CLEAR, Held, fetched_again
from ..base import BLOCK_NBYTES, Located, Spans, Store
from ..column_options import DEFAULT, ColumnOptions
from ..registry import Format, find_format, known_suffixes
from ..table import TableStore
from ..wrapped import WrappedStore
from .area import unusable
from .blocks import CELL, GROUP, BlockFile, Uses, cells_of, touched
from .cache import BlockCache, Crowded, Hold, LostFiles, Ranges, cache_for, let_go
from .counters import RemoteCounters
from .finding import Finder
from .mirror import Mirror
from .options import RemoteOptions
from .requests import Origin
from .service import RemoteObject, service_of
from .urls import RemoteUrl

_PROBED = 256  # records whose headers are read at a time
_READ = 256  # ranges read last, of which one is damaged where a table does not decode

_T = TypeVar("_T")


class _Attached:
    """What one process has open of a store: the cache, its files, and the store over them."""

    def __init__(
        self,
        url: RemoteUrl,
        options: RemoteOptions,
        objects: Mapping[str, RemoteObject],
        origin: Origin,
    ) -> None:
        self.process = os.getpid()
        self.url = url
        self.cache: BlockCache = cache_for(options)
        self.origin = origin
        self.closed = False
        self.opened: dict[str, BlockFile] = {}
        self.holds: list[Hold] = []
        self._read: collections.deque[Ranges] = collections.deque(maxlen=_READ)
        self._failed = False  # a range could not be fetched
        # By number of a file: where its blocks' records begin and end, see ``RemoteStore.ahead``.
        self.blocks: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self.store: Store | None = None  # over the files, once it is open
        try:
            for inside, what in objects.items():
                self.opened[inside] = self.cache.open(what)
            paths = {inside: file.path for inside, file in self.opened.items()}
            try:
                self.mirror = Mirror(self.cache.area, paths)
            except OSError as error:
                raise unusable(options.folder, error) from error
            self.files = {self.mirror.path(inside): file for inside, file in self.opened.items()}
        except BaseException:
            self.close()
            raise

    def open(self, columns: ColumnOptions) -> Store:
        """The store over the sparse files, with what opening it reads."""
        path = self.mirror.path(self.url.name)
        form: Format | None = find_format(path)
        if form is None or form.name in ("folder", "arrow"):
            found = "" if form is None else f", found {form.title}"
            raise StoreError(
                f"expected a packed store, whose name ends in {', '.join(known_suffixes())}{found}"
                ": pack it first, or fetch it",
                path=self.url.shown,
            )
        args = form.taken(columns, self.url.shown)
        if form.ranged is not None:
            store = form.ranged(path, self.need, **args)
            if store.remote:
                store.read_through(self.fetch)
            return store
        if self.cache.area.soft:
            raise StoreError(
                f"{form.title} stores are fetched whole when they are opened, and this one is kept "
                "on no disk, as disk_limit is 0 or other processes need all of it: give another "
                "disk_limit or cache_dir, or pack to .lmdb or .tfrecord",
                path=self.url.shown,
            )
        self.need([(place, 0, -1) for place in self.files])
        return form.open(path, **args)

    def need(self, ranges: Sequence[tuple[str, int, int]]) -> None:
        """As ``fetch``, but they stay as long as the store is open."""
        self.holds.append(self.fetch(ranges))

    def fetch(self, ranges: Sequence[tuple[str, int, int]]) -> Hold:
        """Fetch (file, offset, bytes), -1: all, which stay until the result is released."""
        wanted: dict[BlockFile, list[tuple[int, int]]] = {}
        for place, offset, nbytes in ranges:
            file = self.files[place]
            end = file.nbytes if nbytes < 0 else min(file.nbytes, offset + nbytes)
            wanted.setdefault(file, []).append((max(0, offset), end - max(0, offset)))
        cells: Ranges = [
            (file, cells_of(*np.array(parts, np.int64).reshape(-1, 2).T))
            for file, parts in wanted.items()
        ]
        self._read.append(cells)
        try:
            hold = self.cache.hold(cells, self.origin)
            assert hold is not None, "only what is ahead may find no room"
            hold.wait()
        except StoreError:
            self._failed = True
            raise
        return hold

    def doubt(self) -> bool:
        """Drop what was read last and what opening has read, as damaged; whether any had come."""
        ranges = [place for hold in self.holds for place in hold.ranges]
        ranges += [place for read in self._read for place in read]
        self._read.clear()
        if ranges and not self._failed:
            self.cache.doubt(ranges, self.origin)
        return bool(ranges) and not self._failed

    @property
    def lost(self) -> bool:
        """Whether files of the cache have to be opened anew."""
        if self.cache.area.lost or not self.mirror.whole:
            return True
        return any(file.lost for file in self.opened.values())

    def dropped(self) -> None:
        """The store was deleted: close, though not in the middle of what this thread does."""
        if self.process == os.getpid() and self.cache.area.mine:
            self.cache.later.append(self.close)
        else:
            self.close()

    def close(self) -> None:
        """Release everything, unless it is the parent's."""
        self.store = None
        if os.getpid() != self.process:
            for hold in self.holds:
                hold.cache = None
            return
        for hold in self.holds:
            hold.release()
        for file in self.opened.values():
            self.cache.close(file)
        self.holds, self.opened = [], {}
        if not self.closed:
            self.closed = True
            let_go(self.cache)


class RemoteStore(WrappedStore):
    """A store at a URL. See the package. ``counters``: what reading it has cost."""

    generation = 0

    def __init__(self, url: str, options: RemoteOptions, columns: ColumnOptions = DEFAULT) -> None:
        self._url, self._options, self._columns = RemoteUrl(url), options, columns
        self.path = self._url.shown
        self.counters = RemoteCounters()
        self._attached: _Attached | None = None
        # Whose files were lost: batches and columns may still use them.
        self._before: list[_Attached] = []
        self._doubted = set[int | str]()  # records and errors for which bytes were fetched again
        self._reopening = ForkLock()
        origin = self._new_origin()
        finder = Finder(origin)
        self._objects = finder.find(self._url)
        manifest = self._url.name + SUFFIX
        if list(self._objects) == [manifest]:
            names = self._listed(origin, manifest)
            if are_of_one(names):
                raise StoreNotFoundError(
                    "a data file of the store is missing", path=self._url.shown
                )
            self._objects |= finder.shards(self._url, names)
        self._attach(origin)
        self._describe(self.inner)
        self.path, self.remote, self.mapped = self._url.shown, True, True
        self._count = len(self.inner)
        self._verified = np.zeros(self._count, bool)  # whose checksums ``read`` has compared

    def _new_origin(self) -> Origin:
        options = self._options
        service = service_of(self._url, options.storage_options or {})
        return Origin(service, options.secrets(), self.counters)

    def _listed(self, origin: Origin, manifest: str) -> list[str]:
        def listed(attached: _Attached) -> list[str]:
            place = attached.mirror.path(manifest)
            attached.need([(place, 0, -1)])
            names = listed_in(place)
            attached.close()
            return names

        return self._read_whole({manifest: self._objects[manifest]}, origin, listed)

    def _attach(self, origin: Origin) -> None:
        def opened(attached: _Attached) -> Store:
            store = attached.store = attached.open(self._columns)
            return store

        inner = self._read_whole(self._objects, origin, opened)
        sizes = inner.table.sizes if isinstance(inner, TableStore) else None
        self._sized = sizes is not None and bool((sizes > 0).all())

    def _read_whole(
        self, objects: Mapping[str, RemoteObject], origin: Origin, read: Callable[[_Attached], _T]
    ) -> _T:
        """What ``read`` makes of what it fetches of ``objects``, which are open then.

        Where it finds that damaged, it is called again, over bytes that were fetched again; where
        others leave no room on the disk, it is called again with nothing kept there.
        """
        try:
            return self._read_twice(objects, origin, read)
        except Crowded as error:
            self._leave_disk(error)
            return self._read_twice(objects, origin, read)

    def _leave_disk(self, why: Crowded) -> None:
        self._options = dataclasses.replace(self._options, disk_limit=0)
        warnings.warn(str(why), stacklevel=2)  # may raise: then the next call reads on

    def _read_twice(
        self, objects: Mapping[str, RemoteObject], origin: Origin, read: Callable[[_Attached], _T]
    ) -> _T:
        for again in (False, True):
            attached = _Attached(self._url, self._options, objects, origin)
            self._attached = attached
            weakref.finalize(self, attached.dropped)
            with self._named():
                try:
                    return read(attached)
                except Crowded:
                    attached.close()
                    raise
                except DataError as error:
                    if again:
                        raise fetched_again(error) from error.__cause__
                    if not attached.lost and not attached.doubt():
                        raise
            attached.close()
        raise AssertionError("the second time returns or raises")

    @property
    def _here(self) -> _Attached:
        """What this process has open; opened again after a fork or unpickling."""
        here = self._opened_here
        if here is not None:
            return here
        with self._reopening:
            if self._opened_here is None:
                if self._attached is not None:
                    self._attached.close()
                self._attach(self._new_origin())
            assert self._attached is not None
            return self._attached

    @property
    def _opened_here(self) -> _Attached | None:
        attached = self._attached
        if attached is None or attached.store is None or attached.process != os.getpid():
            return None
        return attached

    def _ask(self, question: Callable[[Store], _T]) -> _T:
        return self._healed(lambda: question(self.inner))

    def _healed(self, read: Callable[[], _T]) -> _T:
        """What ``read`` returns, called again if the cache was wrong (Note in ``blocks.py``)."""
        here = self._here
        with self._named():
            try:
                return read()
            except LostFiles as error:
                self._reopen(here, error)
            except DataError as error:
                again = str(error) in self._doubted
                self._doubted.add(str(error))
                if here.lost:
                    self._reopen(here)
                elif again or not self.inner.remote or not here.doubt():
                    raise
            try:
                return read()
            except LostFiles:
                raise
            except DataError as error:
                raise fetched_again(error) from error.__cause__

    def _reopen(self, lost: _Attached, why: LostFiles | None = None) -> None:
        """Open the store anew, as files of the cache were lost; another thread may have done so."""
        with self._reopening:
            if self._attached is lost:
                if isinstance(why, Crowded):
                    self._leave_disk(why)
                try:
                    self._attach(lost.origin)
                finally:
                    if self._attached is not lost:  # else the next call tries again
                        self._before.append(lost)
                        self.generation += 1

    def doubt(self, indices: np.ndarray) -> bool:
        new = np.array([i for i in indices.tolist() if i not in self._doubted], np.int64)
        here = self._here
        if not len(new) or self.inner.remote:
            return False  # of a table that is decoded, rows have no bytes of their own
        self._doubted.update(new.tolist())
        if here.lost:
            self._reopen(here)
        else:
            here.cache.doubt(self._ranges(self.places(new)), here.origin)
        return True

    @property
    def inner(self) -> Store:
        store = self._here.store
        assert store is not None, "this is set when it was opened"
        return store

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Errors name the object rather than its cache file."""
        try:
            yield
        except DataError as error:
            renamed = self._renamed(error)
            if renamed is error:
                raise
            raise renamed from renamed.__cause__

    def _renamed(self, error: DataError) -> DataError:
        """``error`` and its causes, with the object's name in the place of its cache file's."""
        shown, cause = self._shown_path(error.path), error.__cause__
        message = error.message
        if self._attached is not None:
            mirror = os.path.join(self._attached.mirror.folder, "")
            message = message.replace(mirror, self._url.sibling("").shown)
        if isinstance(cause, DataError):
            cause = self._renamed(cause)
        if (shown, message) == (error.path, error.message) and cause is error.__cause__:
            return error
        renamed = type(error)(message, path=shown, record=error.record, offset=error.offset)
        renamed.__cause__ = cause
        return renamed.with_traceback(error.__traceback__)

    def _shown_path(self, path: str | None) -> str | None:
        attached = self._attached
        if path is None or attached is None:
            return path
        file = attached.files.get(path)
        if file is not None:
            return file.what.url.shown
        return self.path if path.startswith(attached.mirror.folder) else path

    # --- where records are ------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._count

    def shown(self, file: int) -> str:
        """The URL, without credentials."""
        path = self.files[file]
        return self._shown_path(path) or path

    def spans(self, indices: np.ndarray) -> Spans:
        """Fetched, and there as long as the spans live."""

        def fetched() -> Spans:
            if self.inner.remote:
                return self.inner.spans(indices)
            here, spans = self._here, self.places(indices)
            hold = here.cache.hold(self._ranges(spans), here.origin)
            assert hold is not None, "only what is ahead may find no room"
            hold.wait()
            return Spans(file=spans.file, offset=spans.offset, nbytes=spans.nbytes, held=hold)

        return self._healed(fetched)

    def ahead(self, indices: np.ndarray, *, urgency: float, blocks: bool = False) -> Held | None:
        def begun() -> Held | None:
            if self.inner.remote:
                return self.inner.ahead(indices, urgency=urgency, blocks=blocks)
            here = self._here
            ranges = self._ranges(self.places(indices), blocks=blocks)
            return here.cache.hold(ranges, here.origin, urgency=urgency, ahead=True)

        return self._healed(begun)

    def _ranges(self, spans: Spans, *, blocks: bool = False) -> list[tuple[BlockFile, np.ndarray]]:
        ranges = []
        for number, file, mine in self._by_file(spans):
            cells = cells_of(spans.offset[mine], spans.nbytes[mine])
            # Nothing is fetched or evicted where all is there and stays: then to hold the records
            # is enough, which are a small part of their blocks.
            if blocks and not (self._here.cache.fits and file.has(cells)):
                begin, end = self._blocks(number)
                wanted = np.unique(spans.offset[mine] // BLOCK_NBYTES)
                cells = cells_of(begin[wanted], end[wanted] - begin[wanted])
            ranges.append((file, cells))
        return ranges

    def _by_file(self, spans: Spans) -> Iterator[tuple[int, BlockFile, np.ndarray]]:
        """Of each file that is fetched: its number, its cached part, and which of ``spans``."""
        here, memory = self._here, self.memory()
        for number in np.unique(spans.file).tolist():
            if number not in memory and self.indirect is None:
                yield number, here.files[self.files[number]], spans.file == number

    def _blocks(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Where each block of a file begins and ends, int64 (blocks,), both.

        A block goes from its first record to the end of its last one, which the next block need
        not be there for. One in which no record begins ends before it begins.
        """
        here = self._here
        if number not in here.blocks:
            spans = self.places(np.arange(len(self), dtype=np.int64))
            for each in np.unique(spans.file).tolist():
                mine = spans.file == each
                begin, block = spans.offset[mine], spans.offset[mine] // BLOCK_NBYTES
                first = np.full(int(block.max()) + 1, np.iinfo(np.int64).max)
                end = np.zeros(len(first), np.int64)
                np.minimum.at(first, block, begin)
                np.maximum.at(end, block, begin + spans.nbytes[mine])
                here.blocks[each] = first, end
        return here.blocks[number]

    def expect(
        self, indices: np.ndarray, positions: np.ndarray, *, length: int, blocks: bool = False
    ) -> None:
        self.inner.expect(indices, positions, length=length, blocks=blocks)
        here = self._here
        if self.indirect is not None or here.cache.fits:
            return  # nothing is evicted
        spans, most = self.places(indices), int(positions.max(initial=0))
        for number, file, mine in self._by_file(spans):
            at = np.flatnonzero(mine & (spans.nbytes > 0))
            offset, nbytes = spans.offset[at], spans.nbytes[at]
            if blocks and not self.inner.remote:
                begin, end = self._blocks(number)
                some = np.flatnonzero(end > begin)
                pieces, count = np.searchsorted(some, offset // BLOCK_NBYTES), len(some)
                whole = begin[some] // (CELL * GROUP), -(-end[some] // (CELL * GROUP))
            else:
                pieces, which = touched(offset, nbytes, CELL * GROUP)
                at, whole, count = at[which], None, file.groups
            uses = Uses(pieces, positions[at], count, length=length, most=most, blocks=whole)
            with here.cache.area.mutex():
                file.uses, file.now = uses, 0

    def passed(self, position: int) -> None:
        self.inner.passed(position)
        for file in self._here.opened.values():
            file.now = position

    def check_window(self, blocks: int) -> None:
        self.inner.check_window(blocks)
        limit = self._here.cache.area.limit
        if blocks * BLOCK_NBYTES > limit // 2:
            raise UsageError(
                f"shuffle_window: expected at most {limit // 2 // BLOCK_NBYTES} blocks of 8 MB, "
                f"half of the {limit} bytes that are cached, got {blocks}: raise disk_limit"
            )

    def fetched(self) -> Mapping[str, float]:
        return self.counters.snapshot()

    @property
    def versions(self) -> list[tuple[str, int, str]]:
        """URL, size and tag of each object: equal only for equal content."""
        return [(what.url.shown, what.nbytes, what.tag) for what in self._objects.values()]

    # --- columns ----------------------------------------------------------------------------------

    def check_whole(self) -> None:
        """Also of columns from before files were opened anew."""
        try:
            for store in [*(before.store for before in self._before), self.inner]:
                if store is not None:
                    store.check_whole()
        except StoreError as error:
            raise StoreError(
                "the cache's files were truncated while its columns are in use: make a new loader, "
                f"which fetches them again; {CLEAR}",
                path=self.path,
            ) from error

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        def read() -> np.ndarray:
            if self._sized:
                return self.inner.sizes(indices)
            parts = [np.empty((0, 2), np.int32)]
            for at in range(0, len(indices), _PROBED):
                some = indices[at : at + _PROBED]
                spans = self.spans(some)  # sizes are read from the images' headers
                parts.append(self.inner.sizes(some))
                del spans
            return np.concatenate(parts)

        return self._healed(read)

    def locate(self, indices: np.ndarray) -> Located:
        if self.inner.remote:
            return self._healed(lambda: self.inner.locate(indices))
        return super().locate(indices)

    def read(self, indices: np.ndarray) -> list[bytes]:
        """What does not match its checksum is fetched again."""
        if self.indirect is not None:
            return super().read(indices)

        def read() -> list[bytes]:
            here, data = self._here, Store.read(self, indices)
            # Not of all files: of a thousand shards a single record would take a millisecond.
            read_from = () if self.inner.remote else self._by_file(self.places(indices))
            if self._attached is not here or any(file.lost for _, file, _ in read_from):
                # Files are opened by their paths, where there may be new ones by now, with holes.
                raise LostFiles("the cache's files were deleted as they were read", path=self.path)
            return data

        data = self._healed(read)
        sums = self.checksums(indices)
        if sums is None:
            return data
        new = np.flatnonzero(~self._verified[indices]).tolist()
        wrong = [at for at in new if crc32c(data[at]) != sums[at]]
        self._verified[indices] = True
        self._verified[indices[wrong]] = False
        if wrong and self.doubt(indices[wrong]):  # else who uses them says so
            return self.read(indices)
        return data

    def close(self) -> None:
        if self._attached is not None:
            if self._attached.store is not None:
                self._attached.store.close()
            for attached in [*self._before, self._attached]:
                attached.close()
            self._attached, self._before = None, []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_attached": None, "_before": [], "counters": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.counters = RemoteCounters()
