"""One memory file for all processes of a user on a machine, found without leaving anything behind.

Note [Finding the memory file]
    A memory file has no name, but a process that may trace another one (of the same user) can open
    its descriptors under ``/proc/PID/fd``. So each process that uses a shared cache announces
    "process P holds it as descriptor D" as the *name* of a bound Unix socket in the abstract
    namespace. Nothing is ever sent to it: the kernel lists the names in ``/proc/net/unix``, and
    removes a name when the process that bound it ends, however it ends. No thread serves anything.
    A file that is opened in this way must belong to the same user, be sealed against truncation and
    start with the right header, so a descriptor that was reused, or another user's name, does no
    harm.

    Processes that start together must not each make a file. So a process binds another such name,
    its turn, while it looks and announces. Whoever waits too long for its turn does not share.

    Rejected: a file in /dev/shm with a lock on it stays there when the last user is killed, and
    /dev/shm is small in containers (64 MB in Docker); handing the descriptor over a socket needs a
    thread that listens in every process.

The memory is freed when the last process that holds the file has ended or closed it.

When it pays: for many small loose files, and in memory, which holds one copy instead of one for
each rank. Two ranks on 6,000 loose 32x32 JPEGs took 1.7 times as much CPU time with "ram" as with
"shm" in the second epoch (1.5 to 2.1 in five rounds), and 1.3 times in the fourth, when each rank
had found most of them itself. Of photos, decoding takes the time: 1.1 and 1.0.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence

from ..._base import callers
from ...storage.base import Store
from . import memory

_WAIT_S = 10.0
_STEP_S = 0.005


class CacheFile:
    """The memory file of a cache, open as long as this lives.

    Args:
        kind: as ``FastLoader(cache=...)``: "shm" shares it, "ram" locks what is put there.
        records: how many it has places for.
        limit: bytes at most; with "shm" the first process sets it.
        name: with "shm", gives the name of what is kept: see ``Shared``.
        keys_nbytes: as for ``memory.create``.

    Attributes:
        fd, limit, arena: its descriptor, the bytes that it may have, and the records.
    """

    def __init__(
        self, kind: str, records: int, limit: int, name: Callable[[], str], keys_nbytes: int = 0
    ) -> None:
        def create() -> int:
            return memory.create(records, limit, keys_nbytes)

        self._shared: Shared | None = None
        if kind == "shm":
            self._shared = Shared(name(), create, lambda fd: memory.fits(fd, records, keys_nbytes))
            weakref.finalize(self, self._shared.close)
        self.fd = create() if self._shared is None else self._shared.fd
        weakref.finalize(self, os.close, self.fd)
        self.limit = os.fstat(self.fd).st_size
        self.arena = memory.open_arena(self.fd, lock=kind == "ram")

    def announce(self) -> None:
        """Let other processes find what they may share; again after a fork."""
        if self._shared is not None:
            self._shared.announce()


class Shared:
    """A memory file that other processes of this user can find, or that they made first.

    Args:
        name: what is kept, the same in all processes that are to share it; hexadecimal.
        create: makes the memory file if there is none; returns its descriptor.
        fits: whether a descriptor is of such a file.

    Attributes:
        fd: the descriptor; the caller closes it.
    """

    def __init__(self, name: str, create: Callable[[], int], fits: Callable[[int], bool]) -> None:
        self._prefix = f"fastload-cache/{os.geteuid()}/{name}"
        self._announced: tuple[int, socket.socket] | None = None
        turn = _turn(self._prefix)
        if turn is None:
            warnings.warn(
                f"another process has been looking for a shared cache for {_WAIT_S:.0f} s: this "
                "process keeps a cache of its own",
                RuntimeWarning,
                stacklevel=callers.stacklevel(),
            )
            self.fd = create()
            return
        with turn:
            descriptor = _find(self._prefix, fits)
            self.fd = create() if descriptor is None else descriptor
            self.announce()

    def announce(self) -> None:
        """Let other processes find the file in this one. Call it again after a fork."""
        if self._announced is not None and self._announced[0] == os.getpid():
            return
        name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        name.bind(f"\0{self._prefix}/{os.getpid()}/{self.fd}")
        self._announced = os.getpid(), name

    def close(self) -> None:
        """Remove the announcement."""
        if self._announced is not None:
            self._announced[1].close()


def fingerprint(stores: Sequence[Store], *details: object) -> str:
    """A name for the content of ``stores``: the same files, unchanged, in the same order.

    Of each file: path, device, inode, size and time of change, in two microseconds.
    """
    digest = hashlib.blake2b(
        repr((details, [len(store) for store in stores])).encode(), digest_size=16
    )
    for store in stores:
        blob, ends = store.file_table()
        digest.update(blob)
        digest.update(ends.tobytes())
        digest.update(store.identity.encode())
        begin = 0
        for end in ends.tolist():
            digest.update(_state(blob[begin:end]))
            begin = end
    return digest.hexdigest()


def _state(path: bytes) -> bytes:
    try:
        state = os.stat(path)
    except OSError:
        return b"absent"
    return b"%d %d %d %d;" % (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns)


def _turn(prefix: str) -> socket.socket | None:
    """A lock that one process of this user at a time can hold; None if the wait took too long."""
    turn = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            turn.bind(f"\0{prefix}")
            return turn
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                turn.close()
                raise
        if time.monotonic() > deadline:
            turn.close()
            return None
        time.sleep(_STEP_S)


def _find(prefix: str, fits: Callable[[int], bool]) -> int | None:
    """A descriptor of a memory file that another process announced, or None."""
    for process, number in _announcements(prefix):
        try:
            fd = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue  # it has ended, or its numbers belong to another namespace
        try:
            fitting = fits(fd)
        except OSError:
            fitting = False
        if fitting:
            return fd
        os.close(fd)
    return None


def _announcements(prefix: str) -> Iterator[tuple[int, int]]:
    """(process, descriptor) of every announcement."""
    try:
        with open("/proc/net/unix", errors="replace") as table:
            lines = table.read().splitlines()
    except OSError:
        return
    for line in lines:
        _, named, rest = line.partition(f" @{prefix}/")
        process, _, number = rest.partition("/")
        if (
            named
            and process.isascii()
            and process.isdigit()
            and number.isascii()
            and number.isdigit()
        ):
            yield int(process), int(number)
