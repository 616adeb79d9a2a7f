"""``overwrite=True``: a new store is written beside the old one, and replaces it when it is
complete.

Until then it lies in ``NAME-overwriting.SUFFIX.partial``, where the next run finds and resumes it.
One file replaces another atomically. A store of several files is incomplete while they are renamed.
If a run is killed meanwhile, the next one moves those files back, finds the store finished, and
starts the renames again. The list of renames also names the files of the old store: after the first
rename they may look like no store any more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence

from ..errors import StoreError, UsageError
from ..storage import find_by_suffix, open_store
from ..storage._partial import sync_folder
from ..storage._sidecar import SUFFIX as SIDECAR
from ..storage._writer import write_failed
from ._alone import alone
from ._remote import in_order
from ._report import PackReport

_RENAMES = "renames.json"  # which files are being moved to their places


def staged(path: str) -> str:
    """Where the store that will replace ``path`` is written."""
    stem, suffix = os.path.splitext(path)
    return os.path.join(f"{stem}-overwriting{suffix}.partial", os.path.basename(path))


def needed(path: str, parts: Sequence[str]) -> bool:
    """Whether a part of the store ``path`` exists, or an earlier run was replacing it.

    Raises:
        UsageError: a folder that is not a store exists there.
    """
    return os.path.lexists(os.path.dirname(staged(path))) or any(map(_files_of, parts))


def _files_of(path: str) -> list[str]:
    """The existing files of the store at ``path``.

    Raises:
        UsageError: a folder that is not a store, and is not deleted.
    """
    path = path.rstrip(os.sep)
    if os.path.isdir(path) and not os.path.islink(path):
        try:
            open_store(path).close()
        except StoreError as error:
            raise UsageError(
                f"{path!r} is a folder and not a store, so it is not overwritten: move it"
            ) from error
        return [path]
    found = [path]
    if not os.path.lexists(path):
        try:
            with open_store(path) as store:  # a set of shards
                found = list(store.files)
        except StoreError:
            pass  # nothing there, or an incomplete set
    found.append(path + SIDECAR)
    format_ = find_by_suffix(path)
    for form in () if format_ is None else format_.companions:
        found += [form.format(path=one, stem=os.path.splitext(one)[0]) for one in found[:-1]]
    return [one for one in found if os.path.lexists(one)]


def replacing(path: str, parts: Sequence[str], run: Callable[[str], PackReport]) -> PackReport:
    """Call ``run`` with another path, and move the stores that it writes there to their places.

    Args:
        path: of the store.
        parts: the paths of its parts, as of a split.
        run: packs to a path.

    Raises:
        UsageError: a folder in the way is not a store, or another process replaces a part.
    """
    with alone(parts):
        return _replacing(path, run)


def _replacing(path: str, run: Callable[[str], PackReport]) -> PackReport:
    """``replacing`` while no other process does."""
    folder, parent = os.path.dirname(staged(path)), os.path.dirname(path)
    with _errors_of(folder):
        os.makedirs(folder, exist_ok=True)
        known = _take_back(folder, parent)
    try:
        report = run(staged(path))
        places = [os.path.join(parent, os.path.basename(part.path)) for part in report.parts]
        old = {file for place in places for file in _files_of(place)}
        old |= set(filter(os.path.lexists, known))
    except BaseException:
        if not os.listdir(folder):
            os.rmdir(folder)
        raise
    with _errors_of(folder):
        _move(folder, parent, places, old)
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


def _move(folder: str, parent: str, places: Sequence[str], old: set[str]) -> None:
    """Move the files of the new stores to ``parent``, and delete the ``old`` ones."""
    names = list(dict.fromkeys(name.split(os.sep)[0] for name in in_order(folder)))
    aside = {name: f"old-{name}" for name in map(os.path.basename, places)}
    others = {*aside.values(), _RENAMES, f"{_RENAMES}.new"}  # of a run that was killed
    names = [name for name in names if name not in others]
    _note(folder, [os.path.join(folder, name) for name in names], old)
    for place in places:
        if place + SIDECAR in old and not os.path.lexists(place):
            os.remove(place + SIDECAR)  # of shards: a mixture of old and new ones is no store
            old.remove(place + SIDECAR)
    for name in names:
        place = os.path.join(parent, name)
        if os.path.isdir(place) and not os.path.islink(place):  # a rename cannot replace it
            old_place = os.path.join(folder, aside[name])
            if os.path.isdir(old_place):
                shutil.rmtree(old_place)
            os.rename(place, old_place)
        os.replace(os.path.join(folder, name), place)
    sync_folder(parent)
    for left in old - {os.path.join(parent, name) for name in names}:
        os.remove(left)
    os.remove(os.path.join(folder, _RENAMES))
    shutil.rmtree(folder)


def _note(folder: str, new: Iterable[str], old: Iterable[str]) -> None:
    """Write down, durably, which files in ``folder`` are about to be moved, and the ``old`` ones.

    With their inodes, to tell them from later files of the same names.
    """
    journal = os.path.join(folder, _RENAMES)
    known = [
        [(os.path.basename(path), os.lstat(path).st_ino) for path in paths] for paths in (new, old)
    ]
    with open(journal + ".new", "w", encoding="utf-8") as file:
        json.dump(known, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(journal + ".new", journal)
    sync_folder(folder)


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
    left = [place for name, inode in old if _inode(place := os.path.join(parent, name)) == inode]
    if any(name in there for name, _ in new):  # else all are in their places
        for name, inode in new:
            place = os.path.join(parent, name)
            if name not in there and _inode(place) == inode:
                os.rename(place, os.path.join(folder, name))
        sync_folder(parent)
        return left
    for place in left:
        os.remove(place)
    os.remove(journal)
    return []


def _inode(path: str) -> int | None:
    """Of a file or folder; None if there is none."""
    try:
        return os.lstat(path).st_ino
    except FileNotFoundError:
        return None
