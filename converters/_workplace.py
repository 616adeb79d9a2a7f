"""The folder beside a store in which another one is made that will replace it.

A file in it says that fastload made it. A link is not followed, and a folder that somebody else
made is not used. Files are deleted by their names; what somebody else put there stays.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterable

from ..errors import UsageError
from ..storage import find_by_suffix
from ..storage._durable import sync
from ..storage._sidecar import SUFFIX as SIDECAR

_MARK = "made-by-fastload"
_TEXT = b"fastload makes a store here, and deletes this folder when it is done.\n"


class Workplace:
    """A folder ``NAME-WHAT.SUFFIX.partial`` beside the store ``NAME.SUFFIX``.

    ``what`` is done to it, such as "appending". ``staged``: where a store of the same name lies.
    """

    def __init__(self, path: str, what: str = "overwriting") -> None:
        stem, suffix = os.path.splitext(path)
        self.folder = f"{stem}-{what}{suffix}.partial"
        self.staged = self.file(os.path.basename(path))

    def file(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def begin(self) -> None:
        """Make the folder, or take over that of a run that was killed.

        Raises OSError where it cannot be written.
        """
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.folder)
        if not self._mine():
            raise UsageError(
                f"expected a folder that fastload made at {self.folder!r}, found something else (a "
                "link is not followed): move it"
            )

    def _mine(self) -> bool:
        """Whether it is a folder with the mark; an empty one gets it."""
        if not stat.S_ISDIR(os.lstat(self.folder).st_mode):
            return False
        names, mark = os.listdir(self.folder), self.file(_MARK)
        text = b""
        if _MARK in names:
            if not stat.S_ISREG(os.lstat(mark).st_mode):
                return False
            with open(mark, "rb") as file:
                text = file.read(len(_TEXT) + 1)
            if text == _TEXT:
                return True
        if set(names) - {_MARK} or not _TEXT.startswith(text):
            return False
        try:  # nothing else is there before the mark is
            with open(mark, "wb") as file:
                file.write(_TEXT)
                file.flush()
                os.fsync(file.fileno())
            sync(self.folder)
        except OSError:
            self.end()
            raise
        return True

    def remove(self, names: Iterable[str]) -> None:
        """Delete these files and folders, if they are there."""
        for path in map(self.file, names):
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            elif os.path.lexists(path):
                os.remove(path)

    def end(self) -> None:
        """Delete the folder, unless something else than the mark is in it."""
        if set(os.listdir(self.folder)) <= {_MARK}:
            self.remove([_MARK])
            os.rmdir(self.folder)


def companions_of(path: str) -> list[str]:
    """The files that lie beside a data file of a store, there or not: sidecar and indices."""
    format_ = find_by_suffix(path)
    forms = () if format_ is None else format_.companions
    stem = os.path.splitext(path)[0]
    return [path + SIDECAR, *(form.format(path=path, stem=stem) for form in forms)]
