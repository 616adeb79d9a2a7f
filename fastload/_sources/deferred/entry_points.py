"""EntryPoints: what the core remembers of JPEGs that were opened, for all workers of a loader."""

from __future__ import annotations

import functools
import mmap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ... import _native
from ..._engine.huffman_index import new_table
from ...storage._spans import RAW

if TYPE_CHECKING:
    from ..._engine.kernel import BatchRequest
    from .recording import Opened

# Images whose entry points are remembered at a time. The table takes memory as it is used.
_REMEMBERED: Final = 1 << 20

_PROBES: Final = 4  # places where an image's entry points may be


class Places(NamedTuple):
    """Where images are in the table."""

    numbers: np.ndarray  # int64 (n,); -1: there is no place for it
    identities: np.ndarray  # uint64 (n,), a hash of what was opened, never 0


class EntryPoints:
    """What the core remembers of the JPEGs that were opened: by path and stamp, or by their bytes.

    Two processes may give one place to two images, each unaware of the other. The core then drops
    entry points that do not fit the file, and a checksum is verified again: what is noted at a
    place is the identity of the image whose checksum was right.

    Attributes:
        table: the core's.
    """

    def __init__(self) -> None:
        self.table = new_table(_REMEMBERED)
        # Which image has each place, for this process and those forked from it, as the table is.
        self._tags = np.frombuffer(mmap.mmap(-1, 4 * _REMEMBERED), np.uint32)
        # The identity of the image at a place whose checksum was right, in this process. The last
        # one is for those without a place, which are verified each time.
        self._verified = np.zeros(_REMEMBERED + 1, np.uint64)

    def places(self, opened: Sequence[Opened | None]) -> Places:
        """The places of images; None has none."""
        hashes = np.array([0 if one is None else _hash(one) for one in opened], np.int64)
        found = hashes.view(np.uint64)
        numbers = (found & np.uint64(_REMEMBERED - 1)).astype(np.int64)
        for i in np.flatnonzero(self._tags[numbers] != _tags(found)).tolist():
            numbers[i] = self._number(int(found[i]))
        numbers[hashes == 0] = -1
        return Places(numbers, np.maximum(found, np.uint64(1)))

    def verified(self, places: Places) -> np.ndarray:
        """uint8 (n,), 1 where this process has found the checksum of the image to be right."""
        found: np.ndarray = (self._verified[places.numbers] == places.identities).astype(np.uint8)
        return found

    def checked(self, places: Places, batch: BatchRequest, status: np.ndarray) -> None:
        """Note which checksums of ``batch`` were right: where the core's ``status`` is 0."""
        if batch.check is not None:
            right = (batch.check == 1) & (status == 0) & (places.numbers >= 0)
            self._verified[places.numbers[right]] = places.identities[right]

    def _number(self, found: int) -> int:
        """The place of the image with this hash; -1: there is none left for it."""
        if not found:
            return -1
        tag = (found >> 32) | 1
        for probe in range(_PROBES):
            place = (found + probe) & (_REMEMBERED - 1)
            known = self._tags[place]
            if known == tag:
                return place
            if not known:
                self._tags[place] = tag
                return place
        return -1


def _tags(hashes: np.ndarray) -> np.ndarray:
    """What is kept of uint64 hashes to tell them apart: uint32, never 0."""
    tags: np.ndarray = (hashes >> np.uint64(32)).astype(np.uint32) | np.uint32(1)
    return tags


def _hash(opened: Opened) -> int:
    """What identifies an image in this process and those forked from it; 0: it has no place.

    64 bits, with a sign.
    """
    if opened.data is None:
        found = hash((opened.path, opened.stamp, opened.stored))
    elif opened.stored is not None and opened.stored.kind == RAW:
        return 0  # pixels have no entry points
    else:
        core = _native.load()
        assert core is not None, "entry points are the core's"
        found = hash((len(opened.data), core.crc32c(opened.data), opened.stored))
    return found or 1


@functools.cache
def entry_points() -> EntryPoints:
    """Those of this process, and of the workers that it forks after the first call."""
    return EntryPoints()
