"""Mirror: a folder of links that gives sparse files the names of their objects.

Readers find a sidecar beside its store and shards beside each other, and know a format by its
suffix. So the objects of a store, each of which has a folder of its own in the cache, are linked
into one folder under their own names. Links may be deleted at any time, as programs that delete old
files do: whoever opens a store makes those anew that are missing or lead to other files.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping

from .._durable import remove
from .area import Area, DiskArea, hashed, own_folder


class Mirror:
    """A folder of links: path below it -> what it links to.

    On a disk the folder is named by what it holds and stays there, a few bytes; otherwise it is a
    temporary folder, deleted with this object.
    """

    def __init__(self, area: Area, files: Mapping[str, str]) -> None:
        if isinstance(area, DiskArea):
            mirrors = os.path.join(area.folder, "mirrors")
            own_folder(mirrors)
            self.folder = os.path.join(mirrors, hashed(sorted(files.items())))
            own_folder(self.folder)
        else:
            self.folder = tempfile.mkdtemp(prefix="fastload-")
            weakref.finalize(self, _remove, self.folder, os.getpid())
        self._files = dict(files)
        for inside, target in files.items():
            self._link(inside, target)

    def path(self, inside: str) -> str:
        return os.path.join(self.folder, inside)

    @property
    def whole(self) -> bool:
        return all(_leads(self.path(inside), target) for inside, target in self._files.items())

    def _link(self, inside: str, target: str) -> None:
        place = self.folder
        *folders, name = inside.split("/")
        for folder in folders:
            place = os.path.join(place, folder)
            own_folder(place)
        place = os.path.join(place, name)
        if not _leads(place, target):
            remove(place)
            with contextlib.suppress(FileExistsError):  # another process was faster
                os.symlink(target, place)


def _leads(place: str, target: str) -> bool:
    try:
        return os.readlink(place) == target
    except OSError:
        return False


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
