"""Sources and destinations that are URLs, such as ``s3://bucket/imgs.lmdb``.

A source is fetched while it is packed, and what an interrupted run has packed is not fetched again.
A store is written into a folder below the system's temporary folder, where an interrupted run is
resumed, and uploaded through fsspec when it is complete; the file that makes it exist is uploaded
last. An upload that was interrupted is resumed too, at the first file that is not there yet.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import (
    DataError,
    FastloadError,
    StoreError,
    StoreNotFoundError,
    UsageError,
    install,
    needed,
    type_next,
)
from ..storage import find_by_suffix, open_store
from ..storage._durable import remove
from ..storage._not_store import LISTS, is_packable
from ..storage._sidecar import SUFFIX as SIDECAR
from ..storage._sidecar import is_manifest
from ..storage.folder import is_image
from ..storage.remote.options import RemoteOptions
from ..storage.remote.service import OBSTORE, what_to_check
from ..storage.remote.store import RemoteStore
from ..storage.remote.urls import RemoteUrl, redacted
from . import _split
from ._gather import Files
from ._labels import Chosen
from ._list_source import listed_files
from ._open import open_source
from ._report import PackReport
from ._source import PackSource
from ._store_source import FolderSource
from ._turn import Turn, scratch

if TYPE_CHECKING:
    import fsspec

_JOURNAL = "uploaded"  # name, size and mtime of uploaded files, as JSON, one on each line
_METADATA = ("zarr.json", ".zgroup", ".zattrs", "attributes.json")  # at the top of a folder
_TAGS = ("ETag", "etag", "mtime", "created")  # by which file systems tell versions apart


@contextlib.contextmanager
def asking(url: str, what: str, options: RemoteOptions) -> Iterator[None]:
    """Turn errors of a file system, which may have any type, into a StoreError.

    Its message begins with ``what``, and does not show the secrets in ``options``.
    """
    try:
        yield
    except FastloadError:
        raise
    except Exception as error:  # noqa: BLE001 - libraries raise anything
        asked = RemoteUrl(url)
        said = redacted(str(error), asked, options.secrets())
        raise StoreError(
            f"{what}: {type(error).__name__}: {said}; {what_to_check(asked)}",
            path=url,
        ) from None  # a traceback would show the secrets in it


def file_system(url: str, options: RemoteOptions) -> tuple[fsspec.AbstractFileSystem, str]:
    needed("fsspec", f"URLs need fsspec: {install('remote')}")
    from ..storage.remote import fsspec_service

    system, path = fsspec_service.file_system(RemoteUrl(url), options.storage_options or {})
    return system, path.rstrip("/")


@contextlib.contextmanager
def fetched(url: str, chosen: Chosen, options: RemoteOptions) -> Iterator[PackSource]:
    """The source at ``url`` while the block lasts: a packed store, a folder of images, or a list.

    A store is read through the block cache (``storage/remote``), fetched ahead. The images of a
    folder or a list are fetched a chunk at a time. Anything else is fetched whole first.
    """
    if chosen.masks is not None or chosen.annotations is not None:
        raise UsageError(
            f"masks, annotations: expected a folder of this machine with them, got {url!r}: fetch "
            "it, or pack a list (CSV) there that names masks in a column (file_columns)"
        )
    if _is_store(url):
        with open_store(url, remote=options) as store:
            source = open_source(store, chosen)
            if isinstance(store, RemoteStore):
                source.identity = _identity(store.versions)
            yield source
        return
    system, path = file_system(url, options)
    with scratch(url) as folder, _named(folder, os.path.dirname(url)):
        with asking(url, "it cannot be fetched", options):
            local, files = _files(url, system, path, folder, chosen)
            source = _source(url, system, local, files, chosen, options)
        source.path = url
        yield source


@contextlib.contextmanager
def _named(folder: str, url: str) -> Iterator[None]:
    """Errors name what is below ``url`` rather than its place in ``folder``."""
    try:
        yield
    except DataError as error:
        if error.path is None or not error.path.startswith(folder):
            raise
        message = error.message.split(type_next(""))[0].replace(folder, url)  # nothing is here
        shown = error.path.replace(folder, url)
        renamed = type(error)(message, path=shown, record=error.record, offset=error.offset)
        raise renamed.with_traceback(error.__traceback__) from error.__cause__


def _is_store(url: str) -> bool:
    """Whether the name at the end of ``url`` is that of a packed store."""
    format_ = find_by_suffix(RemoteUrl(url).name)
    return format_ is not None and format_.name not in ("folder", "arrow")


def _identity(versions: Sequence[tuple[str, int, str]]) -> str:
    """A hash of name, size and tag of every file."""
    return hashlib.blake2b(repr(list(versions)).encode(), digest_size=16).hexdigest()


@dataclasses.dataclass(frozen=True)
class _File:
    """A remote file: its path there, where it would be here, and what says which one it is."""

    path: str
    place: str
    nbytes: int
    tag: str


def _files(
    url: str, system: fsspec.AbstractFileSystem, path: str, folder: str, chosen: Chosen
) -> tuple[str, list[_File]]:
    """Where ``path`` would be in ``folder``, and its files. A list is fetched, to know them."""
    parent, name = os.path.split(path)
    local = os.path.join(folder, name)
    infos: dict[str, Any] = {}
    if system.isdir(path):
        infos = dict(system.find(path, detail=True))
    elif system.isfile(path):
        if not is_packable(path):
            raise StoreError(
                "expected a packed store, a folder of images or a list (.csv ...), found another "
                "file: fetch it; `fastload pack FILE imgs.lmdb` then says how to read it",
                path=url,
            )
        infos = {path: system.info(path)}
        if path.endswith(LISTS):
            system.get_file(path, local)
            names = dict.fromkeys(listed_files(local, chosen))
            infos |= {f"{parent}/{file}": system.info(f"{parent}/{file}") for file in names}
    if not infos:
        raise StoreNotFoundError("expected a store, a folder or a list, found nothing", path=url)
    files = []
    for file, info in infos.items():
        inside = os.path.normpath(os.path.relpath(file, parent))
        if inside.startswith(".."):
            raise StoreError("expected files below the list's folder", path=file)
        tags = [str(info[key]) for key in _TAGS if key in info]
        files.append(
            _File(file, os.path.join(folder, inside), int(info["size"]), "".join(tags[:1]))
        )
    return local, files


def _source(
    url: str,
    system: fsspec.AbstractFileSystem,
    local: str,
    files: list[_File],
    chosen: Chosen,
    options: RemoteOptions,
) -> PackSource:
    listed = os.path.isfile(local)
    wanted = files[1:] if listed else files  # the list itself is there
    here = set()
    for file in wanted:
        os.makedirs(os.path.dirname(file.place), exist_ok=True)
        if listed or is_image(file.path):
            open(file.place, "wb").close()  # only its name counts
        else:
            system.get_file(file.path, file.place)
            here.add(file.place)
    source = open_source(local, chosen)
    if isinstance(source, FolderSource):
        paths = {file.place: file.path for file in wanted}
        source.files = RemoteFiles(url, system, paths, here, options)
        source.left_out = [
            dataclasses.replace(one, example=source.files.shown(one.example))
            for one in source.left_out
        ]
    source.identity = _identity([(one.path, one.nbytes, one.tag) for one in files])
    return source


class RemoteFiles(Files):
    """Image files at a URL, each of which is fetched when it is read.

    ``paths``: path in ``system`` by the place of an empty file on this machine. ``here``: places of
    those that were fetched to open the source.
    """

    remote = True

    def __init__(
        self,
        url: str,
        system: fsspec.AbstractFileSystem,
        paths: Mapping[str, str],
        here: set[str],
        options: RemoteOptions,
    ) -> None:
        self._url, self._system, self._options = url, system, options
        self._paths, self._here = paths, here

    def read(self, paths: Sequence[str]) -> Iterator[bytes | StoreError]:
        """As in ``Files``; all at once."""
        if self._here.issuperset(paths):
            yield from super().read(paths)
            return
        wanted = list(map(self.shown, paths))
        with asking(self._url, "it cannot be fetched", self._options):
            answers = self._system.cat_ranges(wanted, None, None, on_error="return")
        for path, data in zip(wanted, answers, strict=True):
            if isinstance(data, BaseException):
                said = redacted(str(data), RemoteUrl(path), self._options.secrets())
                yield StoreError(
                    f"the file cannot be fetched: {type(data).__name__}: {said}", path=path
                )
            else:
                yield data

    def shown(self, path: str) -> str:
        return self._paths.get(path, path)


def pack_to(
    url: str, split: str | None, run: Callable[[str], PackReport], options: RemoteOptions
) -> PackReport:
    """Call ``run`` with a local path, and upload the stores that it writes there to ``url``."""
    RemoteUrl(url).refuse_query()
    system, path = file_system(url, options)
    parts = list(zip(_split.paths(url, split), _split.paths(path, split), strict=True))
    with contextlib.ExitStack() as ends:
        turns = {}
        for part_url, _ in sorted(parts):  # of two processes, one gets the first that both want
            turns[part_url] = Turn(part_url)
            ends.callback(turns[part_url].end)
        report = _pack_and_upload(url, parts, run, options, system, path, turns[url].folder)
    remote = os.path.dirname(RemoteUrl(url).shown)
    named = [
        dataclasses.replace(part, path=f"{remote}/{os.path.basename(part.path)}")
        for part in report.parts
    ]
    return dataclasses.replace(report, parts=tuple(named))


def _pack_and_upload(
    url: str,
    parts: Sequence[tuple[str, str]],
    run: Callable[[str], PackReport],
    options: RemoteOptions,
    system: fsspec.AbstractFileSystem,
    path: str,
    folder: str,
) -> PackReport:
    uploaded = _uploaded(folder)
    if uploaded is None:
        _refuse_existing(parts, system, options)
    staged = os.path.join(folder, os.path.basename(path))
    try:
        report = run(staged)
    except UsageError as error:
        if not (os.path.lexists(staged) or is_manifest(staged)):
            raise
        also = f", and {url!r}" if uploaded else ""
        raise UsageError(
            f"{url!r}: an earlier run, with other settings or files that differ from these, packed "
            f"a store whose upload did not finish: use the same to resume, or delete {folder!r}"
            f"{also} to start again"
        ) from error
    if uploaded is None:  # another machine may have packed to it meanwhile
        _refuse_existing(parts, system, options)
    parent = os.path.dirname(path)
    with asking(url, f"the finished store lies in {folder!r} and cannot be uploaded", options):
        with open(os.path.join(folder, _JOURNAL), "a", encoding="utf-8") as journal:
            for name in in_order(folder):
                entry = _entry(folder, name)
                if entry in (uploaded or ()):
                    continue
                if RemoteUrl(url).scheme not in OBSTORE:  # no folders there; s3fs makes buckets
                    system.makedirs(os.path.dirname(f"{parent}/{name}"), exist_ok=True)
                system.put_file(os.path.join(folder, name), f"{parent}/{name}")
                journal.write(json.dumps(entry) + "\n")
                journal.flush()
    os.unlink(os.path.join(folder, _JOURNAL))  # first: it says that the store is not all there
    for name in os.listdir(folder):
        remove(os.path.join(folder, name))
    return report


def _refuse_existing(
    parts: Sequence[tuple[str, str]], system: fsspec.AbstractFileSystem, options: RemoteOptions
) -> None:
    """Raise UsageError if something is at one of ``parts``: (URL, path in ``system``).

    StoreNotFoundError if its bucket is not there.
    """
    for url, path in parts:
        with asking(url, "it cannot be written", options):
            system.invalidate_cache()
            if RemoteUrl(url).scheme in ("s3", "s3a"):
                _refuse_missing_bucket(url, system, system.split_path(path)[0])
            exists = system.exists(path) or system.exists(path + SIDECAR)
        if exists:  # also what is left of an upload that another machine began
            raise UsageError(f"{url!r} exists: delete it or choose another name")


def _refuse_missing_bucket(url: str, system: fsspec.AbstractFileSystem, bucket: str) -> None:
    """Not at the end of a long run. To upload may be all that the user may do in a bucket."""
    if system.exists(bucket):
        return
    try:
        system.ls(bucket)  # says whether it is missing, or may not be looked at
    except FileNotFoundError:
        raise StoreNotFoundError(
            f"expected an existing bucket, found no {bucket!r}: create it, or correct the URL",
            path=url,
        ) from None
    except PermissionError:
        pass


def _entry(folder: str, name: str) -> list[Any]:
    """A file of a finished store in the journal: another store may get the same names later."""
    status = os.stat(os.path.join(folder, name))
    return [name, status.st_size, status.st_mtime_ns]


def _uploaded(folder: str) -> list[Any] | None:
    """The entries of what an interrupted upload has uploaded; None: there was none."""
    try:
        with open(os.path.join(folder, _JOURNAL), encoding="utf-8") as journal:
            lines = journal.read().splitlines()
    except FileNotFoundError:
        return None
    return [json.loads(line) for line in lines if line.endswith("]")]


def in_order(folder: str) -> list[str]:
    """The files of the finished stores below ``folder``, what makes a store exist last.

    That is the manifest of shards, the metadata of a folder, and a single file that has a sidecar.
    """
    paths = [
        os.path.relpath(os.path.join(root, name), folder)
        for root, _, names in os.walk(folder)
        for name in names
        if name != _JOURNAL
    ]
    # A run may have been killed between the last rename of a store and the end of its partial.
    paths = [name for name in paths if not name.split(os.sep)[0].endswith(".partial")]

    def turn(name: str) -> int:
        if name.count("/") == 1 and os.path.basename(name) in _METADATA:
            return 3
        if not name.endswith(SIDECAR):
            return 2 if os.path.lexists(os.path.join(folder, name + SIDECAR)) else 1
        return 0 if os.path.lexists(os.path.join(folder, name[: -len(SIDECAR)])) else 2

    return sorted(paths, key=lambda name: (turn(name), name))
