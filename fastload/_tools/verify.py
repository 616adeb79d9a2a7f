"""``verify``: check that every record of a store is present, unchanged, and decodes."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import mmap
import os
import threading
from collections.abc import Callable, Iterator

import numpy as np

from .. import _native
from .._base.in_order import in_order
from .._base.machine.cpu import available
from .._base.progress_bar import Progress, reporting
from ..errors import DataError, StoreError, sample_error
from ..storage import open_store
from ..storage._crc import crc32c
from ..storage._mapped import Mapped, TruncationWatch, map_file
from ..storage._read import fetched_ahead, read_each, where_of
from ..storage.base import Store
from ..storage.table import TableStore

# Bytes read at a time: enough for the full speed of a disk, little memory.
_READ_NBYTES = 8 << 20
_READ_RECORDS = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Damage:
    """One damaged record.

    Attributes:
        path, offset: the file it lies in, and where, in bytes; None if it does not lie there as it
            is.
        reason: what is wrong, for a message.
    """

    record: int
    key: str
    path: str
    offset: int | None
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """The result of ``verify``.

    Attributes:
        path, format: of the store.
        records: number of records in the store.
        nbytes: bytes read.
        checksums: whether records have any; without, only missing and truncated files are found.
        decoded: whether every image was decoded.
        columns: state of labels, names and fields: "right", "no checksum", or what is wrong.
        damaged: the damaged records, in order.
    """

    path: str
    format: str
    records: int
    nbytes: int
    checksums: bool
    decoded: bool
    columns: str
    damaged: tuple[Damage, ...]


def verify(
    store: str | os.PathLike[str] | Store,
    *,
    decode: bool = False,
    workers: int | None = None,
    progress: Progress | bool | None = None,
) -> VerifyReport:
    """Read a store and compare every record, and labels, names and fields, with their checksums.

    Of local tar, TFRecord and RecordIO files, what surrounds records is compared, too, as far as
    the format has checksums or fixed bytes there.

    Example:
        >>> verify("imgs.lmdb").damaged
        ()

    Args:
        store: path or URL of a store, or an open one.
        decode: also decode every image, as loading would.
        workers: number of threads; None: the number of CPUs.
        progress: as for ``pack``; bytes are those read.

    Returns:
        What is damaged: ``damaged`` lists the records, with path, byte offset and reason;
        ``columns`` is about labels, names and fields.

    Raises:
        StoreNotFoundError: there is no store.
        StoreError: the store itself cannot be opened, so its records are unknown.
    """
    opened = open_store(store)
    order = _reading_order(opened)
    frames = _Frames(opened)
    has_checksums = opened.checksums(np.arange(min(1, len(opened)))) is not None
    local, ended = threading.local(), threading.Event()
    damaged: dict[int, Damage] = {}  # what was found first of each record
    done = nbytes = 0

    def check(indices: np.ndarray) -> tuple[int, int, list[Damage]]:
        decoder = _decoder_of(opened, local) if decode else None
        return len(indices), *_check_records(opened, indices, decoder, ended.is_set)

    parts = fetched_ahead(opened, _parts_of(opened, order, 64 if decode else _READ_RECORDS))
    with (
        reporting("verifying", progress) as report,
        in_order(check, parts, workers or available(), "fastload-verify", ended) as checked,
    ):
        if report is not None:
            report(0, len(order), 0)
        for count, read, damages in checked:
            done, nbytes = done + count, nbytes + read
            for damage in [*damages, *frames.until(order[done - count : done])]:
                damaged.setdefault(damage.record, damage)
            if report is not None:
                report(done, len(order), nbytes)
    for damage in frames.rest():
        damaged.setdefault(damage.record, damage)
    return VerifyReport(
        path=opened.path,
        format=opened.format,
        records=len(opened),
        nbytes=nbytes,
        checksums=has_checksums or frames.sums_records,
        decoded=decode,
        columns=_check_columns(opened),
        damaged=tuple(damaged[record] for record in sorted(damaged)),
    )


def _check_columns(store: Store) -> str:
    """Whether labels, keys and fields match: "right", "no checksum", or what is wrong."""
    try:
        return "right" if store.check_columns() else "no checksum"
    except StoreError as error:
        return str(error)


def _reading_order(store: Store) -> np.ndarray:
    """All records, in their order on the disk."""
    everything = np.arange(len(store), dtype=np.int64)
    if store.indirect is not None:
        return everything
    spans = store.places(everything)
    order: np.ndarray = np.lexsort((spans.offset, spans.file)).astype(np.int64)
    return order


def _parts_of(store: Store, order: np.ndarray, most: int) -> Iterator[np.ndarray]:
    """Pieces of ``order`` of about 8 MB."""
    nbytes = np.maximum(store.places(order).nbytes, 64 << 10 if not store.mapped else 0)
    which = np.maximum(np.cumsum(nbytes) // _READ_NBYTES, np.arange(len(order)) // most)
    edges = [*np.flatnonzero(np.diff(which, prepend=-1)).tolist(), len(order)]
    for start, stop in itertools.pairwise(edges):
        yield order[start:stop]


def _check_records(
    store: Store,
    indices: np.ndarray,
    decode: Callable[[int], None] | None,
    ended: Callable[[], bool],
) -> tuple[int, list[Damage]]:
    """Bytes read, and what is wrong with ``indices``, or with those until ``ended`` is true."""
    expected = store.checksums(indices)
    damaged: list[Damage] = []
    total = 0
    for at, (index, data) in enumerate(zip(indices.tolist(), read_each(store, indices))):
        if ended():
            break
        reason = None
        try:
            if isinstance(data, DataError):
                raise data
            total += len(data)
            if expected is not None and (crc := crc32c(data)) != int(expected[at]):
                reason = f"expected CRC32C {int(expected[at]):08x}, found {crc:08x}"
            elif decode is not None:
                decode(index)
        except Exception as error:  # noqa: BLE001 - libraries raise anything for damaged records
            reason = sample_error(error).message
        if reason is not None:
            damaged.append(_damage(store, index, reason))
    return total, damaged


class _Frames:
    """Checks what surrounds the records of a store on a disk, as its format does."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._framing = store.table.framing if isinstance(store, TableStore) else None
        self.sums_records = self._framing is not None and self._framing.sums_records
        self._file, self._at = -1, 0  # where the next frame starts
        self._data: Mapped = b""
        self._watch: TruncationWatch | None = None  # so that a lost page is no SIGBUS
        self._records = self._ends = np.empty(0, np.int64)  # the last ones in the file

    def until(self, part: np.ndarray) -> list[Damage]:
        """What is wrong around the records ``part``, which lie behind those of the call before."""
        if self._framing is None:
            return []
        spans, memory = self._store.places(part), self._store.memory()
        damaged: list[Damage] = []
        for file in np.unique(spans.file).tolist():
            if file in memory:
                continue  # pieces of records: they lie between others
            if file != self._file:
                damaged += self.rest()
                self._begin(file)
            mine = spans.file == file
            self._records, self._ends = part[mine], (spans.offset + spans.nbytes)[mine]
            damaged += self._check(int(self._ends[-1]))
        return damaged

    def rest(self) -> list[Damage]:
        """What is wrong behind the last record of the file."""
        return self._check(len(self._data)) if self._file >= 0 else []

    def _begin(self, file: int) -> None:
        path = self._store.files[file]
        self._file, self._at, self._data, self._watch = file, 0, b"", None
        with contextlib.suppress(StoreError):  # it has gone, as every record of it says
            self._data = map_file(path)
        if isinstance(self._data, mmap.mmap):
            self._watch = TruncationWatch(self._data, path)

    def _check(self, end: int) -> list[Damage]:
        if not self._data:
            return []
        assert self._framing is not None  # a file was begun
        self._at, wrong = self._framing.check(self._data, self._at, end)
        damaged = []
        for offset, reason in wrong:
            at = min(int(np.searchsorted(self._ends, offset, side="right")), len(self._ends) - 1)
            found = _damage(self._store, int(self._records[at]), reason)
            damaged.append(dataclasses.replace(found, offset=offset))
        return damaged


def _damage(store: Store, index: int, reason: str) -> Damage:
    try:
        (key,) = store.keys(np.array([index], np.int64))
    except StoreError:
        key = ""
    where = where_of(store, index)
    return Damage(
        record=index, key=key, path=str(where["path"]), offset=where["offset"], reason=reason
    )


def _decoder_of(store: Store, local: threading.local) -> Callable[[int], None]:
    """A function that decodes one record as loading does, and raises DataError if that fails."""
    if _native.load() is None:
        from .._engine.pillow import decode_record

        return lambda index: decode_record(store, index, check=False).close()
    decoder = getattr(local, "decoder", None)
    if decoder is None:
        from .._base.slabs import SlabRing
        from .._engine.image_engine import EngineOptions
        from .._engine.registry import make_engine, native
        from .._transforms.recognise import Plan, recognise

        plan = recognise(None)
        assert isinstance(plan, Plan)  # None is always recognised
        options = EngineOptions(threads=0, ring=SlabRing(1), check_crc="never")
        decoder = local.decoder = make_engine(native(), store, plan, options)

    def decode(index: int) -> None:
        decoder.submit(np.array([index], np.int64), seed=0, epoch=0).result()

    return decode
