"""Shards of one store at a URL that several machines write, each apart from the others.

    NAME.partial/settings.json       of the first run; a run that resumes must have equal ones
    NAME.partial/made/00007/         a shard: its files, a table of its records, and what its writer
                                     says about it (report.json)

A writer makes its shard in a folder on its own machine and uploads it, the report last: a shard
without a report does not count. An object appears only when all of it was sent, so a dead process
leaves only whole objects, which the next writer of the shard replaces. In ``commit``, the object
store copies the shards to their names; then the manifest is uploaded, which makes the store exist.
Of each shard, only the table travels through the process that commits.

One process of a machine at a time commits to a URL (``_turn.py``). Folders of killed tasks are
deleted by the next task of the same URL on that machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from ..errors import StoreError, StoreNotFoundError, UsageError
from ..storage._partial import refuse_others
from ..storage._shards import ShardStart
from ..storage._sidecar import read_manifest, sidecar_of, write_sidecar
from ..storage._writer import WriterOptions
from ..storage.remote.options import RemoteOptions
from ..storage.shard_set import (
    REPORT,
    FinishedShard,
    ShardPlace,
    WriteShard,
    begun_with,
    format_apart,
    table_of,
    whole_table,
    with_companions,
)
from ..storage.table import Table
from ._remote import asking, file_system
from ._turn import Turn, scratch

if TYPE_CHECKING:
    import fsspec
    from typing_extensions import Unpack

_SETTINGS = "settings.json"
_TABLE = "table"
_AT_ONCE = 16  # requests of the process that commits

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclasses.dataclass(frozen=True, kw_only=True)
class UrlShardPlace(ShardPlace):
    """Where one shard of a set is uploaded; ``store`` and ``folder`` are URLs.

    ``system`` opens its connections in each process anew.
    """

    system: fsspec.AbstractFileSystem

    def _report(self) -> bytes | None:
        return _content(self.system, f"{self.finished}/{REPORT}")

    def discard(self) -> None:
        """First what says that it is finished."""
        with _asking(self.system, self.finished, "it cannot be deleted"):
            self.system.rm_file(_inside(self.system, f"{self.finished}/{REPORT}"))

    def make(self, write: WriteShard, **options: Unpack[WriterOptions]) -> FinishedShard:
        with scratch(self.store) as folder:
            made = self.write_into(folder, write, **options)
            path = os.path.join(folder, self.name)
            table = table_of(format_apart(self.store), path)
            write_sidecar(os.path.join(folder, _TABLE), table, [self.name])
            others = sorted(set(os.listdir(folder)) - {REPORT})
            for name in [*others, REPORT]:
                _send(self.system, os.path.join(folder, name), f"{self.finished}/{name}")
        return made


class UrlShardSet:
    """The unfinished store at ``path``, a URL, whose shards other machines make.

    Has the methods of ``ShardSet``. ``path`` ends as a format of ``format_apart`` does.
    """

    def __init__(self, path: str, settings: Mapping[str, object], options: RemoteOptions) -> None:
        self.path = path
        self._format = format_apart(path)
        self._folder = f"{path}.partial"
        self._system, _ = file_system(path, options)
        self._system.invalidate_cache()
        self._turn = Turn(path)
        self._open = True
        try:
            self._begin(settings)
        except BaseException:
            self._turn.end()
            raise

    def _begin(self, settings: Mapping[str, object]) -> None:
        """Compare the settings with those of the first run, or write them."""
        path = self.path
        now = json.loads(json.dumps(begun_with(path, settings)))
        there = _content(self._system, f"{self._folder}/{_SETTINGS}")
        for taken in (path, sidecar_of(path)):
            with _asking(self._system, path, "it cannot be written"):
                exists = self._system.exists(self._inside(taken))
            if exists:
                if there == json.dumps(now).encode():  # a run was killed after its last upload
                    self._delete()
                raise UsageError(f"{taken!r} exists: delete it or choose another name")
        if there is None:
            with _asking(self._system, path, "it cannot be written"):
                self._system.pipe_file(
                    self._inside(f"{self._folder}/{_SETTINGS}"), json.dumps(now).encode()
                )
            return
        try:
            first = dict(json.loads(there))
        except (ValueError, TypeError) as error:
            raise StoreError(
                f"the {_SETTINGS} of the unfinished store is damaged: delete the folder "
                f"{self._folder!r} to start again",
                path=f"{self._folder}/{_SETTINGS}",
            ) from error
        refuse_others(self._folder, first, now)

    def place(self, number: int, count: int, shard: ShardStart) -> ShardPlace:
        return UrlShardPlace(
            store=self.path,
            folder=f"{self._folder}/made",
            number=number,
            count=count,
            shard=shard,
            system=self._system,
        )

    def commit(self, made: Sequence[FinishedShard]) -> Table:
        """If it is interrupted, the next run copies the shards again."""
        above = os.path.dirname(self.path)
        copies = [
            (one, f"{above}/{os.path.basename(one)}")
            for shard in made
            for one in with_companions(self._format, shard.path)
        ]
        with scratch(self.path) as folder:
            tables = _each(functools.partial(self._table, folder), enumerate(made))
            table = whole_table(self._format, self.path, tables)
            manifest = os.path.join(folder, "manifest")
            names = [os.path.basename(one.path) for one in made]
            write_sidecar(manifest, table, names)
            self._system.invalidate_cache()
            _each(self._refuse_other, copies)
            _each(self._copy, copies)
            _send(self._system, manifest, sidecar_of(self.path))
        self._open = False
        try:
            self._delete()
        finally:
            self._turn.end()
        return table

    def _table(self, folder: str, numbered: tuple[int, FinishedShard]) -> Table:
        """The table of a shard, fetched into ``folder``."""
        number, made = numbered
        place = os.path.join(folder, f"{number}.table")
        _fetch(self._system, f"{os.path.dirname(made.path)}/{_TABLE}", place)
        return read_manifest(made.path, self._format.name, place=place).checked()

    def _refuse_other(self, pair: tuple[str, str]) -> None:
        """Raise UsageError if there is another object where one is to be copied: (URL, URL).

        One of the same size is taken for a copy that an interrupted run has made.
        """
        begin, end = pair
        with _asking(self._system, end, "it cannot be asked for"):
            try:
                size = self._system.info(self._inside(end))["size"]
            except FileNotFoundError:
                return
            same = size == self._system.info(self._inside(begin))["size"]
        if not same:
            raise UsageError(f"{end!r} exists: delete it or choose another name")

    def _copy(self, pair: tuple[str, str]) -> None:
        """Have the object store copy an object: (URL, URL)."""
        begin, end = pair
        with _asking(self._system, end, "the finished shard cannot be copied here"):
            self._system.cp_file(self._inside(begin), self._inside(end))

    def _delete(self) -> None:
        with _asking(
            self._system, self._folder, "it is not needed any more, and cannot be deleted"
        ):
            self._system.invalidate_cache()
            self._system.rm(self._inside(self._folder), recursive=True)

    def _inside(self, url: str) -> str:
        return _inside(self._system, url)

    def close(self, *, keep: bool = True) -> None:
        if not self._open:
            return
        self._open = False
        try:
            self._system.invalidate_cache()
            with _asking(self._system, self._folder, "it cannot be listed"):
                there = self._system.find(self._inside(self._folder))
            if there and not (keep and any("/made/" in path for path in there)):
                self._delete()
        finally:
            self._turn.end()


def finished(path: str, options: RemoteOptions) -> Table | None:
    """The table of the store at ``path``, a URL, if it is a set of shards that is complete."""
    system, _ = file_system(path, options)
    with scratch(path) as folder:
        place = os.path.join(folder, "manifest")
        try:
            _fetch(system, sidecar_of(path), place)
        except StoreNotFoundError:
            return None
        return read_manifest(path, format_apart(path).name, place=place)


def _asking(
    system: fsspec.AbstractFileSystem, url: str, what: str
) -> contextlib.AbstractContextManager[None]:
    return asking(url, what, RemoteOptions(storage_options=system.storage_options))


def _inside(system: fsspec.AbstractFileSystem, url: str) -> str:
    return str(system._strip_protocol(url))


def _content(system: fsspec.AbstractFileSystem, url: str) -> bytes | None:
    """What an object holds; None: there is none."""
    with _asking(system, url, "it cannot be read"):
        try:
            content: bytes = system.cat_file(_inside(system, url))
        except FileNotFoundError:
            return None
    return content


def _fetch(system: fsspec.AbstractFileSystem, url: str, place: str) -> None:
    """Fetch an object into the file ``place``. Raises StoreNotFoundError: there is none."""
    with _asking(system, url, "it cannot be fetched"):
        try:
            system.get_file(_inside(system, url), place)
        except FileNotFoundError as error:
            raise StoreNotFoundError("expected an object, found none", path=url) from error


def _send(system: fsspec.AbstractFileSystem, place: str, url: str) -> None:
    with _asking(system, url, "it cannot be written"):
        system.put_file(place, _inside(system, url))


def _each(call: Callable[[_T], _R], values: Iterable[_T]) -> list[_R]:
    """What ``call`` returns for each of ``values``, several at a time."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(call, values))
