"""Work in progress: ``NAME.partial``, a folder that no reader opens and the next writer resumes.

    NAME.partial/lock            locked (fcntl) by the process that writes
    NAME.partial/settings.json   of the first run; a writer that resumes must have equal ones
    NAME.partial/journal         columns of the records, a chunk each time they were made durable
    NAME.partial/renames.json    which files are being renamed
    NAME.partial/...             the data, in the format's own layout

Order of writing, LMDB. A chunk is appended to the journal and synced *before* its records are
committed in the data, so the journal never lacks a record of the data: on resume its excess is cut
off (``keep``). Formats that append to files do it the other way round (``stream.py``). ``publish``
syncs the finished files, renames them, the last of which makes the store exist, syncs the folder of
NAME and deletes the rest.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
from collections.abc import Collection, Mapping, Sequence

from ..errors import StoreError, UsageError
from ._columns import Columns, pack_chunk, unpack_chunks
from ._durable import remove, sync, write_all, write_json

_RENAMES = "renames.json"
_REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG)

_OWN = {"lock", "journal", "settings.json"}  # files of the partial itself

_held: set[str] = set()  # partials of this process: fcntl locks do not exclude their own process


class Partial:
    """The partial of the store ``path`` (absolute). Equal ``settings`` (JSON-able) resume it.

    ``mark``: the file whose existence means that the store exists; None: ``path``.

    Attributes:
        chunks: columns of the records in the journal, one item per durable step.
        started_ns: when the work was started, in nanoseconds since 1970.
    """

    def __init__(
        self, path: str, settings: Mapping[str, object], *, mark: str | None = None
    ) -> None:
        self.path = path
        mark = path if mark is None else mark
        self.folder = path + ".partial"
        parent = os.path.dirname(path)
        if not os.path.isdir(parent):
            raise StoreError(
                f"expected an existing folder for it, found none: create {parent!r}", path=path
            )
        try:
            os.mkdir(self.folder)
        except FileExistsError:
            pass  # to be resumed
        except OSError as error:
            if error.errno not in _REFUSALS:
                raise
            raise StoreError(
                f"its folder cannot be written ({error.strerror}): make it writable, or choose "
                "another name",
                path=path,
            ) from error
        try:
            self._check_own()
            self._lock = self._acquire()
        except FileNotFoundError as error:
            raise UsageError(
                f"{path!r}: another process has just finished or deleted {self.folder!r}: run again"
            ) from error
        with contextlib.ExitStack() as undo:
            undo.callback(self._release)
            if os.path.lexists(mark):
                self._discard_empty()
                raise UsageError(f"{mark!r} exists: delete it or choose another name")
            self._take_back()
            self._settings(json.loads(json.dumps(settings)))
            self.started_ns = os.stat(self.file("settings.json")).st_mtime_ns
            journal = os.path.join(self.folder, "journal")
            with open(journal, "ab"):
                pass  # now there is one
            self._journal = undo.enter_context(open(journal, "r+b", buffering=0))
            try:
                self.chunks, self._ends = unpack_chunks(self._journal.read())
            except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
                raise self._unreadable(journal) from error  # although its checksums match
            self._journal.truncate(self._end)  # of a chunk that a crash truncated
            undo.pop_all()  # everything is open

    @property
    def _end(self) -> int:
        """Where the last chunk of the journal ends."""
        return self._ends[-1] if self._ends else 0

    def _check_own(self) -> None:
        """Raise UsageError for a link, a folder with links, or one that somebody else made.

        So nothing is written or deleted outside of the folder, and nothing that others put there.
        """
        if not stat.S_ISDIR(os.lstat(self.folder).st_mode):
            raise UsageError(
                f"expected a folder that fastload made at {self.folder!r}, found something else (a "
                "link is not followed): move it"
            )
        with os.scandir(self.folder) as entries:
            there = list(entries)
            other = [
                entry.path
                for entry in there
                if not (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False))
            ]
        if other:
            raise UsageError(
                f"expected files and folders in {self.folder!r}, found a link or a device, "
                f"{min(other)!r}: delete that folder to start again"
            )
        # The settings are written before everything else.
        foreign = {entry.name for entry in there} - {"lock", "settings.json.new"}
        if foreign and not os.path.exists(self.file("settings.json")):
            raise UsageError(
                f"expected a folder that fastload made at {self.folder!r}, found "
                f"{min(foreign)!r} and no settings.json: move it"
            )

    def _acquire(self) -> int:
        key = os.path.realpath(self.folder)
        if key in _held:
            raise UsageError(f"{self.path!r} is already being written by this process")
        lock = os.open(os.path.join(self.folder, "lock"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:  # POSIX allows either
            os.close(lock)
            raise UsageError(
                f"{self.path!r}: another process is writing it: wait for it, or end it"
            ) from error
        except OSError as error:
            os.close(lock)
            self._discard_empty()
            raise StoreError(
                "it has to be locked while it is written, and its file system cannot do that "
                f"({error.strerror}): write it elsewhere, then move it there",
                path=self.path,
            ) from error
        try:  # its owner may have deleted the file that was opened here
            current = os.path.samestat(os.fstat(lock), os.stat(self.file("lock")))
        except OSError:
            current = False
        if not current:
            os.close(lock)
            raise FileNotFoundError(self.file("lock"))
        _held.add(key)
        self._key = key
        return lock

    def _release(self) -> None:
        _held.discard(self._key)
        os.close(self._lock)

    def _settings(self, settings: dict[str, object]) -> None:
        name = os.path.join(self.folder, "settings.json")
        if not os.path.exists(name):
            write_json(name, settings)
            return
        try:
            with open(name, encoding="utf-8") as file:
                first = dict(json.load(file))
        except (ValueError, TypeError, RecursionError) as error:
            raise self._unreadable(name) from error
        refuse_others(self.folder, first, settings)

    def damaged(self, what: str, path: str | None = None, **where: int | None) -> StoreError:
        """The error for work in progress that cannot be resumed; the user has to delete it."""
        return StoreError(
            f"{what}: the unfinished store is damaged, delete the folder {self.folder!r} to start "
            "again",
            path=self.folder if path is None else path,
            **where,
        )

    def _unreadable(self, path: str) -> StoreError:
        return self.damaged(f"expected what fastload wrote in {os.path.basename(path)}", path)

    def _discard_empty(self) -> None:
        if not set(os.listdir(self.folder)) - {*_OWN, _RENAMES}:
            self._delete()

    def file(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def clear(self, keep: Collection[str] = ()) -> None:
        """Delete the data in the partial, except the names in ``keep``; some may be gone."""
        for name in {*os.listdir(self.folder)} - _OWN - {*keep}:
            remove(self.file(name))

    def keep(self, records: int) -> None:
        """Truncate the journal to the first ``records`` records, which are those of the data."""
        while self.chunks and sum(map(len, self.chunks)) > records:
            self.chunks.pop()
            self._ends.pop()
        if sum(map(len, self.chunks)) != records:
            raise self.damaged(f"it holds {records} records, its journal fewer")
        self._journal.truncate(self._end)

    def add(self, columns: Columns) -> None:
        """Append to the journal durably, or not at all if that fails or is interrupted."""
        chunk = pack_chunk(columns)
        try:
            write_all(self._journal.fileno(), [chunk], self._end)
            os.fsync(self._journal.fileno())
        except BaseException:  # Ctrl-C too: the caller may add these records again
            self._journal.truncate(self._end)
            raise
        self.chunks.append(columns)
        self._ends.append(self._end + len(chunk))

    def publish(self, renames: Sequence[tuple[str, str]], *, replace: bool = False) -> None:
        """Sync finished files of the partial and rename them in order: (name in it, path).

        The last one makes the store exist: if a run is killed before it, the next run takes the
        others back. ``replace``: these may replace what a store that was deleted has left.
        """
        for name, _ in renames:
            sync(self.file(name))
        *others, (last, mark) = renames
        for path in [mark, *([] if replace else [path for _, path in others])]:
            if os.path.lexists(path):
                raise UsageError(f"{path!r} exists: move it and run the same again")
        if others:
            write_json(self.file(_RENAMES), others)
            for name, path in others:
                os.rename(self.file(name), path)
            sync(os.path.dirname(self.path))
        os.rename(self.file(last), mark)
        sync(os.path.dirname(self.path))
        self.close(remove=True)

    def _take_back(self) -> None:
        """Undo the renames of a run that was killed before the last one."""
        journal = self.file(_RENAMES)
        if not os.path.exists(journal):
            return
        try:
            with open(journal, encoding="utf-8", errors="surrogateescape") as file:
                renames = [(str(name), str(path)) for name, path in json.load(file)]
        except (ValueError, TypeError, RecursionError) as error:
            raise self._unreadable(journal) from error
        folder = os.path.dirname(self.path)
        for name, path in renames:
            inside = not os.path.isabs(name) and ".." not in name.split(os.sep)
            if not inside or os.path.dirname(path) != folder:
                raise self._unreadable(journal)
            if not os.path.lexists(self.file(name)) and os.path.lexists(path):
                os.rename(path, self.file(name))
        sync(os.path.dirname(self.path))
        os.remove(journal)

    def close(self, *, remove: bool = False) -> None:
        """Release the partial; it stays for a resume unless ``remove``."""
        self._journal.close()
        try:
            if remove:
                self._delete()
        finally:
            self._release()

    def _delete(self) -> None:
        """Delete the folder: what says whose it is after the data, and the lock at the end.

        So a run that is killed here leaves what the next one deletes if the store exists. If it
        gave up, the next one resumes what is left, or says that data are missing and which folder
        to delete. No other process begins before the lock is gone. One that begins then puts its
        own there, or deletes the folder.
        """
        with contextlib.suppress(FileNotFoundError):  # the folder itself
            self.clear()
        for name in ("journal", "settings.json", "lock"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.file(name))
        try:
            os.rmdir(self.folder)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise


def clear_finished(path: str, *, mark: str) -> None:
    """Delete the partial of the store ``path``, which exists: a run was killed at its end.

    A partial with data stays: it is of another store.
    """
    if os.path.isdir(path + ".partial"):
        with contextlib.suppress(UsageError, OSError):  # the store exists
            Partial(path, {}, mark=mark)


def refuse_others(folder: str, first: Mapping[str, object], now: Mapping[str, object]) -> None:
    """Raise UsageError unless ``now`` are the ``first`` settings of the unfinished store there."""
    differ = sorted(k for k in {*first, *now} if first.get(k) != now.get(k))
    both = {*first} & {*now}  # a whole set that is packed by Ray or to a URL has no version
    if "version" in both & {*differ} and first.get("format") == now.get("format"):
        raise UsageError(
            f"{folder!r} was started by another version of fastload, whose unfinished stores have "
            f"another layout ({first.get('version')!r}, now {now.get('version')!r}): finish it "
            "with that version, or delete that folder to start again"
        )
    if differ:
        what = ", ".join(f"{k}: {first.get(k)!r}, now {now.get(k)!r}" for k in differ)
        raise UsageError(
            f"{folder!r} was started with other settings or another source ({what}): "
            "use the same to resume, or delete that folder to start again"
        )
