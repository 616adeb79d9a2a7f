"""Read-ahead: announces to the system which records come next, so that decoding need not wait.

The order of an epoch is known, so the records of the next batches can be requested early: many at a
time, sorted by their place on the disk, each as long as its record. By itself, the system guesses
what to read around a missing page of a mapped file, once per decoding thread; in a random order it
reads too much or too little.

Where the page cache holds everything, announcing is wasted work. So only the first batch of an
epoch is always announced. After that, the process's own counters of reading are compared once per
batch: if anything was read from the disk since the last batch, the window ahead is announced for
some batches. The counters include what announcements read, so announcing continues as long as it is
of use.
"""

from __future__ import annotations

import collections
import resource
from collections.abc import Callable

import numpy as np

from .._engine.base import BatchEngine
from ..errors import DataError
from ..storage.base import Spans
from .order import Batches

# Bytes announced ahead of the batches in the engine: 60 ms of a disk that reads 1 GB/s, and small
# against the page cache. Each piece is sorted by itself.
_WINDOW_NBYTES = 64 << 20
_PIECE_NBYTES = 16 << 20

# Less than this between two batches does not count: other parts of the process read files too.
_NOISE_NBYTES = 64 << 10

# Announcing continues for so many batches after the last one for which something was read.
_PERSISTENCE = 8

# The assumed length of a record that is a whole file, because its length is not known here; and
# what any record takes beyond its length, because it starts and ends within a page.
_FILE_NBYTES = 128 << 10
_PAGE_NBYTES = 4 << 10

# Tables of records up to this size are announced at once: 1.7 million records in LMDB, and 0.8 ms
# of wasted work where the page cache has them.
_SMALL_TABLES_NBYTES = 64 << 20

# For so many batches only their own records are announced, so that the first ones come soon.
_FIRST_BATCHES = 3

# Batches announced at a time, at most: the submitted batch must not wait for Python here.
_BATCHES = 16


class ReadAhead:
    """Announces the records of one epoch to the system, by the engine's ``readahead``.

    ``lookup`` gives record numbers for indices of the dataset, both int64. ``order`` has the
    batches of the whole epoch, known at the latest with the first one; empty where they are not
    known: then each batch is announced when it is submitted.
    """

    def __init__(
        self,
        engine: BatchEngine,
        lookup: Callable[[np.ndarray], np.ndarray],
        order: Batches,
    ) -> None:
        self._engine = engine
        self._places = engine.store.places
        self._lookup = lookup
        self._order = order
        self._submitted = 0
        self._cold = 0  # batches until announcing stops
        self._ahead: collections.deque[int] = collections.deque()  # announced batches, in bytes
        self._counter = _nbytes_read()
        self._tables: Spans | None = engine.store.tables()
        if self._tables.nbytes.sum() <= _SMALL_TABLES_NBYTES:
            self._announce_tables()

    def submitted(self, records: np.ndarray) -> None:
        """The engine got one more batch, ``records``: announce the next if the disk is read."""
        self._submitted += 1
        try:  # not "if": without workers, threads may share an iterator
            self._ahead.popleft()
            announced = True
        except IndexError:
            announced = False
        try:
            if self._submitted == 1:
                self._engine.readahead([self._places(records)], wait=True)
                announced = True
            self._look()
            if not self._cold:
                self._ahead.clear()
                return
            self._cold -= 1
            if not announced:
                self._engine.readahead([self._places(records)])
            if self._submitted > _FIRST_BATCHES:
                self._top_up()
        except DataError:
            pass  # the engine raises it when it fills the batch

    def _look(self) -> None:
        """Note whether anything was read from a disk since the last look."""
        counter = _nbytes_read()
        if counter - self._counter > _NOISE_NBYTES:
            self._cold = _PERSISTENCE
            self._announce_tables()
        self._counter = counter

    def _announce_tables(self) -> None:
        """Announce, once per epoch, the tables that looking up records reads."""
        tables, self._tables = self._tables, None
        if tables is not None and len(tables.nbytes):
            wait = int(tables.nbytes.sum()) <= _SMALL_TABLES_NBYTES
            self._engine.readahead([tables], wait=wait)

    def _top_up(self) -> None:
        """Announce whole batches until the window is full, if at least a piece is missing."""
        total = sum(self._ahead)
        if total > _WINDOW_NBYTES - _PIECE_NBYTES:
            return
        piece: list[Spans] = []
        begin = total
        first = self._submitted + len(self._ahead)
        for number in range(first, min(first + _BATCHES, len(self._order))):
            spans = self._places(self._lookup(self._order[number]))
            lengths = np.where(spans.nbytes < 0, _FILE_NBYTES, spans.nbytes)
            nbytes = int(lengths.sum()) + _PAGE_NBYTES * len(lengths)
            piece.append(spans)
            self._ahead.append(nbytes)
            total += nbytes
            if total - begin >= _PIECE_NBYTES:
                self._engine.readahead(piece)
                piece, begin = [], total
            if total >= _WINDOW_NBYTES:
                break
        if piece:
            self._engine.readahead(piece)


def _nbytes_read() -> int:
    """Bytes that this process has read from disks; only differences are meaningful.

    Blocks are counted where the file system's driver counts them; missing pages of mapped files
    are counted everywhere.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_inblock * 512 + usage.ru_majflt * resource.getpagesize()
