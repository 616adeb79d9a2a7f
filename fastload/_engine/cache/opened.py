"""The cache of the files that a user's Dataset opens.

Such a dataset is no store: which images there are shows only when they are opened. So a record's
number is found by what identifies the image: its path, size, time of change and inode, or its
bytes. A changed file is another image. Numbers and records lie in one memory file, so that threads,
forked workers and, with "shm", all processes of the user agree on them.

A number is never given up. If an image finds no number, or no room, it is not kept.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import mmap
from collections.abc import Sequence

import numpy as np

from ..._base.fork_lock import ForkLock
from ...storage.base import Spans
from . import memory
from .prefix import Placed
from .share import CacheFile
from .store import FORMS, PIXELS, CacheFill, in_words

_KEY_NBYTES = 16
_FREE = bytes(_KEY_NBYTES)
_PROBES = 16  # places where an image's number may be
_SPARE = 4  # places for each image that is expected
_FEWEST, _MOST = 1 << 12, 1 << 24  # places


def key_of(path: str | None, stamp: tuple[int, int, int] | None, data: bytes | None) -> bytes:
    """What identifies an image: 16 bytes, never all zero."""
    if data is None:
        text = f"{path}\0{stamp}".encode(errors="surrogateescape")
        return hashlib.blake2b(text, digest_size=_KEY_NBYTES, person=b"file").digest()
    return hashlib.blake2b(data, digest_size=_KEY_NBYTES, person=b"bytes").digest()


@dataclasses.dataclass(frozen=True)
class Found:
    """Where images are read from.

    Attributes:
        kept: bool (n,): they are in the memory file.
        spans, kinds, sizes: where they are kept; elsewhere anything.
        records: int64 (n,): their numbers; -1: none.
    """

    kept: np.ndarray
    spans: Spans
    kinds: np.ndarray
    sizes: np.ndarray
    records: np.ndarray


class OpenedCache:
    """Images in memory, found by what identifies them. See the module.

    Attributes:
        form: what of an image is kept: BYTES, DCT_RECORDS or PIXELS.
        file: the memory file.
        limit, arena: of that file.

    Args:
        kind: as ``FastLoader(cache=...)``.
        form: of its records.
        limit: bytes at most; with "shm" the first process sets it.
        asked: the limit that the user gave, if any: processes share only with the same one.
        images: how many are expected.
    """

    def __init__(self, kind: str, form: int, limit: int, asked: int | None, images: int) -> None:
        self.kind, self.form = kind, form
        places = _FEWEST
        while places < min(_SPARE * images, _MOST):
            places *= 2
        self._places = places
        keys_nbytes = places * _KEY_NBYTES
        name = repr(("opened", asked, places)).encode()
        self.file = CacheFile(
            kind,
            places,
            limit,
            lambda: hashlib.blake2b(name, digest_size=16).hexdigest(),
            keys_nbytes,
        )
        self.limit, self.arena = self.file.limit, self.file.arena
        begin = memory.keys_begin(places)
        self._whole = mmap.mmap(self.file.fd, begin + keys_nbytes)
        self._keys = memoryview(self._whole)[begin:]
        self._lock = ForkLock()

    def number(self, key: bytes) -> int:
        """The number of an image; -1: there is none left for it."""
        found = self._known(key)
        if found is not None:
            return found
        with self._lock:
            # Between processes; it does not exclude other threads of this one.
            fcntl.lockf(self.file.fd, fcntl.LOCK_EX)
            try:
                found = self._known(key)
                if found is None:
                    found = next(place for place in self._probed(key) if self._at(place) == _FREE)
                    self._keys[found * _KEY_NBYTES : (found + 1) * _KEY_NBYTES] = key
                return found
            finally:
                fcntl.lockf(self.file.fd, fcntl.LOCK_UN)

    def _probed(self, key: bytes) -> Sequence[int]:
        first = int.from_bytes(key[:8], "little")
        return [(first + n) & (self._places - 1) for n in range(_PROBES)]

    def _at(self, place: int) -> bytes:
        return bytes(self._keys[place * _KEY_NBYTES : (place + 1) * _KEY_NBYTES])

    def _known(self, key: bytes) -> int | None:
        """Its number; -1: all of its places are taken; None: it has none yet."""
        # A key that another process is just writing may be read in half, and passes for another.
        for place in self._probed(key):
            there = self._at(place)
            if there == key:
                return place
            if there == _FREE:
                return None
        return -1

    def find(self, keys: Sequence[bytes], file: int) -> Found:
        """Look up images. ``file``: the number of the memory file in the spans."""
        n = len(keys)
        records = np.array([self.number(key) for key in keys], np.int64)
        offset, nbytes = np.empty(n, np.int64), np.empty(n, np.int64)
        kinds, sizes = np.empty(n, np.uint8), np.empty((n, 2), np.int32)
        converted = np.empty(n, np.uint8)
        self.arena.find(np.maximum(records, 0), offset, nbytes, kinds, sizes, converted)
        return Found(
            kept=(offset >= 0) & (records >= 0),
            spans=Spans(file=np.full(n, file, np.int32), offset=offset, nbytes=nbytes),
            kinds=kinds,
            sizes=sizes,
            records=records,
        )

    def to_fill(self, found: Found, sizes: np.ndarray) -> CacheFill | None:
        """What of a batch is to be kept; None: nothing, or there is no room.

        ``sizes``: int32 (n, 2), of the images.
        """
        wanted = ~found.kept & (found.records >= 0)
        if self.arena.full or not wanted.any():
            return None
        placed = None
        if self.form == PIXELS:  # the whole image; the table has 16 bits for a side
            wanted &= sizes.max(axis=1, initial=0) <= 0xFFFF
            whole = np.concatenate([np.zeros_like(sizes), sizes], axis=1)
            placed = Placed(source=sizes, box=whole, resized=sizes, window=whole)
        return CacheFill(wanted=wanted.astype(np.uint8), placed=placed)

    def describe(self) -> str:
        """How full it is, for ``explain()``."""
        text = (
            f"{self.arena.count} opened images kept as {FORMS[self.form]}, "
            f"{in_words(self.arena.used)} of at most {in_words(self.limit)}"
        )
        if self.arena.full:
            text += "; the rest does not fit and is read from the files"
        return text
