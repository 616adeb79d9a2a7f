"""Mirror: a folder of links that gives sparse files the names that their objects have elsewhere.

Readers find a sidecar beside its store and shards beside each other, and know a format by its
suffix. So the objects of a store, each of which has a folder of its own in the cache, are linked
into one folder under their own names.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping

from .area import Area, DiskArea


class Mirror:
    """A folder of links.

    Args:
        area: where the cache is. On a disk the folder is named by what it holds and stays there,
            a few bytes; otherwise it is a temporary folder, deleted with this object.
        files: path below the folder -> what it links to.
    """

    def __init__(self, area: Area, files: Mapping[str, str]) -> None:
        if isinstance(area, DiskArea):
            name = hashlib.blake2b(repr(sorted(files.items())).encode(), digest_size=16).hexdigest()
            self.folder = os.path.join(area.folder, "mirrors", name)
            if os.path.isdir(self.folder):
                return
            os.makedirs(os.path.dirname(self.folder), mode=0o700, exist_ok=True)
            making = tempfile.mkdtemp(dir=os.path.dirname(self.folder), prefix="making-")
            _link(making, files)
            try:
                os.rename(making, self.folder)
            except OSError:  # another process was faster
                shutil.rmtree(making)
            return
        self.folder = tempfile.mkdtemp(prefix="fastload-")
        weakref.finalize(self, _remove, self.folder, os.getpid())
        _link(self.folder, files)

    def path(self, inside: str) -> str:
        """Where the file ``inside`` is."""
        return os.path.join(self.folder, inside)


def _link(folder: str, files: Mapping[str, str]) -> None:
    for inside, target in files.items():
        place = os.path.join(folder, inside)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.symlink(target, place)


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
