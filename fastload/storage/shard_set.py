"""ShardSet: the shards of one store that several processes write, each apart from the others.

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
import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import StoreError, UsageError
from ._columns import Schema
from ._durable import sync, write_synced
from ._partial import Partial
from ._shards import ShardStart
from ._sidecar import read_sidecar, sidecar_of, write_sidecar
from ._writer import PartialWriter, WriterOptions
from .formats._array_writer import check_one_size, joined
from .registry import Apart, Format, find_by_suffix, known_formats
from .table import Table, TableStore

if TYPE_CHECKING:
    from typing_extensions import Unpack

REPORT = "report.json"

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
    if form is None or form.apart is None:
        able = [suffix for it in known_formats() if it.apart for suffix in it.suffixes]
        kind = "an unknown format" if form is None else f"the format {form.name}"
        raise UsageError(
            f"{path!r}: expected a format whose shards several machines can write "
            f"({', '.join(able)}), got {kind}: choose one of these, or pack on one machine"
        )
    return form


def apart_of(path: str) -> Apart:
    """How the shards of ``path`` are written apart. Raises as ``format_apart`` does."""
    apart = format_apart(path).apart
    assert apart is not None  # checked there
    return apart


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
        return apart_of(self.store).name(self.store, self.number, self.count)

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
        writer = apart_of(self.store).writer(path, shard=self.shard, **options)
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
        tables = [table_of(self._format, shard.path) for shard in made]
        table = whole_table(self._format, self.path, tables)
        folder = os.path.dirname(self.path)
        names = [os.path.basename(shard.path) for shard in made]
        write_sidecar(self._partial.file("sidecar"), table, names)
        renames = []
        for shard in made:
            for path in with_companions(self._format, shard.path):
                inner = os.path.relpath(path, self._partial.folder)
                renames.append((inner, os.path.join(folder, os.path.basename(path))))
        self._partial.publish([*renames, ("sidecar", sidecar_of(self.path))])
        self._open = False
        return table

    def close(self, *, keep: bool = True) -> None:
        """Release it. ``keep`` finished shards for the next run. Does nothing after ``commit``."""
        if not self._open:
            return
        self._open = False
        self._partial.close(remove=not (keep and os.path.isdir(self._partial.file("made"))))


def begun_with(path: str, settings: Mapping[str, object]) -> dict[str, object]:
    """The settings of the unfinished set ``path``."""
    return {"format": format_apart(path).name, "shards written": "apart", **settings}


def with_companions(form: Format, path: str) -> list[str]:
    """The files that hold the records of the shard ``path``: itself, and its companions."""
    stem = os.path.splitext(path)[0]
    return [path, *(companion.format(path=path, stem=stem) for companion in form.companions)]


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
