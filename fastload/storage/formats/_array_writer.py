"""Writers of array formats: images of one size, in one store or in shards that each are one.

An HDF5, .pth, N5 or Zarr store whose writer was killed is started again, because these formats
describe their data at the end. Until ``commit`` everything lies in ``NAME.partial``, which no
reader opens (``_partial.py``); the next writer empties it.

A shard of .h5 or .pth files is a whole store, written by the format's own writer inside the partial
store. The journal lists the finished shards; a shard that a kill interrupted is written anew. The
sidecar is their manifest: it has all columns and makes the set exist (``_sidecar.py``).
"""

from __future__ import annotations

import abc
import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...errors import StoreError, UsageError
from .._columns import Columns, RecordColumns, join, join_columns
from .._crc import crc32c
from .._read import read_records
from .._shards import Sharding, ShardStart, data_files, shard_name
from .._sidecar import is_manifest, read_sidecar, sidecar_of, write_sidecar
from .._sums import Sums, sums_of
from .._writer import PartialWriter, WriterOptions
from ..base import RAW, Batch, Writer
from ..registry import Apart
from ..table import Table, TableStore

if TYPE_CHECKING:
    from typing_extensions import Unpack


class ArrayWriter(PartialWriter):
    """Base of the writers that store images as one array. See ``open_writer`` for the arguments.

    A format implements ``_begin``, called before the first record, when the size of the images is
    known; ``_write``, called with the records in order; and ``_close``, which finishes.
    """

    format: ClassVar[str]
    version: ClassVar[int] = 1
    _resumes: ClassVar[bool] = False
    only_raw: ClassVar[bool] = True  # the format has no place for image files

    def __init__(self, path: str | os.PathLike[str], **options: Unpack[WriterOptions]) -> None:
        self._raw: bool | None = None
        self._sums: dict[str, int] = {}  # checksums of the columns, known when they are written
        self._size: tuple[int, int] | None = None  # of all images, in a store of raw pixels
        begun = {"format": f"fastload-{self.format}", "version": self.version}
        super().__init__(path, begun, **options)

    def _resume(self) -> None:
        self._partial.clear()  # what an interrupted run left

    def _add(self, batch: Batch, columns: Columns) -> None:
        for name in columns.fields:
            _check_name(name)
        raw = bool((batch.kinds == RAW).all())
        size = self._one_size(columns) if raw else None
        if not raw and (self.only_raw or self._raw):
            raise UsageError(
                f"{self.path!r}: expected raw pixels, found image files: pack with encode='raw'"
                + ("" if self.only_raw else ", or image files only")
            )
        if raw and self._raw is False:
            raise UsageError("expected image files only, or raw pixels only, found both")
        with self._writing():
            if self._raw is None:
                self._raw, self._size = raw, size
                self._begin()
            self._write(batch.data)
        self._columns.append(columns)

    def _one_size(self, columns: Columns) -> tuple[int, int]:
        check_one_size(self.path, (self._columns or [columns])[0], columns)
        width, height = columns.sizes[0].tolist()
        nbytes = width * height * 3
        wrong = np.flatnonzero(columns.nbytes != nbytes)
        if len(wrong) or min(width, height) < 1:
            raise UsageError(
                f"expected {width} x {height} x 3 bytes of pixels, found "
                f"{int(columns.nbytes[wrong[0]]) if len(wrong) else 0}"
            )
        return width, height

    def sync(self) -> None:
        """Does nothing: a store of this format is started again after a crash."""

    def header(self, columns: Sequence[str]) -> dict[str, Any]:
        """The store's description, JSON-able; a reader refuses it without these ``columns``."""
        schema = self._schema
        fields = schema.fields if schema is not None else ()
        return {
            "format": f"fastload-{self.format}",
            "version": self.version,
            "metadata": self._metadata,
            "fields": [field.as_json() for field in fields],
            "columns": sorted(columns),
            "crc32c": self._sums,
        }

    def commit(self) -> None:
        columns = join(self._columns, labelled=bool(self._classes))
        self._sums = sums_of(columns, self._classes)
        with self._writing():
            name = self._close(columns)
            finished = TableStore(self._partial.file(name), self.read)  # opened as a reader would
            assert len(finished) == len(columns)
            self._partial.publish([(name, self.path)])
        self._closed = True

    def abort(self, *, keep_partial: bool = True) -> None:
        """Nothing is kept, because nothing could be resumed."""
        super().abort(keep_partial=False)

    @staticmethod
    @abc.abstractmethod
    def read(path: str) -> Table:
        """The table of a finished store."""

    @abc.abstractmethod
    def _begin(self) -> None:
        """Open the output; ``_raw`` and ``_size`` are known."""

    @abc.abstractmethod
    def _write(self, data: Sequence[bytes | memoryview]) -> None:
        """Add the bytes of some records."""

    @abc.abstractmethod
    def _close(self, columns: Columns) -> str:
        """Write ``columns``, sync, and return the name that the store has in the partial."""


def check_one_size(path: str, first: RecordColumns, other: RecordColumns) -> None:
    """Raise UsageError for raw pixels of several sizes, which the store ``path`` cannot hold."""
    for part in (first, other):
        if part.sizes is None or part.kinds is None or (part.kinds != RAW).any():
            return
    assert first.sizes is not None and other.sizes is not None  # as looked at above
    differing = np.flatnonzero((other.sizes != first.sizes[0]).any(axis=1))
    if len(differing):
        found = [f"{w} x {h}" for w, h in (first.sizes[0], other.sizes[differing[0]])]
        raise UsageError(
            f"expected images of one size for the raw pixels of {os.path.basename(path)!r}, found "
            f"{' and '.join(found)} pixels: give resize='224x224', or pack into .lmdb, which holds "
            "any sizes"
        )


def _check_name(name: str) -> None:
    if name.startswith((".", "__")) or len(name.encode()) > 200:
        raise UsageError(
            f"expected a field name that does not start with a dot or two underscores, of at most "
            f"200 bytes, for this format; got {name!r}"
        )


def to_json(header: Mapping[str, Any]) -> bytes:
    """``header`` as JSON in ASCII, so that undecodable file names are escaped."""
    return json.dumps(header, indent=1).encode("ascii")


def array_writer(
    made: type[ArrayWriter],
    path: str | os.PathLike[str],
    *,
    shards: int | None = None,
    shard_nbytes: int | None = None,
    total: int | None = None,
    **options: Any,
) -> Writer:
    """The writer of one file by ``made``, or of shards of such files. See ``open_writer``."""
    path = os.path.abspath(os.fspath(path))
    sharding = Sharding(shards, shard_nbytes, total)
    if sharding.wanted:
        if options.pop("compression", None) is not None:
            raise UsageError("expected shards or a compression, got both: compress single files")
        if os.path.lexists(path):
            raise UsageError(f"{path!r} exists: delete that store or choose another name")
        return ShardedWriter(made, path, sharding, **options)
    if is_manifest(path):
        raise UsageError(f"{sidecar_of(path)!r} exists: delete that store or choose another name")
    return made(path, **options)


def apart(made: type[ArrayWriter]) -> Apart:
    """How shards are written apart: as files of ``made``, which know nothing of each other."""

    def write(path: str, *, shard: ShardStart, **options: Any) -> ArrayWriter:
        return made(path, **options)

    return Apart(writer=write, name=shard_name)


class ShardedWriter(PartialWriter):
    """Writes shards ``NAME-00000-of-00016.SUFFIX`` and their manifest."""

    def __init__(
        self,
        made: type[ArrayWriter],
        path: str,
        sharding: Sharding,
        **options: Unpack[WriterOptions],
    ) -> None:
        self._made, self._sharding = made, sharding
        self._suffix = os.path.splitext(path)[1]
        self._shard: ArrayWriter | None = None
        begun = {"format": f"fastload-shards{self._suffix}", "version": made.version}
        begun |= sharding.settings()
        self._number = 0  # of the shard that the next record goes to, unless it is full
        self._filled = 0  # bytes in it
        super().__init__(path, begun, mark=sidecar_of(path), **options)

    def _resume(self) -> None:
        finished = self._finished()
        done = set(map(self._inner, finished))
        missing = done - set(os.listdir(self._partial.folder))
        if missing:
            path = self._partial.file(min(missing))
            raise self._partial.damaged("a finished shard is missing", path)
        self._partial.clear(done)
        for number, columns in finished.items():
            self._number = number + 1
            path = self._partial.file(self._inner(number))
            try:
                with TableStore(path, self._made.read) as shard:
                    shard.check_columns()
                    everything = np.arange(len(shard), dtype=np.int64)
                    sums = [crc32c(record) for record in read_records(shard, everything)]
            except StoreError as error:
                raise self._partial.damaged(error.message, path) from error
            if sums != columns.crc32c.tolist():
                raise self._partial.damaged(
                    "a finished shard holds other records than the journal", path
                )

    def _inner(self, number: int) -> str:
        return f"shard-{number:05d}{self._suffix}"

    def _add(self, batch: Batch, columns: Columns) -> None:
        check_one_size(self.path, (self._partial.chunks or self._columns or [columns])[0], columns)
        numbers = self._sharding.numbers(
            len(self), columns.nbytes, number=self._number, filled=self._filled
        )
        for number in sorted(set(numbers.tolist())):
            if self._shard is None or number != self._number:
                self._finish_shard()
                self._begin_shard(number)
            assert self._shard is not None  # begun
            start, stop = np.searchsorted(numbers, [number, number + 1]).tolist()
            self._shard.extend(_part(batch, start, stop))
            places = np.zeros((stop - start, 5), np.int64)
            places[:, 0] = number
            added = dataclasses.replace(columns.part(start, stop), places=places)
            self._columns.append(added)
            self._filled += int(added.nbytes.sum())

    def _begin_shard(self, number: int) -> None:
        self._number, self._filled = number, 0
        path = self._partial.file(self._inner(number))
        self._shard = self._made(path, classes=self._classes, metadata=self._metadata)

    def _finish_shard(self) -> None:
        if self._shard is None:
            return
        self._shard.commit()  # if that fails, ``abort`` releases it
        self._shard = None
        if self._columns:
            with self._writing():
                self._partial.add(join(self._columns))
            self._columns.clear()

    def sync(self) -> None:
        """Does nothing: finished shards are durable, an interrupted one is written anew."""

    def commit(self) -> None:
        self._finish_shard()
        filled = self._finished()
        count = self._sharding.shards or max(filled, default=0) + 1
        with self._writing():
            for number in sorted(set(range(count)) - filled.keys()):
                self._begin_shard(number)  # without a record
                self._finish_shard()
            paths = [self._partial.file(self._inner(number)) for number in range(count)]
            # Opened as a reader would, before the set gets its name.
            table = joined([self._made.read(path).checked() for path in paths]).checked()
            assert len(table) == len(self)  # ``_resume`` has compared those of an earlier run
            names = [shard_name(self.path, number, count) for number in range(count)]
            write_sidecar(self._partial.file("sidecar"), table, names)
            folder = os.path.dirname(self.path)
            renames = [
                (self._inner(number), os.path.join(folder, name))
                for number, name in enumerate(names)
            ]
            self._partial.publish([*renames, ("sidecar", sidecar_of(self.path))])
        self._closed = True

    def _finished(self) -> dict[int, Columns]:
        """The shards that the journal lists, each as a chunk, by number."""
        return {
            number: chunk
            for chunk in self._partial.chunks
            if chunk.places is not None
            for number in chunk.places[:1, 0].tolist()
        }

    def abort(self, *, keep_partial: bool = True) -> None:
        super().abort(keep_partial=keep_partial and bool(self._partial.chunks))

    def _release(self) -> None:
        shard, self._shard = self._shard, None
        if shard is not None:
            shard.abort()


def _part(batch: Batch, start: int, stop: int) -> Batch:
    return Batch(
        data=batch.data[start:stop],
        keys=batch.keys[start:stop],
        labels=None if batch.labels is None else batch.labels[start:stop],
        sizes=batch.sizes[start:stop],
        kinds=batch.kinds[start:stop],
        crc32c=batch.crc32c[start:stop],
        fields={name: values[start:stop] for name, values in batch.fields.items()},
        field_kinds=batch.field_kinds,
    )


def read_shards(path: str, format: str, read: Callable[[str], Table]) -> Table:
    """The table of the shards that ``path`` stands for: that of the manifest, or all of theirs.

    ``path`` is no file: it is that of a set with a manifest, or a pattern.
    """
    table = read_sidecar(path, format)
    if table is not None:
        return table
    tables = []
    for file in data_files(path):
        shard = read(file)
        if shard.indirect is not None:
            raise StoreError(f"{shard.indirect.why}; or open the files as a list", path=file)
        tables.append(shard.checked())
    return joined(tables)


def joined(tables: Sequence[Table]) -> Table:
    """The checked tables of several files of one format as one; empty ones may lack columns."""
    filled = [table for table in tables if len(table)] or tables[:1]
    first = filled[0]
    for other in filled[1:]:
        mine, theirs = _facts(first), _facts(other)
        if mine != theirs:
            raise StoreError(
                "expected shards with the same classes, labels and fields as the first one, "
                f"{first.files[0]!r}: open these files one by one, or as a list",
                path=other.files[0],
            )
    have_sums = [table.check_columns() for table in filled]  # before they are copied into one
    counts = [len(table.files) for table in tables]
    begins = np.cumsum([0, *counts[:-1]])
    whole = dataclasses.replace(
        first,
        files=[file for table in tables for file in table.files],
        file=np.concatenate(
            [table.file + begin for table, begin in zip(tables, begins.tolist(), strict=True)]
        ).astype(np.int32),
        fingerprints=[each for table in tables for each in table.fingerprints or ()],
        sums=Sums(first.files[0] if first.files else "", {} if all(have_sums) else None),
        watch=None,  # everything was copied
        **join_columns(filled, ("offset", "nbytes", "labels", "sizes", "kinds", "crc32c")),
    )
    for table in tables:
        if table.watch is not None:
            table.watch.check()
    return whole


def _facts(table: Table) -> tuple[object, ...]:
    labels = table.labels
    return (
        list(table.classes),
        None if labels is None else (labels.dtype, labels.shape[1:]),
        {name: column.field for name, column in table.fields.items()},
        [getattr(table, name) is None for name in ("sizes", "kinds", "crc32c")],
    )
