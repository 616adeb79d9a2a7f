"""``concat`` and ``append``: stores out of stores."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .._base.progress_bar import Progress
from ..errors import StoreError, UsageError
from ..storage import Store, format_of, open_store
from ..storage._local import local_path
from ..storage._partial import sync_folder
from ..storage._sidecar import SUFFIX, next_sidecar_of, read_sidecar, sidecar_of, write_sidecar
from ..storage._writer import KEPT
from ..storage.concat import ConcatStore
from ._pack import pack
from ._report import PackReport
from ._store_source import StoreSource

_MARK = "-appending"  # in the name of the new store until it replaces the old one


def concat(
    sources: Sequence[str | os.PathLike[str]],
    destination: str | os.PathLike[str],
    *,
    progress: Progress | bool | None = None,
    **options: Any,
) -> PackReport:
    """Copy the records of several stores, one after the other, into a new store.

    Records are compared with their checksums and stay as they are. (To read several stores as one
    nothing need be copied: ``FastLoader(["a.lmdb", "b.lmdb"])``.)

    Example:
        >>> concat(["a.lmdb", "b.lmdb"], "both.lmdb").records
        2000

    Args:
        sources: stores of any format, or folders, with the same classes, labels and fields.
        destination: the new store.
        progress: as for ``pack``.
        options: other arguments of ``pack``, such as ``shards``.

    Raises:
        UsageError, StoreError: as ``pack`` does, or stores that do not fit together.
    """
    return pack(open_store(list(sources)), destination, progress=progress, **options)


def append(
    path: str | os.PathLike[str],
    source: Any,
    *,
    progress: Progress | bool | None = None,
    **options: Any,
) -> PackReport:
    """Add the samples of ``source`` behind the records of the store at ``path``.

    The store is written anew beside the old one and then takes its place: whoever reads the old one
    goes on with it, and a kill leaves the old one or the new one. That takes the time of a copy,
    and the room.

    Example:
        >>> append("imgs.lmdb", "more").records
        1100

    Args:
        path: a store of one file.
        source: as for ``pack``; with the same classes, type of labels and fields.
        progress: as for ``pack``.
        options: other arguments of ``pack``, but shards, shard_nbytes and split: what becomes of
            the new images.

    Raises:
        UsageError: a set of shards, or a format of several files (pack into another store, and read
            both as one); a source that does not fit, or that has keys that are there; somebody else
            appends to this store now; its folder cannot be written.
        StoreError: as ``pack`` does.
    """
    path = local_path(path)
    if format_of(path) is None or not os.path.isfile(path):
        open_store(path).close()  # which says so where there is none
        raise UsageError(
            f"{path!r}: expected a store of one file: pack the new images into another store, and "
            "read both as one, FastLoader([a, b])"
        )
    for name in ("shards", "shard_nbytes", "split"):
        if options.get(name) is not None:
            raise UsageError(
                f"expected no {name} where a store of one file is appended to, got "
                f"{options[name]!r}: pack the new images into another store with it"
            )
    with _alone(path):
        return _append(path, source, progress, options)


def _append(
    path: str, source: Any, progress: Progress | bool | None, options: dict[str, Any]
) -> PackReport:
    store = open_store(path)
    stem, suffix = os.path.splitext(path)
    new, more = f"{stem}{_MARK}{suffix}", f"{stem}{_MARK}-added{suffix}"
    _settle(path, store.format)  # what a run that was killed left
    _remove(path)
    try:
        # A function is told of the copy alone, which begins at 0 again.
        shown = False if callable(progress) else progress
        added = pack(source, more, progress=shown, **options)
        both = ConcatStore.checked([store, open_store(more)])
        keys = [set(one.keys(np.arange(len(one)))) for one in both.stores]
        twice = keys[0] & keys[1]
        if twice:
            raise UsageError(f"{path!r} already has a record called {min(twice)!r}")
        records = StoreSource(both)
        records.noted = _noted(both.stores)
        report = pack(records, new, progress=progress)
        both.close()
        _replace(new, path, store.format)
    except StoreError as error:
        if KEPT not in error.message:
            raise
        # Here it is not: what was begun is deleted below.
        raise StoreError(
            error.message.replace(KEPT, "; the store is as it was"), path=path
        ) from error
    except KeyboardInterrupt as stop:
        stop.args = ("the store is as it was",)
        raise
    finally:
        _remove(path)
    (part,) = report.parts
    return PackReport(
        parts=(dataclasses.replace(part, path=path),),
        skipped=added.skipped,
        kept=added.kept,
        seconds=added.seconds + report.seconds,
    )


def _noted(stores: Sequence[Store]) -> dict[str, Any]:
    """Where the records came from, and what was made of them: of all stores, where they differ."""
    sources = [str(store.metadata.get("source", store.path)) for store in stores]
    found: dict[str, Any] = {"source": ", ".join(dict.fromkeys(sources))}
    for name in ("encode", "resize", "quality", "exif"):
        values = [store.metadata.get(name) for store in stores]
        if any(value != values[0] for value in values):
            parts = ", ".join("none" if value is None else str(value) for value in values)
            values = [", ".join(dict.fromkeys(parts.split(", ")))]  # it may be several already
        found[name] = values[0]
    return found


@contextlib.contextmanager
def _alone(path: str) -> Iterator[None]:
    """Nobody else appends to the store ``path`` meanwhile: the records of one would be lost.

    A kill leaves the empty lock file, which the next run deletes.
    """
    name = f"{os.path.splitext(path)[0]}{_MARK}-lock"
    while True:
        try:
            lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UsageError(
                f"{path!r} is replaced by a larger store, and its folder cannot be written "
                f"({error.strerror}): append where it can"
            ) from error
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise UsageError(
                    f"{path!r}: somebody else appends to this store now: wait until that is done"
                ) from error
            if os.path.exists(name) and os.path.samestat(os.fstat(lock), os.stat(name)):
                try:
                    yield
                finally:
                    os.remove(name)
                return
        finally:  # whoever held it has deleted the file that was opened here: again
            os.close(lock)


def _replace(new: str, path: str, format: str) -> None:
    """Give the files of the store ``new`` the names of those of ``path``.

    The rename of the data file decides. A sidecar waits beside the old one until then, and readers
    take that of the two which fits.
    """
    table = read_sidecar(new, format) if os.path.exists(sidecar_of(new)) else None
    if table is not None:
        waiting = next_sidecar_of(path)
        write_sidecar(path, table, names=[os.path.basename(path)], place=waiting)
    os.replace(new, path)
    sync_folder(os.path.dirname(path))
    _settle(path, format)


def _settle(path: str, format: str) -> None:
    """Do what is to be done once the data file has its name: index files, then the sidecar.

    A sidecar that waits for a data file which never got its name is deleted.
    """
    waiting = next_sidecar_of(path)
    if not os.path.exists(waiting):
        return
    try:
        fits = read_sidecar(path, format, place=waiting) is not None
    except StoreError:  # damaged, or another's; nobody needs it where the store's own fits
        if read_sidecar(path, format, place=sidecar_of(path)) is None:
            raise
        fits = False
    if not fits:
        os.remove(waiting)
        return
    stem = os.path.splitext(path)[0]
    folder, begin = os.path.split(f"{stem}{_MARK}.")
    for name in os.listdir(folder):
        if name.startswith(begin) and not name.endswith(SUFFIX):
            os.replace(os.path.join(folder, name), f"{stem}.{name.removeprefix(begin)}")
    os.replace(waiting, sidecar_of(path))
    sync_folder(folder)


def _remove(path: str) -> None:
    """Delete what belongs to the new store but has not become part of the old one."""
    folder, name = os.path.split(os.path.splitext(path)[0])
    waiting = os.path.basename(next_sidecar_of(path))
    for other in os.listdir(folder):
        left = os.path.join(folder, other)
        if other.startswith((f"{name}{_MARK}.", f"{name}{_MARK}-added.", f"{waiting}.")):
            if os.path.isdir(left):
                shutil.rmtree(left)
            else:
                os.remove(left)
