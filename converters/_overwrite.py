"""``overwrite=True``: a new store is written beside the old one, and takes its place when it is
complete.

Until then it lies in ``NAME-overwriting.SUFFIX.partial``, where an interrupted run is found again.
A file takes the place of another in one step; a store of several files is not whole for as long as
that takes, but a kill meanwhile leaves all that is new in the folder or under its name.
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
    """Where the store that is to replace ``path`` is written."""
    stem, suffix = os.path.splitext(path)
    return os.path.join(f"{stem}-overwriting{suffix}.partial", os.path.basename(path))


def needed(path: str, parts: Sequence[str]) -> bool:
    """Whether a part of the store ``path`` is there, or an earlier run was about to replace it.

    Raises:
        UsageError: what is there is a folder and no store.
    """
    return os.path.lexists(os.path.dirname(staged(path))) or any(map(_files_of, parts))


def _files_of(path: str) -> list[str]:
    """The files of the store at ``path`` that lie beside it; none where there is nothing.

    Raises:
        UsageError: a folder that is no store, which nobody wants to lose.
    """
    path = path.rstrip(os.sep)
    if os.path.isdir(path) and not os.path.islink(path):
        try:
            open_store(path).close()
        except StoreError as error:
            raise UsageError(
                f"{path!r} is a folder and no store, so that it is not overwritten: move it"
            ) from error
        return [path]
    found = [path]
    if not os.path.lexists(path):
        try:
            with open_store(path) as store:  # a set of shards
                found = list(store.files)
        except StoreError:
            pass  # nothing there, or a set of which not all is there
    found.append(path + SIDECAR)
    format_ = find_by_suffix(path)
    for form in () if format_ is None else format_.companions:
        found += [form.format(path=one, stem=os.path.splitext(one)[0]) for one in found[:-1]]
    return [one for one in found if os.path.lexists(one)]


def replacing(path: str, run: Callable[[str], PackReport]) -> PackReport:
    """Call ``run`` with another path, and put the stores that it makes there into their places.

    Raises:
        UsageError: what is in the way is no store.
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
    for name in names:
        place = os.path.join(parent, name)
        if os.path.isdir(place) and not os.path.islink(place):  # which no rename replaces
            os.rename(place, os.path.join(folder, f"old-{name}"))
        os.replace(os.path.join(folder, name), place)
    for left in set(old) - {os.path.join(parent, name) for name in names}:
        os.remove(left)
    sync_folder(parent)
    shutil.rmtree(folder)
    parts = zip(report.parts, places, strict=True)
    return dataclasses.replace(
        report, parts=tuple(dataclasses.replace(part, path=place) for part, place in parts)
    )
