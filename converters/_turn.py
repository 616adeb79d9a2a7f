"""One process at a time packs to a URL. The next one finds what a killed process left behind.

Two things say that a process is packing:

    a folder below the system's temporary folder, named by the URL: the process keeps it locked, so
    others on this machine are refused
    NAME.lock, an object beside the store: created only if it does not exist, so other machines are
    refused. It holds the same mark as the folder.

A killed process leaves both. The next one on this machine finds the folder unlocked and its mark in
the object, so it may take over. On another machine the error names the object to delete. Some
servers cannot create an object on condition that it does not exist. There, two processes that begin
at the same moment may both continue.

The folder is locked by ``flock``: a directory cannot be locked otherwise, and a lock file would be
left behind.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import tempfile
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..errors import UsageError

if TYPE_CHECKING:
    import fsspec

OWNER = "owner"
"""The name of the file in the folder that holds the mark; no part of a store."""

Asking = Callable[[str], contextlib.AbstractContextManager[None]]
"""Turns errors of a file system into a StoreError that begins with these words."""

_MARK_NBYTES = 16
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
    return descriptor


class Turn:
    """This process packs to ``url`` until ``end``; what is in ``folder`` then stays there.

    Args:
        url: of the store.
        system: the file system that has it.
        path: of the store in it.
        asking: for its errors.

    Attributes:
        folder: of this URL on this machine; the next one finds what is in it.

    Raises:
        UsageError: another process packs to it, or the folder belongs to another user.
        StoreError: the file system refuses.
    """

    def __init__(
        self, url: str, system: fsspec.AbstractFileSystem, path: str, asking: Asking
    ) -> None:
        self._url, self._system, self._asking = url, system, asking
        self._object = f"{path}.lock"
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
        mark = self._mark()
        try:
            self._take(mark)
        except BaseException:
            self._give_up(mark)
            raise

    def _mark(self) -> str:
        """What tells this folder from those of other machines; made once."""
        place = os.path.join(self.folder, OWNER)
        with contextlib.suppress(FileNotFoundError):
            with open(place, encoding="utf-8") as file:
                mark = file.read()
            if len(mark) == 2 * _MARK_NBYTES:  # else killed while it was written
                return mark
        mark = secrets.token_hex(_MARK_NBYTES)
        with open(place, "w", encoding="utf-8") as file:
            file.write(mark)
        return mark

    def _take(self, mark: str) -> None:
        """Create the object, or find that it is of a process of this machine that was killed."""
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        mine = {"mark": mark, "host": socket.gethostname(), "since": now}
        with self._asking("it cannot be written"):
            while not self._created(json.dumps(mine).encode()):
                try:
                    held = self._system.cat_file(self._object)
                except FileNotFoundError:
                    continue  # that one has ended
                try:
                    found = {name: str(value) for name, value in dict(json.loads(held)).items()}
                except (ValueError, TypeError):
                    found = {}
                if found.get("mark") == mark:
                    return
                raise UsageError(
                    f"{self._url!r}: another process packs to it, on the machine "
                    f"{found.get('host')} since {found.get('since')}: wait for it; if it does not "
                    f"run any more, delete '{self._url}.lock'"
                )

    def _created(self, content: bytes) -> bool:
        """Whether there was no object, and now is."""
        try:
            self._system.pipe_file(self._object, content, mode="create")
        except FileExistsError:
            return False
        except Exception:  # noqa: BLE001 - a server that cannot say so may answer anything
            self._system.invalidate_cache()
            if self._system.exists(self._object):
                return False
            self._system.pipe_file(self._object, content)
        return True

    def _give_up(self, mark: str) -> None:
        """Delete the object, which may have been created although that failed."""
        try:
            with contextlib.suppress(FileNotFoundError):
                if mark.encode() in self._system.cat_file(self._object):
                    self._system.rm_file(self._object)
        except Exception:  # noqa: BLE001 - the error that came before is raised
            self._unlock()  # the folder stays, for the next one to know the object by
            return
        self._leave()

    def end(self) -> None:
        """Let others pack to it. Deletes the folder if nothing was left in it."""
        if not self._unlock.alive:
            return
        try:
            with self._asking(f"'{self._url}.lock' cannot be deleted; delete it"):
                with contextlib.suppress(FileNotFoundError):
                    self._system.rm_file(self._object)
        finally:
            self._leave()

    def _leave(self) -> None:
        if os.path.isdir(self.folder) and set(os.listdir(self.folder)) <= {OWNER}:
            shutil.rmtree(self.folder)
        self._unlock()


@contextlib.contextmanager
def scratch(url: str) -> Iterator[str]:
    """A temporary folder while the block lasts.

    Before, the folders are deleted that killed processes have left on this machine which packed to
    the same URL.
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
    except (_Taken, OSError):  # not a folder, or another user's
        return
    try:
        shutil.rmtree(folder)
    finally:
        os.close(descriptor)
