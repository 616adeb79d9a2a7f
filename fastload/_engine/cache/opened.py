"""The cache of the files that a user's Dataset opens.

Such a dataset is no store: which images there are shows only when they are opened. So a record's
number is found by what identifies the image: its path, size, time of change and inode, or its
bytes. A changed file is another image. Numbers and records lie in one memory file, so that threads,
forked workers and, with "shm", all processes of the user agree on them.

A number is never given up. If an image finds no number, or no room, it is not kept.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
from collections.abc import Sequence

import numpy as np

from ..._base.fork_lock import ForkLock
from ...storage.base import Located
from .memory_file import CacheFile, keys_begin
from .prefix import Placed
from .store import FORMS, PIXELS, CacheFill, look_up

_KEY_NBYTES = 16
_FREE = bytes(_KEY_NBYTES)
_PROBES = 16  # slots where an image may be
_SPARE = 4  # slots for each image that is expected
_FEWEST, _MOST = 1 << 12, 1 << 24  # slots


def key_of(path: str | None, stamp: tuple[int, int, int] | None, data: bytes | None) -> bytes:
    """What identifies an image: 16 bytes, never all zero."""
    if data is None:
        text = f"{path}\0{stamp}".encode(errors="surrogateescape")
        return hashlib.blake2b(text, digest_size=_KEY_NBYTES, person=b"file").digest()
    return hashlib.blake2b(data, digest_size=_KEY_NBYTES, person=b"bytes").digest()


class OpenedCache:
    """Images in memory, found by what identifies them. See the module.

    Attributes:
        form: what of an image is kept: BYTES, DCT_RECORDS or PIXELS.
        file: the memory file; ``arena`` is its.

    Args:
        kind: as ``FastLoader(cache=...)``.
        limit: bytes at most; with "shm" the first process sets it.
        asked_limit: the limit that the user gave, if any: processes share only with the same one.
        images: how many are expected.
    """

    def __init__(
        self, kind: str, form: int, limit: int, asked_limit: int | None, images: int
    ) -> None:
        self.form = form
        slots = _FEWEST
        while slots < min(_SPARE * images, _MOST):
            slots *= 2
        self._slots = slots
        keys_nbytes = slots * _KEY_NBYTES
        name = repr(("opened", asked_limit, slots)).encode()
        self.file = CacheFile(
            kind,
            slots,
            limit,
            lambda: hashlib.blake2b(name, digest_size=16).hexdigest(),
            keys_nbytes,
        )
        self.arena = self.file.arena
        begin = keys_begin(slots)
        self._whole = mmap.mmap(self.file.fd, begin + keys_nbytes)
        self._keys = memoryview(self._whole)[begin:]
        self._lock = ForkLock()

    def number(self, key: bytes) -> int:
        """The number of an image; -1: there is none left for it."""
        slot = self._slot(key)
        if slot is not None:
            return slot
        with self._lock:
            # Between processes; it does not exclude other threads of this one.
            fcntl.lockf(self.file.fd, fcntl.LOCK_EX)
            try:
                slot = self._slot(key)
                if slot is None:
                    slot = next(free for free in self._probed(key) if self._key(free) == _FREE)
                    self._keys[slot * _KEY_NBYTES : (slot + 1) * _KEY_NBYTES] = key
                return slot
            finally:
                fcntl.lockf(self.file.fd, fcntl.LOCK_UN)

    def _probed(self, key: bytes) -> Sequence[int]:
        first = int.from_bytes(key[:8], "little")
        return [(first + n) & (self._slots - 1) for n in range(_PROBES)]

    def _key(self, slot: int) -> bytes:
        return bytes(self._keys[slot * _KEY_NBYTES : (slot + 1) * _KEY_NBYTES])

    def _slot(self, key: bytes) -> int | None:
        """Its number; -1: all of its slots are taken; None: it has none yet."""
        # A key that another process is just writing may be read in half, and passes for another.
        for slot in self._probed(key):
            taken_by = self._key(slot)
            if taken_by == key:
                return slot
            if taken_by == _FREE:
                return None
        return -1

    def find(self, keys: Sequence[bytes], file: int) -> tuple[Located, np.ndarray]:
        """Where images are kept (of others anything), and their numbers, int64 (n,); -1: none.

        ``file``: the number of the memory file in the spans.
        """
        records = np.array([self.number(key) for key in keys], np.int64)
        located = look_up(self.arena, np.maximum(records, 0), file)
        assert located.kept is not None, "look_up knows"
        return located._replace(kept=located.kept & (records >= 0)), records

    def to_fill(self, kept: np.ndarray, records: np.ndarray, sizes: np.ndarray) -> CacheFill | None:
        """What of a batch is to be kept; None: nothing, or there is no room.

        ``kept`` and ``records`` are of ``find``, ``sizes``, int32 (n, 2), of the images.
        """
        missing = ~kept & (records >= 0)
        if self.arena.full or not missing.any():
            return None
        placed = None
        if self.form == PIXELS:  # the whole image; the table has 16 bits for a side
            missing &= sizes.max(axis=1, initial=0) <= 0xFFFF
            whole = np.concatenate([np.zeros_like(sizes), sizes], axis=1)
            placed = Placed(source=sizes, box=whole, resized=sizes, window=whole)
        return CacheFill(wanted=missing.astype(np.uint8), placed=placed)

    def describe(self) -> str:
        """How full it is, for ``explain()``."""
        return self.file.describe(f"opened images kept as {FORMS[self.form]}", "the files")
