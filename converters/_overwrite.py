"""``overwrite=True``: a new store is written beside the old one, and replaces it when it is
complete.

Until then it lies in ``NAME-overwriting.SUFFIX.partial``, where the next run finds and resumes it.
One file replaces another atomically. A store of several files is incomplete while they are renamed,
but after a kill every new file is either in that folder or in its place.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Sequence

from ..errors import StoreError, UsageError
from ..storage import find_by_suffix, open_store
from ..storage._partial import sync_folder
from ..storage._sidecar import SUFFIX as SIDECAR
from ._remote import in_order
from ._report import PackReport


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


def replacing(path: str, run: Callable[[str], PackReport]) -> PackReport:
    """Call ``run`` with another path, and move the stores that it writes there to their places.

    Raises:
        UsageError: a folder in the way is not a store.
    """
    folder, parent = os.path.dirname(staged(path)), os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    try:
        report = run(staged(path))
        places = [os.path.join(parent, os.path.basename(part.path)) for part in report.parts]
        old = [file for place in places for file in _files_of(place)]
    except BaseException:
        if not os.listdir(folder):
            os.rmdir(folder)
        raise
    names = list(dict.fromkeys(name.split(os.sep)[0] for name in in_order(folder)))
    aside = {name: f"old-{name}" for name in map(os.path.basename, places)}
    names = [name for name in names if name not in aside.values()]  # of a run that was killed
    for name in names:
        place = os.path.join(parent, name)
        if os.path.isdir(place) and not os.path.islink(place):  # a rename cannot replace it
            old_place = os.path.join(folder, aside[name])
            if os.path.isdir(old_place):
                shutil.rmtree(old_place)
            os.rename(place, old_place)
        os.replace(os.path.join(folder, name), place)
    for left in set(old) - {os.path.join(parent, name) for name in names}:
        os.remove(left)
    sync_folder(parent)
    shutil.rmtree(folder)
    parts = zip(report.parts, places, strict=True)
    return dataclasses.replace(
        report, parts=tuple(dataclasses.replace(part, path=place) for part, place in parts)
    )
