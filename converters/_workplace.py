"""The folder beside a store in which another one is made that will replace it.

A link in its place is not followed. Files are deleted by their names, so what somebody else put
there stays.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from ..errors import UsageError
from ..storage import find_by_suffix
from ..storage._durable import remove
from ..storage._sidecar import SUFFIX as SIDECAR
from ..storage.shard_set import with_companions


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
        if os.path.islink(self.folder) or not os.path.isdir(self.folder):
            raise UsageError(
                f"expected a folder that fastload made at {self.folder!r}, found something else (a "
                "link is not followed): move it"
            )

    def remove(self, names: Iterable[str]) -> None:
        """Delete these files and folders, if they are there."""
        for name in names:
            remove(self.file(name))

    def end(self) -> None:
        """Delete the folder, unless something is in it."""
        with contextlib.suppress(OSError):
            os.rmdir(self.folder)


def companions_of(path: str) -> list[str]:
    """The files that lie beside a data file of a store, there or not: sidecar and indices."""
    form = find_by_suffix(path)
    return [path + SIDECAR, *([] if form is None else with_companions(form, path)[1:])]
