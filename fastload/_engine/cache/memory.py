"""The memory file of a cache: a header, a table of the records kept, and their bytes.

This module makes the files; the core reads and fills them. ``_native/io/arena.h`` says who may
write what, and why no lock is needed.

All numbers are little-endian. The header's, 8 bytes each: magic, number of records, where data
begins, size of the file; at 64, 128 and 192: where free room begins, whether a record found none,
how many records are kept. The table's, 16 bytes a record: the place (0: nothing, 1: claimed, else
the offset in the lower 48 bits, the kind in two bits above, then whether the bytes are not the
store's own), 4 bytes of length, 2 of width, 2 of height.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from typing import TYPE_CHECKING

from ... import _native
from ...errors import UsageError

if TYPE_CHECKING:
    from ..._native import _core

_MAGIC = b"FLARENA1"
_HEADER = 4096
_ENTRY_NBYTES = 16
_USED, _FULL = 8, 16  # positions in the header, in words


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
    return _rounded(keys_begin(records) + keys_nbytes, mmap.PAGESIZE)


def fits(fd: int, records: int, keys_nbytes: int = 0) -> bool:
    """Whether ``fd`` is a memory file of this user for a store of ``records``.

    ``keys_nbytes``: as for ``create``.
    """
    state = os.fstat(fd)
    if state.st_uid != os.geteuid() or state.st_size < _HEADER:
        return False
    magic, count, begin, size = struct.unpack("<8s3Q", os.pread(fd, 32, 0))
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        return False  # not a memory file
    return bool(
        (magic, count, size) == (_MAGIC, records, state.st_size)
        and begin == _data_begin(records, keys_nbytes)
        and seals & fcntl.F_SEAL_SHRINK
    )


def open_arena(fd: int, *, lock: bool) -> _core.Arena:
    """The arena in a memory file. ``lock``: lock what is put there in memory."""
    arena: _core.Arena = _native.required("cache= needs the native core").Arena(fd, lock=lock)
    return arena


def _rounded(nbytes: int, step: int) -> int:
    return -(-nbytes // step) * step
