"""Formats that append records to a file: StreamWriter and read_stream.

Order of writing. Records are written into the data file of the partial store. ``sync`` syncs it and
then adds a chunk to the journal, which says where every record lies. When the work is resumed,
every frame that the journal knows, the record and what surrounds it, is compared with its checksum;
what lies behind them is overwritten or cut off.

The store is NAME with its sidecar NAME.fastload, which is renamed first. A store of shards is
several such files (``shard_set.py``).
"""

from __future__ import annotations

import abc
import dataclasses
import glob
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from .. import _native
from ..errors import StoreError
from ._columns import Columns, join
from ._crc import crc32c
from ._durable import write_all
from ._fields import encode_text
from ._read import open_regular, pread_all
from ._shards import data_files, is_pattern
from ._sidecar import need_by_sidecar, read_sidecar, sidecar_of, write_sidecar
from ._writer import FileOptions, FileWriter
from .base import Batch, Fetch
from .table import Framing, Table, TableStore

if TYPE_CHECKING:
    from typing_extensions import Unpack

STORE, SHARD = b"store", b"shard"  # what a writer's mark says: its file is a whole store, or not
_MARK_NBYTES = 1024  # at the start of a file, where marks lie
# Written without a sync, so lost by a kill: a second of a slow disk.
_SYNC_NBYTES = 64 << 20
_WRITEBACK_NBYTES = 4 << 20  # writeback is started for this much at a time


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


class StreamWriter(FileWriter):
    """Appends framed records to a data file. See ``open_writer`` for the arguments.

    A format implements what surrounds its records: ``frames``, and if needed ``trailer`` and
    ``extras``.
    """

    version: ClassVar[int] = 3

    def __init__(self, path: str | os.PathLike[str], **options: Unpack[FileOptions]) -> None:
        self._file = -1  # a descriptor
        self._at = 0  # where the next record starts
        self._unsynced_nbytes = self._unstarted_nbytes = 0
        super().__init__(path, **options)

    # --- what a format implements -----------------------------------------------------------------

    @abc.abstractmethod
    def frames(self, first: int, batch: Batch) -> tuple[Sequence[bytes], Sequence[bytes]]:
        """The bytes before and the bytes after each record; ``first`` is the index of the first."""

    def data_crcs(self, batch: Batch) -> Sequence[int]:
        """CRC32C of ``batch.data``, which a format may have replaced by other bytes."""
        sums: list[int] = batch.crc32c.tolist()
        return sums

    def trailer(self) -> bytes:
        """The last bytes of every data file."""
        return b""

    def extras(self, name: str, records: Columns) -> Mapping[str, bytes]:
        """Other files to write beside the data file ``name``: name -> content.

        ``records`` are the columns of the records in it; ``places`` says where they lie.
        """
        return {}

    # --- what a format may ask --------------------------------------------------------------------

    @property
    def mark(self) -> bytes:
        """STORE or SHARD, for the first record of a store."""
        return STORE if self._shard is None else SHARD

    @property
    def first_index(self) -> int:
        """Index in the whole store of the first record of this file."""
        return 0 if self._shard is None else self._shard.first

    @property
    def next_index(self) -> int:
        """Index in the whole store of the record that is added next."""
        return self.first_index + len(self)

    def first_key(self, batch: Batch) -> bytes:
        """Key of the first record of the whole store; ``batch`` is added next."""
        if self._shard is not None and self._shard.first_key is not None:
            return encode_text(self._shard.first_key)
        for part in self._parts:
            return part.keys.take(np.zeros(1, np.int64))[0]
        return encode_text(batch.keys[0])

    # --- writing ----------------------------------------------------------------------------------

    def _resume(self) -> None:
        path, columns = self._partial.file("data"), join(self._partial.chunks)
        if len(columns):
            try:
                self.check(path, columns, self.first_index)
            except StoreError as error:
                raise self._partial.damaged(
                    error.message, path, record=error.record, offset=error.offset
                ) from error
            assert columns.places is not None  # every chunk of this version has them
            self._at = int(columns.places[-1, 2])
        with self._writing():
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    @classmethod
    def check(cls, path: str, columns: Columns, first: int) -> None:
        """Compares every frame."""
        try:
            with open(path, "rb", buffering=0, opener=open_regular) as file:
                _check_frames(file.fileno(), path, columns, first)
        except OSError as error:
            raise StoreError(f"a data file cannot be read ({error.strerror})", path=path) from error

    def _add_some(self, batch: Batch, columns: Columns, most: int | None) -> int:
        before, after = self.frames(self.next_index, batch)
        heads = np.fromiter(map(len, before), np.int64, len(before))
        lengths = heads + columns.nbytes + np.fromiter(map(len, after), np.int64, len(after))
        ends = self._at + np.cumsum(lengths)
        count = self._fitting(ends, None if most is None else most - len(self.trailer()))
        if not count:
            return 0
        parts = list(zip(before, batch.data, self.data_crcs(batch), after))[:count]
        begin, end = ends - lengths, int(ends[count - 1])
        sums = [_frame_sum(head, crc, tail) for head, _, crc, tail in parts]
        places = np.stack([part[:count] for part in (begin, begin + heads, ends)] + [sums], axis=1)
        pieces = [
            piece for head, data, _, tail in parts for piece in (head, data, tail) if len(piece)
        ]
        with self._writing():
            write_all(self._file, pieces, self._at)
            self._start_writeback(end)
        self._unsynced_nbytes += end - self._at
        self._at = end
        added = columns if count == len(columns) else columns.part(0, count)
        self._columns.append(dataclasses.replace(added, places=places))
        if self._unsynced_nbytes >= _SYNC_NBYTES:
            self.sync()
        return count

    def _start_writeback(self, end: int) -> None:
        """Start writing to the disk what was written up to ``end``, so that ``sync`` waits less."""
        self._unstarted_nbytes += end - self._at
        if self._unstarted_nbytes < _WRITEBACK_NBYTES:
            return
        core = _native.load()
        if core is not None:
            at = end - self._unstarted_nbytes
            core.start_writeback(self._file, at, self._unstarted_nbytes)
        self._unstarted_nbytes = 0

    def sync(self) -> None:
        if not self._columns:
            return
        with self._writing():
            os.fsync(self._file)
            self._partial.add(join(self._columns))
        self._columns.clear()
        self._unsynced_nbytes = self._unstarted_nbytes = 0

    def _release(self) -> None:
        descriptor, self._file = self._file, -1
        if descriptor >= 0:
            os.close(descriptor)

    def commit(self) -> None:
        """Finish the data file, write the sidecar, and rename all of them."""
        self.sync()
        columns = join(self._partial.chunks, labelled=bool(self._classes))
        assert columns.places is not None  # every chunk has them
        folder, name = os.path.split(self.path)
        sidecar = sidecar_of(self.path)
        with self._writing():
            os.ftruncate(self._file, self._at)
            write_all(self._file, [self.trailer()], self._at)
            self._release()
            renames = [("sidecar", sidecar)]
            for number, (extra, content) in enumerate(self.extras(name, columns).items()):
                inner = f"extra-{number:05d}"
                with open(self._partial.file(inner), "wb") as file:
                    file.write(content)
                renames.append((inner, os.path.join(folder, extra)))
            table = Table(
                format=self.format,
                files=[self._partial.file("data")],
                file=np.zeros(len(columns), np.int32),
                offset=np.ascontiguousarray(columns.places[:, 1]),
                nbytes=columns.nbytes,
                keys=columns.keys,
                labels=columns.labels,
                sizes=columns.sizes,
                kinds=columns.kinds,
                crc32c=columns.crc32c,
                fields=columns.fields,
                classes=self._classes,
                metadata=self._metadata,
            ).checked()  # before the store gets its name
            write_sidecar(self._partial.file("sidecar"), table, [name])
            # The name of the data file makes the store exist.
            self._partial.publish([*renames, ("data", self.path)], replace=os.path.lexists(sidecar))
        self._closed = True


def _check_frames(file: int, path: str, columns: Columns, first: int) -> None:
    assert columns.places is not None  # those of a file that a StreamWriter writes
    rows = zip(columns.places.tolist(), columns.nbytes.tolist())
    for record, ((begin, at, end, expected), nbytes) in enumerate(rows, first):
        frame = memoryview(pread_all(file, end - begin, begin))
        if len(frame) < end - begin:
            raise StoreError(
                f"expected {end - begin} bytes of a record and what surrounds it, found "
                f"{len(frame)}",
                path=path, record=record, offset=begin,
            )  # fmt: skip
        data, after = frame[at - begin : at - begin + nbytes], frame[at - begin + nbytes :]
        found = _frame_sum(frame[: at - begin], crc32c(data), after)
        if found != expected:
            raise StoreError(
                f"expected checksum {expected:08x} of a record and what surrounds it, found "
                f"{found:08x}",
                path=path, record=record, offset=begin,
            )  # fmt: skip


def _frame_sum(before: bytes | memoryview, data_crc: int, after: bytes | memoryview) -> int:
    """The checksum of a frame: CRC32C of what surrounds the record, xor the record's, known one."""
    return crc32c(after, crc32c(before)) ^ data_crc
