"""Read-ahead: the system is told which records come next, so that decoding need not wait for them.

The order of an epoch is known, so the records behind the batches that are being filled can be on
their way: many requests at a time, sorted by their place on the disk, each as long as its record.
What the system does by itself when a page of a mapped file is missing is a guess around that page,
one for each decoding thread; with a random order it reads too much or too little.

Where the page cache holds everything this would be work for nothing. So the first batch of an epoch
is announced in any case; after that, a look at the process's own counters of reading, once a batch,
says whether anything came from the disk since the last look, and if so the window ahead is kept
announced for some batches. Reading that announcements cause counts too: they go on for as long as
they serve.
"""

from __future__ import annotations

import collections
import resource
from collections.abc import Callable

import numpy as np

from .._engine.decoder import Decoder
from ..errors import DataError
from ..storage.base import Spans
from .order import Batches

# Announced ahead of the batches in the engine: 60 ms of a disk that reads 1 GB/s, and small against
# the page cache. Announced in pieces, each sorted by itself.
_WINDOW_NBYTES = 64 << 20
_PIECE_NBYTES = 16 << 20

# Less than this between two batches is no reason: other parts of the process read files as well.
_NOISE_NBYTES = 64 << 10

# For so many batches announcing goes on after the last one that something was read for.
_PERSISTENCE = 8

# What a record that is a whole file counts, as its length is not known here, and what any record
# counts beside its length: it begins and ends in the middle of a page.
_FILE_NBYTES = 128 << 10
_PAGE_NBYTES = 4 << 10

# Tables of records up to this are announced before anything is known of the cache: 1.7 million
# records in LMDB, 0.8 ms of work for nothing.
_SMALL_TABLES_NBYTES = 64 << 20

# Batches that have only their own records announced: the first ones are to come soon.
_FIRST_BATCHES = 3

# Batches announced at a time at most: the batch that was submitted is not to wait for Python here.
_BATCHES = 16


class ReadAhead:
    """Announces the records of one epoch to the system.

    Args:
        decoder: its ``readahead`` is called.
        lookup: indices of the dataset -> record numbers, both int64.
        order: the batches of the whole epoch, there at the latest with the first one; nothing
            where they are not known, and each batch is announced when it is submitted.
    """

    def __init__(
        self,
        decoder: Decoder,
        lookup: Callable[[np.ndarray], np.ndarray],
        order: Batches,
    ) -> None:
        self._decoder = decoder
        self._lookup = lookup
        self._order = order
        self._submitted = 0
        self._cold = 0  # batches until announcing ends
        self._ahead: collections.deque[int] = collections.deque()  # announced batches, in bytes
        self._counter = _nbytes_read()
        self._tables: Spans | None = decoder.store.tables()
        if self._tables.nbytes.sum() <= _SMALL_TABLES_NBYTES:
            self._announce_tables()

    def submitted(self, records: np.ndarray) -> None:
        """The engine got one more batch, ``records``: announce what follows, if it must be read."""
        self._submitted += 1
        try:  # rather than ask first: without workers, threads may share an iterator
            self._ahead.popleft()
            announced = True
        except IndexError:
            announced = False
        try:
            if self._submitted == 1:
                self._decoder.readahead([self._spans(records)], wait=True)
                announced = True
            self._look()
            if not self._cold:
                self._ahead.clear()
                return
            self._cold -= 1
            if not announced:
                self._decoder.readahead([self._spans(records)])
            if self._submitted > _FIRST_BATCHES:
                self._top_up()
        except DataError:
            pass  # spans that are not in the store: reported when their batch is filled

    def _look(self) -> None:
        """Note whether anything was read from a disk since the last look."""
        counter = _nbytes_read()
        if counter - self._counter > _NOISE_NBYTES:
            self._cold = _PERSISTENCE
            self._announce_tables()
        self._counter = counter

    def _announce_tables(self) -> None:
        """Announce, once in an epoch, what looking up records reads."""
        tables, self._tables = self._tables, None
        if tables is not None and len(tables.nbytes):
            wait = int(tables.nbytes.sum()) <= _SMALL_TABLES_NBYTES
            self._decoder.readahead([tables], wait=wait)

    def _top_up(self) -> None:
        """Announce whole batches until the window is full, if a piece is missing from it."""
        total = sum(self._ahead)
        if total > _WINDOW_NBYTES - _PIECE_NBYTES:
            return
        piece: list[Spans] = []
        begin = total
        first = self._submitted + len(self._ahead)
        for number in range(first, min(first + _BATCHES, len(self._order))):
            spans = self._spans(self._lookup(self._order[number]))
            lengths = np.where(spans.nbytes < 0, _FILE_NBYTES, spans.nbytes)
            nbytes = int(lengths.sum()) + _PAGE_NBYTES * len(lengths)
            piece.append(spans)
            self._ahead.append(nbytes)
            total += nbytes
            if total - begin >= _PIECE_NBYTES:
                self._decoder.readahead(piece)
                piece, begin = [], total
            if total >= _WINDOW_NBYTES:
                break
        if piece:
            self._decoder.readahead(piece)

    def _spans(self, records: np.ndarray) -> Spans:
        return self._decoder.store.spans(records)


def _nbytes_read() -> int:
    """Bytes this process had to wait for or asked ahead from disks; only differences mean a thing.

    Blocks read are counted where the file system's driver does so; pages that a mapped file
    lacked are counted everywhere.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_inblock * 512 + usage.ru_majflt * resource.getpagesize()
