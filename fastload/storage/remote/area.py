"""Where cache files lie: memory of this process alone, or a folder that processes share.

Such a folder has a file ``fastload.lock`` and a folder for each object (``blocks.py``). Two things
are locked by POSIX record locks on that file, which the system releases when a process dies,
however it dies:

    byte 0      the mutex: who changes which bytes are where
    byte 64+k   process number k lives: what it has claimed or pinned counts

Such a lock belongs to a process, and closing any descriptor of the file drops it. So a process has
one ``DiskArea`` for a folder, and never closes the descriptor of its parent after a fork.

Others may have put anything in the place of these files: a link, a folder, something of their own.
What has the name of a file of ours and is none is deleted and made anew (``own_file``). Links are
never followed. What has another name is left alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import re
import stat
import struct
import threading
from collections.abc import Iterator

from ...errors import StoreError
from .._durable import remove

FIRST_SLOT, LAST_SLOT = 2, 255
_MUTEX, _ALIVE = 0, 64
_HEAD = struct.Struct("<8sQ")  # magic, bytes that all objects take
_MAGIC = b"FLBLOCK\1"
_SIZE = 4096
_LOCK = "fastload.lock"
_TAKEN = 1024  # there: a byte for each number, 1 while a process has it
_PUNCH = 0x03  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
_MOST = 1 << 62  # bytes used, whatever a damaged file says
_SHARE = 0.5  # of the free disk, where no limit is given
MEMORY_NBYTES = 256 << 20  # kept in memory where nothing is kept on a disk, beside what is in use

_OBJECT = re.compile(r"[0-9a-f]{32}")  # the name of an object, see ``hashed``
_PINS = re.compile(r"pins-(\d{1,3})")

_libc = ctypes.CDLL(None, use_errno=True)


def hashed(what: object) -> str:
    """The name of an object or a mirror: the same for what has the same ``repr``."""
    return hashlib.blake2b(repr(what).encode(), digest_size=16).hexdigest()


def punch(descriptor: int, offset: int, nbytes: int) -> None:
    """Give back the disk space of a range, which then reads as zeros."""
    done = _libc.fallocate(
        ctypes.c_int(descriptor),
        ctypes.c_int(_PUNCH),
        ctypes.c_int64(offset),
        ctypes.c_int64(nbytes),
    )
    if done:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def own_folder(path: str) -> None:
    """Make the folder ``path``, in the place of anything else."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if os.path.islink(path) or not os.path.isdir(path):
            remove(path)
            os.mkdir(path, 0o700)


def own_file(path: str) -> int:
    """A descriptor of the regular file ``path``, made in the place of anything else."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):  # link, folder, socket
            raise
    else:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    remove(path)
    return os.open(path, flags | os.O_EXCL, 0o600)


class Area:
    """Memory files of this process alone. What is in use may exceed the limit.

    Attributes:
        limit: bytes that the objects may take together.
        soft: what is in use may exceed the limit.
        slot: the number of this process.
    """

    soft = True
    slot = FIRST_SLOT

    def __init__(self) -> None:
        self.limit = MEMORY_NBYTES
        self._thread_lock = threading.RLock()
        self._depth = 0
        self._owner = 0
        self._used = 0

    @contextlib.contextmanager
    def mutex(self) -> Iterator[None]:
        """Nobody else changes the cache, in this process or in another one. May be nested."""
        with self._thread_lock:
            if not self._depth:
                self._acquire()
                self._owner = threading.get_ident()
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if not self._depth:
                    self._owner = 0
                    self._release()

    @property
    def mine(self) -> bool:
        return self._owner == threading.get_ident()

    def _acquire(self) -> None:
        """Keep other processes out."""

    def _release(self) -> None:
        """End ``_acquire``."""

    @property
    def lost(self) -> bool:
        """Whether other processes have another lock: this one was deleted."""
        return False

    @property
    def used(self) -> int:
        """Bytes that all objects take. In the mutex."""
        return self._used

    def add_used(self, nbytes: int) -> None:
        """Change ``used``. In the mutex."""
        self._used += nbytes

    def create(self, name: str, file: str) -> int:
        """A descriptor of the file ``file`` of the object ``name``; an empty one if it is new."""
        return os.memfd_create(f"fastload-{file}", os.MFD_CLOEXEC)

    def path(self, name: str, file: str, descriptor: int) -> str:
        """How other processes of the machine open it."""
        return f"/proc/{os.getpid()}/fd/{descriptor}"

    def names(self) -> list[str]:
        """All objects that other processes may have open, too, and what has the name of one."""
        return []

    def has(self, name: str) -> bool:
        return False

    def alive(self, slot: int) -> bool:
        """Whether the process with this number lives. In the mutex."""
        return slot == self.slot

    def living(self, name: str) -> list[int]:
        """Numbers of other processes that live and have the object open. In the mutex."""
        return []

    def others(self) -> list[str]:
        """Objects that no living process has open, the least recently used first."""
        return []

    def drop(self, name: str) -> None:
        """Delete an object; who has its files open keeps them. In the mutex. Raises OSError."""


def unusable(folder: str, error: OSError) -> StoreError:
    """The error of a folder in which a file cannot be made or locked."""
    return StoreError(
        f"the folder of the cache cannot be used: {error.strerror}; free some of the disk, or "
        "choose another folder (cache_dir)",
        path=folder,
    )


class DiskArea(Area):
    """A folder that processes share; made if it is not there.

    ``limit`` None: half of what the disk has free, or of what was used already.
    """

    soft = False

    def __init__(self, folder: str, limit: int | None) -> None:
        super().__init__()
        self.folder = folder
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            self._fd = own_file(os.path.join(folder, _LOCK))
            with contextlib.ExitStack() as stack:
                stack.callback(os.close, self._fd)
                with self.mutex():
                    self._begin(limit)
                stack.pop_all()
        except OSError as error:
            raise unusable(folder, error) from error

    def _begin(self, limit: int | None) -> None:
        head = os.pread(self._fd, _SIZE, 0)
        if len(head) != _SIZE or head[:8] != _MAGIC:
            self._check_foreign()
            os.pwrite(self._fd, _HEAD.pack(_MAGIC, 0).ljust(_SIZE, b"\0"), 0)
            if os.fstat(self._fd).st_size < _SIZE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._check_punch()
        self.slot = self._take_slot()
        free = os.statvfs(self.folder)
        self.limit = limit if limit else int((free.f_bavail * free.f_frsize + self.used) * _SHARE)

    def _check_foreign(self) -> None:
        """Raise OSError if something in a folder that was no cache has the name of ours."""
        for name in ("objects", "mirrors"):
            path = os.path.join(self.folder, name)
            if os.path.lexists(path) and (os.path.islink(path) or not os.path.isdir(path)):
                if not os.fstat(self._fd).st_size:  # made just now
                    os.unlink(os.path.join(self.folder, _LOCK))
                raise NotADirectoryError(errno.ENOTDIR, f"{name!r} there is something else")

    def _check_punch(self) -> None:
        probe = os.path.join(self.folder, f"probe-{os.getpid()}")
        descriptor = own_file(probe)
        try:
            os.pwrite(descriptor, b"\1" * _SIZE, 0)
            punch(descriptor, 0, _SIZE)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                return
            raise StoreError(
                f"the file system of the cache cannot free parts of a file ({error.strerror}): "
                "choose a folder on a local disk (ext4, xfs, btrfs, tmpfs) as cache_dir",
                path=self.folder,
            ) from error
        finally:
            os.close(descriptor)
            os.unlink(probe)

    def _acquire(self) -> None:
        if self._fd >= 0:  # else nothing is left to change
            fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, _MUTEX)

    def _release(self) -> None:
        if self._fd >= 0:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _MUTEX)

    def close(self) -> None:
        """This process uses the folder no more. In the mutex; drops all locks."""
        os.pwrite(self._fd, b"\0", _TAKEN + self.slot)
        descriptor, self._fd = self._fd, -1
        os.close(descriptor)

    def _take_slot(self) -> int:
        self.died: list[int] = []
        mine = None
        taken = os.pread(self._fd, 256, _TAKEN)
        for slot in range(FIRST_SLOT, LAST_SLOT + 1):
            if mine is None and self._lock(slot):
                mine = slot
            elif not taken[slot] or self.alive(slot):
                continue
            if taken[slot]:
                self.died.append(slot)
            os.pwrite(self._fd, b"\1" if slot == mine else b"\0", _TAKEN + slot)
        if mine is None:
            raise StoreError(
                f"{LAST_SLOT - FIRST_SLOT + 1} processes use this cache already: choose another "
                "folder for some (cache_dir)",
                path=self.folder,
            )
        return mine

    def _lock(self, slot: int) -> bool:
        """Take a number, unless another process has it."""
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _ALIVE + slot)
        except (PermissionError, BlockingIOError):
            return False
        return True

    def alive(self, slot: int) -> bool:
        if slot == self.slot or not self._lock(slot):
            return True
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _ALIVE + slot)
        return False

    @property
    def lost(self) -> bool:
        if self._fd < 0:
            return False
        try:
            there = os.lstat(os.path.join(self.folder, _LOCK))
            return not os.path.samestat(os.fstat(self._fd), there)
        except OSError:  # it was deleted, or another thread closes it now
            return True

    @property
    def used(self) -> int:
        head = os.pread(self._fd, _HEAD.size, 0)
        if len(head) < _HEAD.size or head[:8] != _MAGIC:
            return 0  # lost: who opens the folder next counts anew
        used: int = _HEAD.unpack(head)[1]
        return min(used, _MOST)

    def add_used(self, nbytes: int) -> None:
        os.pwrite(self._fd, _HEAD.pack(_MAGIC, max(0, self.used + nbytes)), 0)

    def _place(self, name: str) -> str:
        return os.path.join(self.folder, "objects", name)

    def create(self, name: str, file: str) -> int:
        own_folder(os.path.join(self.folder, "objects"))
        own_folder(self._place(name))
        return own_file(os.path.join(self._place(name), file))

    def path(self, name: str, file: str, descriptor: int) -> str:
        return os.path.join(self._place(name), file)

    def names(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            entries = os.listdir(os.path.join(self.folder, "objects"))
            return sorted(name for name in entries if _OBJECT.fullmatch(name))
        return []

    def has(self, name: str) -> bool:
        return os.path.lexists(self._place(name))

    def living(self, name: str) -> list[int]:
        slots = []
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # it is no object at all
            for file in os.listdir(self._place(name)):
                slot = int(match[1]) if (match := _PINS.fullmatch(file)) else self.slot
                if slot != self.slot and self.alive(slot):
                    slots.append(slot)
        return slots

    def others(self) -> list[str]:
        def used_at(name: str) -> int:
            with contextlib.suppress(OSError):
                return os.stat(os.path.join(self._place(name), "index")).st_mtime_ns
            return 0

        mine = f"pins-{self.slot}"
        return [
            name
            for name in sorted(self.names(), key=used_at)
            if not os.path.exists(os.path.join(self._place(name), mine)) and not self.living(name)
        ]

    def drop(self, name: str) -> None:
        remove(self._place(name))
