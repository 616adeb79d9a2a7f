"""One process of a machine at a time packs to a URL. The next one finds what a killed one left.

The process keeps a folder below the system's temporary folder locked, which is named by the URL.
The folder is locked by ``flock``: a directory cannot be locked otherwise, and a lock file would be
left behind. Other machines are not kept out: whoever uploads a store looks first whether it exists.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator

from ..errors import StoreError, UsageError

_STAGING = re.compile(r"fastload-\d+-[0-9a-f]{16}")


class _Taken(Exception):
    """Another process has locked a folder, or has deleted it."""


def _name(url: str) -> str:
    return f"fastload-{os.getuid()}-{hashlib.blake2b(url.encode(), digest_size=8).hexdigest()}"


def is_staging(path: str) -> bool:
    """Whether ``path`` is in the folder of a ``Turn``."""
    above = os.path.dirname(path)
    inside = os.path.realpath(os.path.dirname(above)) == os.path.realpath(tempfile.gettempdir())
    return inside and _STAGING.fullmatch(os.path.basename(above)) is not None


def _lock(folder: str) -> int:
    """A descriptor that keeps ``folder`` locked until it is closed."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise _Taken from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(descriptor), os.stat(folder)):
            raise _Taken
    except (_Taken, BlockingIOError, FileNotFoundError) as error:
        os.close(descriptor)
        raise _Taken from error
    except OSError as error:
        os.close(descriptor)
        with contextlib.suppress(OSError):  # nobody else can have it
            os.rmdir(folder)  # only an empty one
        raise StoreError(
            "this temporary folder has to be locked, and its file system cannot do that "
            f"({error.strerror}): set TMPDIR to a folder on another disk",
            path=folder,
        ) from error
    return descriptor


class Turn:
    """This process packs to ``url`` until ``end``; what is in ``folder`` then stays there.

    Attributes:
        folder: of this URL on this machine; the next one finds what is in it.
    """

    def __init__(self, url: str) -> None:
        self.folder = os.path.join(tempfile.gettempdir(), _name(url))
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        if os.stat(self.folder, follow_symlinks=False).st_uid != os.getuid():
            raise UsageError(
                f"{self.folder!r} belongs to another user: set TMPDIR to a folder of your own"
            )
        try:
            descriptor = _lock(self.folder)
        except _Taken:
            raise UsageError(
                f"{url!r}: another process of this machine packs to it: wait for it, or end it"
            ) from None
        self._unlock = weakref.finalize(self, os.close, descriptor)

    def end(self) -> None:
        """Let others pack to it. Deletes the folder if nothing was left in it."""
        if self._unlock.alive:
            with contextlib.suppress(OSError):
                os.rmdir(self.folder)  # only an empty one
            self._unlock()


@contextlib.contextmanager
def scratch(url: str) -> Iterator[str]:
    """A temporary folder while the block lasts.

    Those are deleted that killed processes of this machine have left, which packed to this URL.
    """
    prefix = f"{_name(url)}."
    for name in os.listdir(tempfile.gettempdir()):
        if name.startswith(prefix):
            _sweep(os.path.join(tempfile.gettempdir(), name))
    while True:
        folder = tempfile.mkdtemp(prefix=prefix)
        with contextlib.suppress(_Taken):  # another process has just swept it
            descriptor = _lock(folder)
            break
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # what is left, the next one deletes
        os.close(descriptor)


def _sweep(folder: str) -> None:
    """Delete ``folder`` unless a living process has it."""
    try:
        descriptor = _lock(folder)
    except (_Taken, StoreError, OSError):  # not a folder, or another user's
        return
    try:
        shutil.rmtree(folder)
    finally:
        os.close(descriptor)
