"""Formats that append records to files, in one file or in shards: StreamWriter and read_stream.

Order of writing. Records are written into the data files of the partial store. ``sync`` syncs these
files and then adds a chunk to the journal, which says where every record lies. When the work is
resumed, every frame that the journal knows, the record and what surrounds it, is compared with its
checksum; what lies behind them is overwritten or cut off.

A store of one file is NAME with its sidecar NAME.fastload, which is renamed first. A store of
shards is its shards, renamed first, and the sidecar as their manifest, which makes the set exist.
"""

from __future__ import annotations

import abc
import dataclasses
import glob
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .. import _native
from ..errors import StoreError, UsageError
from ._columns import Columns, RecordColumns, join
from ._crc import crc32c
from ._durable import write_all
from ._fields import encode_text
from ._read import open_regular, pread_all
from ._shards import Sharding, ShardStart, data_files, is_pattern, shard_name
from ._sidecar import is_manifest, need_by_sidecar, read_sidecar, sidecar_of, write_sidecar
from ._writer import PartialWriter, WriterOptions
from .base import Batch, Fetch
from .table import Framing, Table, TableStore

if TYPE_CHECKING:
    from typing_extensions import Unpack

STORE, SHARD = b"store", b"shard"  # what a writer's mark says: its file is a whole store, or not
_MARK_NBYTES = 1024  # at the start of a file, where marks lie
# Written without a sync, so lost by a kill: a second of a slow disk.
_SYNC_NBYTES = 64 << 20
_WRITEBACK_NBYTES = 4 << 20  # writeback is started for this much at a time
_COLUMNS = dataclasses.fields(RecordColumns)


def read_stream(
    path: str,
    format: str,
    *,
    mark: Callable[[bytes], bytes | None] | None = None,
    scan: Callable[[Sequence[str]], Table] | None = None,
    framing: Framing | None = None,
) -> Table:
    """The table of the store ``path``: from its sidecar, or by scanning its files.

    Files are scanned if another program wrote them; if the sidecar does not fit them, with a
    warning; if ``path`` is a pattern; and if a single shard of a set is opened.

    Args:
        mark: the first 1,024 bytes of a file -> STORE or SHARD if fastload's writer says so there,
            else None. None: files have no mark.
        scan: files -> their table. None: such files have no table without their sidecar.
        framing: of the format.
    """
    table = read_sidecar(path, format)
    if table is not None:
        return dataclasses.replace(table, framing=framing)
    files = data_files(path)
    place = sidecar_of(path)
    if scan is None:
        raise StoreError(
            f"expected {place!r}, which says where the records of the store lie, found none that "
            "fits its files: put it back, or pack the store again",
            path=path,
        )
    if mark is not None and not is_pattern(path) and not os.path.lexists(place):
        with open(files[0], "rb", opener=open_regular) as file:
            what = mark(file.read(_MARK_NBYTES))
        if what == (STORE if files == [path] else SHARD):
            raise StoreError(
                f"expected {place!r}, which the store was written with, found nothing: it has the "
                "checksums and the columns that the format has no place for; put it back, or open "
                f"the files as {_pattern(path, files)!r} to read what they alone hold",
                path=path,
            )
    return dataclasses.replace(scan(files), framing=framing)


def open_ranged(path: str, need: Fetch, format: str, read: Callable[[str], Table]) -> TableStore:
    """The store ``path`` of files of which nothing is there yet: ``Format.ranged``.

    A sidecar says where the records are. Without one that fits, the files are fetched whole.
    """
    if not need_by_sidecar(path, format, need):
        need([(file, 0, -1) for file in data_files(path)])
    return TableStore(path, read)


def _pattern(path: str, files: Sequence[str]) -> str:
    """A pattern for ``files`` and no others, with the suffix of ``path``."""
    if files != [path]:
        stem, suffix = os.path.splitext(path)
        return f"{glob.escape(stem)}-*{glob.escape(suffix)}"
    folder, name = os.path.split(path)
    return os.path.join(glob.escape(folder), f"[{name[0]}]{glob.escape(name[1:])}")


class StreamWriter(PartialWriter):
    """Appends framed records to data files. See ``open_writer`` for the arguments.

    A format implements what surrounds its records: ``frames``, and if needed ``trailer`` and
    ``extras``. An unfinished store of another ``version`` is not resumed. ``shard``: write this
    shard of a larger store, apart from the others.
    """

    format: ClassVar[str]
    version: ClassVar[int] = 2

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        shards: int | None = None,
        shard_nbytes: int | None = None,
        total: int | None = None,
        shard: ShardStart | None = None,
        **options: Unpack[WriterOptions],
    ) -> None:
        self._sharding = Sharding(shards, shard_nbytes, total)
        self._set = self._sharding.wanted  # writes several files
        self._sharded = self._set or shard is not None  # what it writes is not a whole store
        self._apart = shard
        path = os.path.abspath(os.fspath(path))
        other = path if self._set else sidecar_of(path)
        if os.path.lexists(path) if self._set else is_manifest(path):
            raise UsageError(f"{other!r} exists: delete that store or choose another name")
        begun: dict[str, Any] = {"format": self.format, "version": self.version}
        begun |= self._sharding.settings() if self._set else {}
        self._open: dict[int, int] = {}  # data files written since the last sync: descriptors
        self._unsynced_nbytes = self._unstarted_nbytes = 0
        super().__init__(path, begun, mark=sidecar_of(path) if self._set else None, **options)

    # --- what a format implements -----------------------------------------------------------------

    @abc.abstractmethod
    def frames(self, first: int, batch: Batch) -> tuple[Sequence[bytes], Sequence[bytes]]:
        """The bytes before and the bytes after each record; ``first`` is the index of the first."""

    def trailer(self) -> bytes:
        """The last bytes of every data file."""
        return b""

    def extras(self, name: str, records: Columns) -> Mapping[str, bytes]:
        """Other files to write beside the data file ``name``: name -> content.

        ``records`` are the columns of the records in it; ``places`` says where they lie.
        """
        return {}

    shard_name = staticmethod(shard_name)

    # --- what a format may ask --------------------------------------------------------------------

    @property
    def next_index(self) -> int:
        """Index in the whole store of the record that is added next."""
        return len(self) + (0 if self._apart is None else self._apart.first)

    def first_key(self, batch: Batch) -> bytes:
        """Key of the first record of the whole store; ``batch`` is added next."""
        if self._apart is not None:
            return encode_text(self._apart.first_key)
        chunks = self._partial.chunks or self._columns
        return (
            chunks[0].keys.take(np.zeros(1, np.int64))[0] if chunks else encode_text(batch.keys[0])
        )

    # --- writing ----------------------------------------------------------------------------------

    def _data(self, number: int) -> str:
        return self._partial.file(f"data-{number:05d}")

    def _resume(self) -> None:
        self._number, self._at = 0, 0  # where the next record may start
        if not self._partial.chunks:
            return
        columns = join(self._partial.chunks)
        assert columns.places is not None  # every chunk of this version has them
        self._number, self._at = columns.places[-1, [0, 3]].tolist()
        numbers = columns.places[:, 0]
        for number in sorted(set(numbers.tolist())):  # a shard without records has no file yet
            path = self._data(number)
            start, stop = np.searchsorted(numbers, [number, number + 1]).tolist()
            try:
                with open(path, "rb", buffering=0, opener=open_regular) as file:
                    self._check_frames(file.fileno(), path, start, columns.part(start, stop))
            except OSError as error:
                raise self._partial.damaged(
                    f"a data file cannot be read ({error.strerror})", path
                ) from error

    def _check_frames(self, file: int, path: str, first: int, columns: Columns) -> None:
        """Compare every frame of a data file, whose first record has the index ``first``."""
        assert columns.places is not None  # as above
        rows = zip(columns.places[:, 1:].tolist(), columns.nbytes.tolist())
        for record, ((begin, at, end, expected), nbytes) in enumerate(rows, first):
            frame = memoryview(pread_all(file, end - begin, begin))
            if len(frame) < end - begin:
                raise self._partial.damaged(
                    f"expected {end - begin} bytes of a record and what surrounds it, found "
                    f"{len(frame)}",
                    path, record=record, offset=begin,
                )  # fmt: skip
            data, after = frame[at - begin : at - begin + nbytes], frame[at - begin + nbytes :]
            found = _frame_sum(frame[: at - begin], crc32c(data), after)
            if found != expected:
                raise self._partial.damaged(
                    f"expected checksum {expected:08x} of a record and what surrounds it, found "
                    f"{found:08x}",
                    path, record=record, offset=begin,
                )  # fmt: skip

    def _descriptor(self, number: int) -> int:
        descriptor = self._open.get(number)
        if descriptor is None:
            descriptor = os.open(self._data(number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._open[number] = descriptor
        return descriptor

    def _add(self, batch: Batch, columns: Columns) -> None:
        before, after = self.frames(self.next_index, batch)
        heads = np.fromiter(map(len, before), np.int64, len(before))
        lengths = heads + columns.nbytes + np.fromiter(map(len, after), np.int64, len(after))
        begin = np.empty(len(lengths), np.int64)
        numbers = self._assign(len(self), lengths, begin)
        sums = [_frame_sum(*parts) for parts in zip(before, batch.crc32c.tolist(), after)]
        places = np.stack([numbers, begin, begin + heads, begin + lengths, sums], axis=1)
        with self._writing():
            for number in sorted(set(numbers.tolist())):  # np.unique takes 50 ms when first used
                start, stop = np.searchsorted(numbers, [number, number + 1]).tolist()
                pieces = [
                    piece
                    for i in range(start, stop)
                    for piece in (before[i], batch.data[i], after[i])
                    if len(piece)
                ]
                write_all(self._descriptor(number), pieces, int(begin[start]))
                self._start_writeback(number, int(begin[start]), int(lengths[start:stop].sum()))
        self._number, self._at = int(places[-1, 0]), int(places[-1, 3])
        self._columns.append(dataclasses.replace(columns, places=places))
        self._unsynced_nbytes += int(lengths.sum())
        if self._unsynced_nbytes >= _SYNC_NBYTES:
            self.sync()

    def _start_writeback(self, number: int, begin: int, nbytes: int) -> None:
        """Start writing to the disk what was written to the file, so that ``sync`` waits less."""
        self._unstarted_nbytes += nbytes
        if self._unstarted_nbytes < _WRITEBACK_NBYTES:
            return
        core = _native.load()
        if core is not None:
            at = max(0, begin + nbytes - self._unstarted_nbytes)
            core.start_writeback(self._descriptor(number), at, self._unstarted_nbytes)
        self._unstarted_nbytes = 0

    def _assign(self, first: int, lengths: np.ndarray, begin: np.ndarray) -> np.ndarray:
        """The data file of each record (ascending); fills ``begin`` with the place in it."""
        starts = np.cumsum(lengths) - lengths  # in the batch
        numbers = self._sharding.numbers(
            first, lengths, number=self._number, filled=self._at, beside=len(self.trailer())
        )
        edges = [0, *np.flatnonzero(np.diff(numbers, prepend=self._number)).tolist(), len(lengths)]
        for start, stop in itertools.pairwise(edges):
            if start < stop:
                at = self._at if numbers[start] == self._number else 0
                begin[start:stop] = starts[start:stop] - starts[start] + at
        return numbers

    def sync(self) -> None:
        if not self._columns:
            return
        with self._writing():
            for descriptor in self._open.values():
                os.fsync(descriptor)
            self._partial.add(join(self._columns))
        self._columns.clear()
        self._unsynced_nbytes = self._unstarted_nbytes = 0
        self._release()

    def _release(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def commit(self) -> None:
        self.sync()
        columns = join(self._partial.chunks, labelled=bool(self._classes))
        assert columns.places is not None  # every chunk has them
        count = self._sharding.shards or self._number + 1
        try:
            renames, names, paths = [], [], []
            for number in range(count):
                name = os.path.basename(self.path)
                name = self.shard_name(self.path, number, count) if self._set else name
                mine = columns.places[:, 0]
                start, stop = np.searchsorted(mine, [number, number + 1]).tolist()
                end = int(columns.places[stop - 1, 3]) if stop > start else 0
                self._finish_data(number, end)
                names.append(name)
                paths.append(self._data(number))
                renames.append((f"data-{number:05d}", self._beside(name)))
                for extra, content in self.extras(name, columns.part(start, stop)).items():
                    inner = f"extra-{len(renames):05d}"
                    with open(self._partial.file(inner), "wb") as file:
                        file.write(content)
                    renames.append((inner, self._beside(extra)))
            table = Table(
                format=self.format,
                files=paths,
                file=columns.places[:, 0].astype(np.int32),
                offset=np.ascontiguousarray(columns.places[:, 2]),
                classes=self._classes,
                metadata=self._metadata,
                **{field.name: getattr(columns, field.name) for field in _COLUMNS},
            ).checked()  # before the store gets its name
            write_sidecar(self._partial.file("sidecar"), table, names)
            sidecar = ("sidecar", sidecar_of(self.path))
            if self._set:
                renames.append(sidecar)
            else:  # the name of the data file makes the store exist
                renames = [sidecar, *renames[1:], renames[0]]
            self._partial.publish(renames, replace=not self._set and os.path.lexists(sidecar[1]))
            self._closed = True
        except OSError as error:
            raise self._failed(error) from error
        finally:
            self._release()

    def _beside(self, name: str) -> str:
        return os.path.join(os.path.dirname(self.path), name)

    def _finish_data(self, number: int, end: int) -> None:
        descriptor = self._descriptor(number)
        os.ftruncate(descriptor, end)
        write_all(descriptor, [self.trailer()], end)
        self._release()


def _frame_sum(before: bytes | memoryview, data_crc: int, after: bytes | memoryview) -> int:
    """The checksum of a frame: CRC32C of what surrounds the record, xor the record's, known one."""
    return crc32c(after, crc32c(before)) ^ data_crc
