"""One memory file for all processes of a user on a machine, found without leaving anything behind.

Note [Finding the memory file]
    A memory file has no name, but whoever may trace a process (the same user) can open its
    descriptors under ``/proc/PID/fd``. So each user of a shared cache announces "process P holds it
    as descriptor D" as the *name* of a bound Unix socket in the abstract namespace, which nobody
    ever sends to: the kernel lists the names in ``/proc/net/unix``, and takes a name away with the
    process that bound it, however that ends. No thread serves anything. What is opened that way
    must belong to the same user, be sealed against truncation and begin with the right header, so
    that neither a number that was used again nor another user's name does harm. Another such name,
    bound while a process looks and announces, makes sure that processes that start together do not
    each make a file: its turn. Names are everybody's, so a process that finds this one taken asks
    the kernel who listens there, and where it is another user takes the next name instead of
    waiting; all processes of a user come to the same one. Where another user holds all of them
    there is no turn, and at worst two processes that start together do not share.

    Rejected: a file in /dev/shm with a lock on it stays there when the last user is killed, and
    /dev/shm is small in containers (64 MB in Docker); handing the descriptor over a socket needs a
    thread that listens in every process.

Ends: the memory is freed when the last process that holds the file has ended or let go of it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
import os
import socket
import struct
import time
import warnings
from collections.abc import Callable, Iterator, Sequence

from ...storage.base import Store

_WAIT_S = 10.0
_STEP_S = 0.005
_NAMES = 16  # for the turn, in case another user holds some
_ASK_S = 1.0  # between two questions whose a name is
_UNKNOWN = 20  # answers that nobody listens, after which it is not waited for
_CREDENTIALS = struct.Struct("iII")  # process, user, group: unix(7), SO_PEERCRED


class Shared:
    """A memory file that other processes of this user can find, or found first.

    Args:
        name: what is kept, the same in all processes that are to share it; hexadecimal.
        create: makes the memory file if there is none; returns its descriptor.
        fits: whether a descriptor is of such a file.

    Attributes:
        fd: the descriptor, this object's user has to close it.
    """

    def __init__(self, name: str, create: Callable[[], int], fits: Callable[[int], bool]) -> None:
        self._prefix = f"fastload-cache/{os.geteuid()}/{name}"
        self._announced: tuple[int, socket.socket] | None = None
        turn = _turn(self._prefix)
        if turn is None:
            warnings.warn(
                f"another process has been looking for a shared cache for {_WAIT_S:.0f} s; this "
                "one keeps a cache of its own",
                RuntimeWarning,
                stacklevel=2,
            )
            self.fd = create()
            return
        with turn:  # or none
            found = _find(self._prefix, fits)
            self.fd = create() if found is None else found
            self.announce()

    def announce(self) -> None:
        """Let other processes find the file in this one; once in a process, again after a fork."""
        if self._announced is not None and self._announced[0] == os.getpid():
            return
        name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        name.bind(f"\0{self._prefix}/{os.getpid()}/{self.fd}")
        self._announced = os.getpid(), name

    def close(self) -> None:
        """Announce it no more."""
        if self._announced is not None:
            self._announced[1].close()


def fingerprint(stores: Sequence[Store], *details: object) -> str:
    """A name for the content of ``stores``: the same files, unchanged, in the same order.

    A file counts by path, device, number, size and time of change: two microseconds for each.
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


def _turn(prefix: str) -> contextlib.AbstractContextManager[object] | None:
    """What one process of this user at a time can have; None if it took too long."""
    turn = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    deadline = time.monotonic() + _WAIT_S
    for name in [f"\0{prefix}", *(f"\0{prefix}/turn-{n}" for n in range(1, _NAMES))]:
        asked, unknown = -math.inf, 0
        while True:
            try:
                turn.bind(name)
                turn.listen(socket.SOMAXCONN)
                return turn
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    turn.close()
                    raise
            now = time.monotonic()
            if now > deadline:
                turn.close()
                return None
            if now >= asked + _ASK_S or unknown:  # nobody takes these calls, and few can wait
                asked, owner = now, _listener(name)
                unknown = unknown + 1 if owner is None else 0
                if unknown > _UNKNOWN or (owner is not None and owner != os.geteuid()):
                    break
            time.sleep(_STEP_S)
    turn.close()
    return contextlib.nullcontext()


def _listener(name: str) -> int | None:
    """The user whose process listens under the name; -1: cannot be asked; None: nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as call:
        try:
            call.connect(name)
        except ConnectionRefusedError:  # it does not listen yet, or has let go of the name
            return None
        except OSError:
            return -1
        credentials = call.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(credentials)[1]
    return user


def _find(prefix: str, fits: Callable[[int], bool]) -> int | None:
    """A descriptor of a memory file that somebody announced, or None."""
    for process, number in _announcements(prefix):
        try:
            fd = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue  # it ended meanwhile, or its numbers are of another namespace
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
        _, found, rest = line.partition(f" @{prefix}/")
        process, _, number = rest.partition("/")
        if (
            found
            and process.isascii()
            and process.isdigit()
            and number.isascii()
            and number.isdigit()
        ):
            yield int(process), int(number)
