"""The memory file of a cache: a header, a table of the records kept, and their bytes.

This module makes the files and finds those of other processes; the core reads and fills them.
``_native/io/arena.h`` says who may write what, and why no lock is needed.

All numbers are little-endian. The header's, 8 bytes each: magic, number of records, where data
begins, size of the file; at 64, 128 and 192: where free room begins, whether a record found none,
how many records are kept. The table's, 16 bytes a record: the place (0: nothing, 1: claimed, else
the offset in the lower 48 bits, the kind in two bits above, then whether the bytes are not the
store's own), 4 bytes of length, 2 of width, 2 of height.

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
import fcntl
import hashlib
import mmap
import os
import re
import socket
import struct
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ... import _native
from ..._base import callers
from ..._base.byte_sizes import decimal
from ...errors import UsageError
from ...storage.base import Store

if TYPE_CHECKING:
    from ..._native import _core

_MAGIC = b"FLARENA1"
_HEADER = 4096
_ENTRY_NBYTES = 16
_USED, _FULL = 8, 16  # positions in the header, in words

_WAIT_S = 10.0
_STEP_S = 0.005


def create(records: int, limit: int, keys_nbytes: int = 0) -> int:
    """The descriptor of a new memory file of at most ``limit`` bytes for a store of ``records``.

    ``keys_nbytes`` are set aside behind the table, from ``keys_begin`` on, all zero.

    Its pages take memory only when they are written, those of the table too. It has no name in any
    file system, and is freed when the last process that holds it ends.
    """
    if not hasattr(os, "memfd_create"):
        raise UsageError("cache= needs memory files (memfd_create), which Linux has; leave it out")
    begin = _data_begin(records, keys_nbytes)
    size = max(limit // mmap.PAGESIZE * mmap.PAGESIZE, begin)
    fd = os.memfd_create("fastload-cache", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        header = bytearray(_HEADER)
        struct.pack_into("<8s3Q", header, 0, _MAGIC, records, begin, size)
        struct.pack_into("<Q", header, 8 * _USED, begin)
        struct.pack_into("<Q", header, 8 * _FULL, size == begin)
        os.pwrite(fd, header, 0)
        # A process that reads a mapped file is killed if the file has been truncated.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except BaseException:
        os.close(fd)
        raise
    return fd


def keys_begin(records: int) -> int:
    """Where the bytes that ``create`` sets aside begin."""
    return _HEADER + records * _ENTRY_NBYTES


def _data_begin(records: int, keys_nbytes: int) -> int:
    return -(-(keys_begin(records) + keys_nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE


def fits(fd: int, records: int, keys_nbytes: int = 0) -> bool:
    """Whether ``fd`` is a memory file of this user for a store of ``records``.

    ``keys_nbytes``: as for ``create``.
    """
    try:
        state = os.fstat(fd)
        if state.st_uid != os.geteuid() or state.st_size < _HEADER:
            return False
        magic, count, begin, size = struct.unpack("<8s3Q", os.pread(fd, 32, 0))
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        return False  # not a memory file
    return bool(
        (magic, count, size) == (_MAGIC, records, state.st_size)
        and begin == _data_begin(records, keys_nbytes)
        and seals & fcntl.F_SEAL_SHRINK
    )


class CacheFile:
    """The memory file of a cache, open as long as this lives.

    Args:
        kind: as ``FastLoader(cache=...)``: "shm" shares it with other processes of this user, "ram"
            locks what is put there.
        records: how many it has places for.
        limit: bytes at most; with "shm" the first process sets it.
        name: with "shm", gives the name of what is kept, the same in all processes that are to
            share it; hexadecimal.
        keys_nbytes: as for ``create``.

    Attributes:
        fd, limit, arena: its descriptor, the bytes that it may have, and the records.
    """

    def __init__(
        self, kind: str, records: int, limit: int, name: Callable[[], str], keys_nbytes: int = 0
    ) -> None:
        self._locks = kind == "ram"
        self._prefix = ""  # of the names that announce it; "": it is not shared
        self._announced: tuple[int, Callable[[], object]] | None = None  # by whom; what ends it
        if kind == "shm":
            self.fd = self._shared(name(), records, limit, keys_nbytes)
        else:
            self.fd = create(records, limit, keys_nbytes)
        weakref.finalize(self, os.close, self.fd)
        self.limit = os.fstat(self.fd).st_size
        core = _native.required("cache= needs the native core")
        self.arena: _core.Arena = core.Arena(self.fd, lock=self._locks)

    def _shared(self, name: str, records: int, limit: int, keys_nbytes: int) -> int:
        """The descriptor of a file that another process has, or of a new one."""
        prefix = f"fastload-cache/{os.geteuid()}/{name}"
        turn = _turn(prefix)
        if turn is None:
            warnings.warn(
                f"another process has been looking for a shared cache for {_WAIT_S:.0f} s: this "
                "process keeps a cache of its own",
                RuntimeWarning,
                stacklevel=callers.stacklevel(),
            )
            return create(records, limit, keys_nbytes)
        with turn:
            self._prefix, shared_fd = prefix, _find(prefix, records, keys_nbytes)
            self.fd = create(records, limit, keys_nbytes) if shared_fd is None else shared_fd
            self.announce()
            return self.fd

    def announce(self) -> None:
        """Let other processes find what they may share; again after a fork."""
        if not self._prefix or (self._announced and self._announced[0] == os.getpid()):
            return
        if self._announced:
            self._announced[1]()  # this process's copy of its parent's
        name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        name.bind(f"\0{self._prefix}/{os.getpid()}/{self.fd}")
        self._announced = os.getpid(), weakref.finalize(self, name.close)

    def describe(self, records: str, source: str) -> str:
        """How full it is, for ``explain()``.

        ``records`` says of what; ``source`` where the records are read from that find no room.
        """
        arena = self.arena
        text = f"{arena.count} {records}, {decimal(arena.used)} of at most {decimal(self.limit)}"
        if self._locks and arena.count:
            text += (
                ", locked"
                if arena.locked >= arena.used - 64 * arena.count
                else f", {decimal(arena.locked)} of them locked (RLIMIT_MEMLOCK allows no more)"
            )
        if arena.full:
            text += f"; the rest does not fit and is read from {source}"
        return text


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


def _find(prefix: str, records: int, keys_nbytes: int) -> int | None:
    """A descriptor of a memory file that another process announced, or None."""
    for process, number in _announcements(prefix):
        try:
            fd = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue  # it has ended, or its numbers belong to another namespace
        if fits(fd, records, keys_nbytes):
            return fd
        os.close(fd)
    return None


def _announcements(prefix: str) -> list[tuple[str, str]]:
    """(process, descriptor) of every announcement."""
    try:
        with open("/proc/net/unix", errors="replace") as table:
            names = table.read()
    except OSError:
        return []
    return re.findall(rf" @{re.escape(prefix)}/([0-9]+)/([0-9]+)$", names, re.MULTILINE)
