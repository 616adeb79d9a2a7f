"""A new store is written beside an old one, and replaces it when it is complete: ``overwrite=True``
and ``append``.

Until then it lies in a folder beside it (``_workplace.py``), where the next run finds and resumes
it. One file replaces another atomically, also if it has a sidecar: that waits beside the old one
meanwhile, and readers use the one that fits. A store of several files is incomplete while they are
renamed. If a run is killed meanwhile, the next one moves those files back, finds the store
finished, and starts the renames again. The list of renames also names the files of the old store:
after the first rename they may look like no store any more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

from ..errors import StoreError, UsageError
from ..storage import open_store
from ..storage._durable import sync, write_json
from ..storage._sidecar import SUFFIX as SIDECAR
from ..storage._sidecar import next_sidecar_of
from ..storage._writer import write_failed
from ._remote import in_order
from ._report import PackReport
from ._workplace import Workplace, companions_of

_RENAMES = "renames.json"  # which files are being moved to their places


def needed(path: str, parts: Sequence[str]) -> bool:
    """Whether a part of the store ``path`` exists, or an earlier run was replacing it."""
    return os.path.lexists(Workplace(path).folder) or any(map(_files_of, parts))


def _files_of(path: str) -> list[str]:
    """The existing files of the store at ``path``."""
    path = path.rstrip(os.sep)
    if os.path.isdir(path) and not os.path.islink(path):
        try:
            open_store(path).close()
        except StoreError as error:
            raise UsageError(
                f"{path!r} is a folder and not a store, so it is not overwritten: move it"
            ) from error
        return [path]
    files = [path]
    if not os.path.lexists(path):
        try:
            with open_store(path) as store:  # a set of shards
                files = list(store.files)
        except StoreError:
            pass  # nothing there, or an incomplete set
    # What has the name of an index belongs to a store only beside its data file.
    beside = [other for file in files if os.path.lexists(file) for other in companions_of(file)]
    files += [path + SIDECAR, *beside]
    return [file for file in dict.fromkeys(files) if os.path.lexists(file)]


def replacing(
    path: str, parts: Sequence[str], run: Callable[[str], PackReport], what: str = "overwriting"
) -> PackReport:
    """Call ``run`` with another path, and move the stores that it writes there to their places.

    ``parts``: the paths of its parts, as of a split. ``what``: is done to it, in a folder's name.
    """
    with contextlib.ExitStack() as locks:
        for part in sorted(parts):  # of two processes, one gets the first that both want
            locks.enter_context(_locked(part))
        return _replacing(path, run, Workplace(path, what))


def _replacing(path: str, run: Callable[[str], PackReport], place: Workplace) -> PackReport:
    """``replacing`` while no other process does."""
    parent = os.path.dirname(path)
    with _errors_of(place.folder):
        place.begin()
        earlier = _take_back(place.folder, parent)
    try:
        report = run(place.staged)
        new = {os.path.basename(file) for part in report.parts for file in _files_of(part.path)}
        places = [os.path.join(parent, os.path.basename(part.path)) for part in report.parts]
        old = {file for place in places for file in _files_of(place)}
        old |= set(filter(os.path.lexists, earlier))
    except BaseException:
        place.end()
        raise
    with _errors_of(place.folder):
        _move(place, parent, new, places, old)
    parts = zip(report.parts, places, strict=True)
    return dataclasses.replace(
        report, parts=tuple(dataclasses.replace(part, path=place) for part, place in parts)
    )


@contextlib.contextmanager
def _errors_of(folder: str) -> Iterator[None]:
    """Turn errors of the system into a StoreError."""
    try:
        yield
    except OSError as error:
        raise write_failed(error, folder) from error


def _move(
    work: Workplace, parent: str, new: set[str], places: Sequence[str], old: set[str]
) -> None:
    """Move the ``new`` files to ``parent``, where ``places`` are; delete the ``old`` ones."""
    folder = work.folder
    names = list(dict.fromkeys(name.split(os.sep)[0] for name in in_order(folder)))
    names = [name for name in names if name in new]
    aside = {name: f"old-{name}" for name in map(os.path.basename, places)}
    # With their inodes, to tell them from later files of the same names.
    moved = [(name, os.lstat(work.file(name)).st_ino) for name in names]
    replaced = [(os.path.basename(path), os.lstat(path).st_ino) for path in old]
    write_json(work.file(_RENAMES), [moved, replaced])
    for place in places:
        if place + SIDECAR in old and not os.path.lexists(place):
            os.remove(place + SIDECAR)  # of shards: a mixture of old and new ones is no store
            old.remove(place + SIDECAR)
    for name in names:
        place = os.path.join(parent, name)
        if os.path.isdir(place) and not os.path.islink(place):  # a rename cannot replace it
            work.remove([aside[name]])  # of a run that was killed
            os.rename(place, work.file(aside[name]))
        of_one_file = name.endswith(SIDECAR) and name.removesuffix(SIDECAR) in new
        os.replace(work.file(name), _waiting(place) if of_one_file else place)
    sync(parent)
    _settle(parent, names)
    for path in old - {os.path.join(parent, name) for name in names}:
        os.remove(path)
    work.remove([_RENAMES, *aside.values(), *(f"{name}.partial" for name in aside)])
    work.end()


def _take_back(folder: str, parent: str) -> list[str]:
    """Undo the renames of a run that was killed before the last one; the old files there are.

    If it was killed after the last one, the old files are deleted.
    """
    journal = os.path.join(folder, _RENAMES)
    try:
        with open(journal, encoding="utf-8", errors="surrogateescape") as file:
            new, old = (
                [(os.path.basename(name), int(inode)) for name, inode in paths]
                for paths in json.load(file)
            )
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, RecursionError) as error:
        raise StoreError(
            f"the list of renames is damaged: move what you need from {folder!r}, delete it, and "
            "run again",
            path=journal,
        ) from error
    there = set(os.listdir(folder))
    moved = not any(name in there for name, _ in new)
    if moved:
        waited = [name for name, inode in new if _inode(_waiting(f"{parent}/{name}")) == inode]
        _settle(parent, waited)
    old_places = [
        place for name, inode in old if _inode(place := os.path.join(parent, name)) == inode
    ]
    if not moved:
        for name, inode in new:
            place = os.path.join(parent, name)
            for moved_to in (place, _waiting(place)) if name not in there else ():
                if _inode(moved_to) == inode:
                    os.rename(moved_to, os.path.join(folder, name))
        sync(parent)
        return old_places
    for place in old_places:
        os.remove(place)
    os.remove(journal)
    return []


def _waiting(place: str) -> str:
    """Where the sidecar ``place`` waits for its data file."""
    return next_sidecar_of(place.removesuffix(SIDECAR))


def _settle(parent: str, names: Iterable[str]) -> None:
    """Give the sidecars among ``names``, whose data files are there, their places."""
    for name in names:
        place = os.path.join(parent, name)
        ours = name.endswith(SIDECAR) and os.path.lexists(place.removesuffix(SIDECAR))
        if ours and os.path.lexists(_waiting(place)):
            os.replace(_waiting(place), place)
    sync(parent)


def _inode(path: str) -> int | None:
    """Of a file or folder; None if there is none."""
    try:
        return os.lstat(path).st_ino
    except FileNotFoundError:
        return None


# --- one process at a time ------------------------------------------------------------------------


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """Hold the lock on replacing the store ``path``: two processes would mix their files.

    It is on an empty file beside the store. A kill leaves it, and the next run deletes it.
    """
    name = f"{path}.replacing-lock"
    while True:
        try:
            lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR):
                raise _not_a_lock(name) from error
            raise StoreError(
                "it has to be replaced by a new store beside it, but its folder cannot be written "
                f"({error.strerror}): make it writable, or work on a copy elsewhere",
                path=path,
            ) from error
        try:
            if os.fstat(lock).st_size:
                raise _not_a_lock(name)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UsageError(
                    f"{path!r}: another process is appending to this store or overwriting it: wait "
                    "until it is done"
                ) from error
            except OSError as error:
                os.remove(name)
                raise StoreError(
                    "it has to be locked while it is replaced, and its file system cannot do that "
                    f"({error.strerror}): work on a copy elsewhere",
                    path=path,
                ) from error
            if os.path.exists(name) and os.path.samestat(os.fstat(lock), os.stat(name)):
                try:
                    yield
                finally:
                    os.remove(name)
                return
        finally:  # if its owner deleted the file that was opened here, try again
            os.close(lock)


def _not_a_lock(name: str) -> UsageError:
    return UsageError(f"expected an empty file at {name!r}, found something else: move it")
