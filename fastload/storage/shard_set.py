"""The shards of one store, each written apart from the others by the format's writer of one file.

ShardedWriter writes them one after the other. ShardSet is of those that several processes write:

    NAME.partial/lock, settings.json     as of every unfinished store (``_partial.py``)
    NAME.partial/work/...                shards that are being written
    NAME.partial/made/00007/             a finished shard: a store of one file, and what its writer
                                         says about it (report.json)

A writer works in a folder of its own below ``work`` and renames it when its shard is complete. So a
process that dies leaves nothing that looks finished, and if two write the same shard, the second
one finds the folder there and drops its own. ``commit`` makes one manifest of the sidecars, or of
the columns, of all shards, and renames the files. (``converters/_url_shards.py`` does the same for
a store at a URL.)
"""

from __future__ import annotations

import dataclasses
import errno
import itertools
import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..errors import StoreError, UsageError
from ._columns import Columns, Schema, join
from ._durable import sync, write_synced
from ._partial import Partial
from ._shards import Sharding, ShardStart
from ._sidecar import read_manifest, read_sidecar, sidecar_of, write_sidecar
from ._writer import FileWriter, PartialWriter, WriterOptions
from .base import Batch
from .formats._array_shards import joined
from .formats._array_writer import check_one_size
from .registry import Format, find_by_suffix, known_formats
from .table import Table, TableStore, fingerprint

if TYPE_CHECKING:
    from typing_extensions import Unpack

REPORT = "report.json"
_VERSION = 3  # of unfinished work of a ShardedWriter

WriteShard: TypeAlias = Callable[[PartialWriter], Mapping[str, Any]]
"""Adds the records of a shard to a writer, and returns what is noted in its report."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinishedShard:
    """A finished shard.

    Attributes:
        begun_ns: when it was begun, in nanoseconds since 1970, by the clock of its file system.
        noted: what the process that made it says about it, JSON-able.
    """

    path: str
    records: int
    nbytes: int
    begun_ns: int
    noted: Mapping[str, Any]


def format_apart(path: str) -> Format:
    """The format of ``path``, whose shards can be written apart."""
    form = find_by_suffix(path)
    if form is None or "shards" not in form.options:
        able = [
            suffix for it in known_formats() if "shards" in it.options for suffix in it.suffixes
        ]
        kind = "an unknown format" if form is None else f"the format {form.name}"
        raise UsageError(
            f"{path!r}: expected a format whose shards several machines can write "
            f"({', '.join(able)}), got {kind}: choose one of these, or pack on one machine"
        )
    return form


def writer_of(form: Format) -> type[FileWriter]:
    """What writes a shard of a store of a format with shards."""
    writer = form.writer
    if not (isinstance(writer, type) and issubclass(writer, FileWriter)):
        raise UsageError(
            f"format {form.name!r}: expected a FileWriter as the writer of stores with shards, got "
            f"{writer!r}"
        )
    return writer


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardPlace:
    """Where shard ``number`` of ``count`` is made. Sent to the process that makes it.

    ``store`` is the path of the whole store, ``folder`` that of the finished shards.
    """

    store: str
    folder: str
    number: int
    count: int
    shard: ShardStart

    @property
    def name(self) -> str:
        writer = writer_of(format_apart(self.store))
        return writer.shard_name(self.store, self.number, self.count)

    @property
    def finished(self) -> str:
        return os.path.join(self.folder, f"{self.number:05d}")

    def found(self) -> FinishedShard | None:
        report = self._report()
        if report is None:
            return None
        try:
            return FinishedShard(path=os.path.join(self.finished, self.name), **json.loads(report))
        except (ValueError, TypeError) as error:
            raise StoreError(
                f"the report of a finished shard is damaged ({error}): delete the folder "
                f"{os.path.dirname(self.folder)!r} to start again",
                path=os.path.join(self.finished, REPORT),
            ) from error

    def _report(self) -> bytes | None:
        """What says that the shard is finished; None: nothing does."""
        try:
            with open(os.path.join(self.finished, REPORT), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def discard(self) -> None:
        shutil.rmtree(self.finished)

    def make(self, write: WriteShard, **options: Unpack[WriterOptions]) -> FinishedShard:
        """Write the shard, by a writer with ``options``: whole or not at all."""
        work = os.path.join(
            os.path.dirname(self.folder), "work", f"{self.number:05d}-{uuid.uuid4().hex}"
        )
        try:
            os.makedirs(work)
        except OSError as error:
            raise StoreError(
                f"the folder cannot be written here ({error.strerror}): the destination must lie "
                "on a file system that all machines share, under the same path",
                path=work,
            ) from error
        try:
            made = self.write_into(work, write, **options)
            sync(work)
            os.makedirs(self.folder, exist_ok=True)
            try:
                os.rename(work, self.finished)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
                made = self.found() or made  # another was faster
            sync(self.folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return made

    def write_into(
        self, folder: str, write: WriteShard, **options: Unpack[WriterOptions]
    ) -> FinishedShard:
        """Write the shard, and what is said about it, into an empty folder of this machine."""
        begun_ns = os.stat(folder).st_mtime_ns
        path = os.path.join(folder, self.name)
        writer = writer_of(format_apart(self.store))(path, shard=self.shard, **options)
        with writer:
            noted = write(writer)
            about: dict[str, Any] = {
                "records": len(writer),
                "nbytes": writer.nbytes,
                "begun_ns": begun_ns,
                "noted": noted,
            }
        write_synced(os.path.join(folder, REPORT), json.dumps(about).encode())
        return FinishedShard(path=os.path.join(self.finished, self.name), **about)


class ShardSet:
    """The unfinished store ``path``, whose shards other processes make.

    Equal ``settings`` (JSON-able) make the finished shards of an earlier run usable.
    """

    def __init__(self, path: str, settings: Mapping[str, object]) -> None:
        self.path = path
        self._format = format_apart(path)
        if os.path.lexists(path):
            raise UsageError(f"{path!r} exists: delete that store or choose another name")
        self._partial = Partial(path, begun_with(path, settings), mark=sidecar_of(path))
        shutil.rmtree(self._partial.file("work"), ignore_errors=True)  # of processes that died
        self._open = True

    def place(self, number: int, count: int, shard: ShardStart) -> ShardPlace:
        return ShardPlace(
            store=self.path,
            folder=self._partial.file("made"),
            number=number,
            count=count,
            shard=shard,
        )

    def commit(self, made: Sequence[FinishedShard]) -> Table:
        """Write the manifest, and give all shards, in order, their names; the store's table."""
        shards = [(shard.path, os.path.basename(shard.path)) for shard in made]
        table = _publish(self._partial, self._format, shards)
        self._open = False
        return table

    def close(self, *, keep: bool = True) -> None:
        """Release it. ``keep`` finished shards for the next run. Does nothing after ``commit``."""
        if not self._open:
            return
        self._open = False
        self._partial.close(remove=not (keep and os.path.isdir(self._partial.file("made"))))


class ShardedWriter(PartialWriter):
    """Writes a store in shards, one after the other.

    The journal lists the finished shards, a chunk each. A shard is listed before it gets its name,
    so a run that is killed in between finds all of its records in its own unfinished work.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        form: Format,
        sharding: Sharding,
        **options: Unpack[WriterOptions],
    ) -> None:
        self._form, self._sharding = form, sharding
        self._number = 0  # of the shard that is being written
        self._file: FileWriter | None = None  # writes it
        path = os.path.abspath(os.fspath(path))
        if os.path.lexists(path):
            raise UsageError(f"{path!r} exists: delete that store or choose another name")
        begun = {"format": form.name, "version": _VERSION, **sharding.settings()}
        super().__init__(path, begun, mark=sidecar_of(path), **options)

    @property
    def _parts(self) -> list[Columns]:
        return [*self._partial.chunks, *([] if self._file is None else self._file._parts)]

    def _place(self, number: int) -> str:
        suffix = os.path.splitext(self.path)[1]
        return self._partial.file(f"shard-{number:05d}{suffix}")

    def _listed(self) -> list[tuple[int, int, Columns]]:
        """The shards that the journal lists: number, index of the first record, columns."""
        chunks = self._partial.chunks
        firsts = itertools.accumulate(map(len, chunks), initial=0)
        return [
            (self._sharding.shard_of(first, at), first, chunk)
            for at, (first, chunk) in enumerate(zip(firsts, chunks))
        ]

    def _resume(self) -> None:
        listed, kept = self._listed(), list[str]()
        done = sum(map(len, self._partial.chunks))
        begun = self._sharding.shard_of(done, len(listed)), done
        for number, first, chunk in listed:
            path = self._place(number)
            kept += [*self._form.with_companions(path), sidecar_of(path)]
            if os.path.exists(path):
                self._check(path, chunk, first)
            elif chunk is listed[-1][2] and os.path.isdir(f"{path}.partial"):
                begun = number, first  # killed before it got its name
            else:
                raise self._partial.damaged("a finished shard is missing", path)
        kept.append(f"{self._place(begun[0])}.partial")
        self._partial.clear({os.path.basename(path) for path in kept})
        if os.path.isdir(kept[-1]):
            file = self._begin(*begun)
            if begun[1] < done and len(file) == done - begun[1]:
                with file:
                    self._file = None  # it is committed
            else:  # its format does not resume, or it was not listed
                self._partial.keep(begun[1])

    def _check(self, path: str, columns: Columns, first: int) -> None:
        """Raise StoreError unless a finished shard is as it was written."""
        try:
            writer_of(self._form).check(path, columns, first)
            if os.path.exists(sidecar_of(path)):  # it says what follows the records
                table = read_manifest(path, self._form.name, place=sidecar_of(path))
                if list(table.fingerprints or ()) != [fingerprint(path)]:
                    raise StoreError("a finished shard has changed", path=path)
        except StoreError as error:
            raise self._partial.damaged(
                error.message, error.path, record=error.record, offset=error.offset
            ) from error

    def _begin(self, number: int, first: int) -> FileWriter:
        """Write the shard ``number``, whose first record has the index ``first``."""
        (key,) = self._partial.chunks[0].keys.texts(np.zeros(1, np.int64)) if first else (None,)
        self._number = number
        self._file = writer_of(self._form)(
            self._place(number),
            shard=ShardStart(first=first, first_key=key),
            classes=self._classes,
            metadata=self._metadata,
        )
        return self._file

    def _admitted(self, batch: Batch) -> Columns:
        columns = super()._admitted(batch)
        if self._form.pixels != "any":
            check_one_size(self.path, (self._parts or [columns])[0], columns)
        return columns

    def _add(self, batch: Batch, columns: Columns) -> None:
        at = 0
        while at < len(batch.keys):
            at += self._fill(batch.part(at, len(batch.keys)) if at else batch)

    def _fill(self, batch: Batch) -> int:
        """Add the first records of ``batch`` to the shard that has room for them; how many."""
        file = self._file
        if file is None:
            number = self._sharding.shard_of(len(self), len(self._partial.chunks))
            file = self._begin(number, len(self))
        end = self._sharding.end_of(self._number)
        room = len(batch.keys) if end is None else end - len(self)
        added = file.fill(batch.part(0, room), self._sharding.shard_nbytes) if room else 0
        if added < len(batch.keys) or len(self) == end:
            self._finish(file)
        return added

    def _finish(self, file: FileWriter) -> None:
        done = sum(map(len, self._partial.chunks))
        with self._writing():
            self._partial.add(join(file._parts))
        try:
            file.commit()
        finally:
            if os.path.exists(file.path):
                self._file = None
            else:
                self._partial.keep(done)

    def sync(self) -> None:
        if self._file is not None:
            self._file.sync()

    def commit(self) -> None:
        """Finish the shards, write the manifest, and give all their names."""
        if self._file is not None:
            self._finish(self._file)
        filled = {number for number, _, _ in self._listed()}
        count = self._sharding.shards or max(filled, default=0) + 1
        for number in sorted(set(range(count)) - filled):  # without a record
            self._begin(number, len(self)).commit()
            self._file = None
        name = writer_of(self._form).shard_name
        with self._writing():
            shards = [(self._place(each), name(self.path, each, count)) for each in range(count)]
            _publish(self._partial, self._form, shards)
        self._closed = True

    def abort(self, *, keep_partial: bool = True) -> None:
        """What is left is kept if there is anything to resume."""
        if self._closed:
            return
        try:
            if self._file is not None:
                self._file.abort(keep_partial=keep_partial)
        finally:
            left = os.path.isdir(f"{self._place(self._number)}.partial")
            super().abort(keep_partial=keep_partial and (left or bool(self._partial.chunks)))


def _publish(partial: Partial, form: Format, shards: Sequence[tuple[str, str]]) -> Table:
    """Write the manifest, and give shards their names: (file in the partial, name); their table."""
    table = whole_table(form, partial.path, [table_of(form, path) for path, _ in shards])
    write_sidecar(partial.file("sidecar"), table, [name for _, name in shards])
    folder = os.path.dirname(partial.path)
    renames = [
        (os.path.relpath(inner, partial.folder), outer)
        for path, name in shards
        for inner, outer in zip(
            form.with_companions(path), form.with_companions(os.path.join(folder, name))
        )
    ]
    partial.publish([*renames, ("sidecar", sidecar_of(partial.path))])
    return table


def begun_with(path: str, settings: Mapping[str, object]) -> dict[str, object]:
    """The settings of the unfinished set ``path``."""
    return {"format": format_apart(path).name, "shards written": "apart", **settings}


def table_of(form: Format, path: str) -> Table:
    """The table of the shard ``path``, from its sidecar or from the file itself."""
    table = read_sidecar(path, form.name)
    if table is not None:
        return table.checked()
    store = form.open(path)
    assert isinstance(store, TableStore)  # formats with ``apart`` have tables
    return store.table


def whole_table(form: Format, path: str, tables: Sequence[Table]) -> Table:
    """The table of the store ``path``, of the tables of its shards in order."""
    filled = [table for table in tables if len(table)]
    schemas = [Schema.of(table.labels, table.fields) for table in filled]
    for table, schema in zip(filled[1:], schemas[1:]):
        schemas[0].admit(schema)
        if form.pixels != "any":
            check_one_size(path, filled[0], table)
    return joined(tables).checked()
