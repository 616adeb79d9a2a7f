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

_PROBES: Final = 4  # entries of the table that an image may have


class TableEntries(NamedTuple):
    """The entries of images in the table."""

    numbers: np.ndarray  # int64 (n,); -1: it has none
    identities: np.ndarray  # uint64 (n,), a hash of what was opened, never 0


class EntryPoints:
    """What the core remembers of the JPEGs that were opened: by path and stamp, or by their bytes.

    Two processes may give one entry to two images, each unaware of the other. The core then drops
    entry points that do not fit the file, and verifies the checksum again: what is noted for an
    entry is the identity of the image whose checksum was right.

    Attributes:
        table: the core's.
    """

    def __init__(self) -> None:
        self.table = new_table(_REMEMBERED)
        # Which image has each entry, for this process and those forked from it, as the table is.
        self._tags = np.frombuffer(mmap.mmap(-1, 4 * _REMEMBERED), np.uint32)
        # By entry, the identity of the image whose checksum was right, in this process. The last
        # one is for images without an entry, which are verified each time.
        self._verified = np.zeros(_REMEMBERED + 1, np.uint64)

    def entries(self, opened: Sequence[Opened | None]) -> TableEntries:
        """The entries of images; None has none."""
        hashes = np.array([0 if image is None else _hash(image) for image in opened], np.int64)
        unsigned = hashes.view(np.uint64)
        numbers = (unsigned & np.uint64(_REMEMBERED - 1)).astype(np.int64)
        for i in np.flatnonzero(self._tags[numbers] != _tags(unsigned)).tolist():
            numbers[i] = self._number(int(unsigned[i]))
        numbers[hashes == 0] = -1
        return TableEntries(numbers, np.maximum(unsigned, np.uint64(1)))

    def verified(self, entries: TableEntries) -> np.ndarray:
        """uint8 (n,), 1 where this process has found the checksum of the image to be right."""
        right: np.ndarray = (self._verified[entries.numbers] == entries.identities).astype(np.uint8)
        return right

    def checked(self, entries: TableEntries, batch: BatchRequest, status: np.ndarray) -> None:
        """Note which checksums of ``batch`` were right: where the core's ``status`` is 0."""
        if batch.check is not None:
            right = (batch.check == 1) & (status == 0) & (entries.numbers >= 0)
            self._verified[entries.numbers[right]] = entries.identities[right]

    def _number(self, image_hash: int) -> int:
        """The number of the image's entry, by its hash; -1: there is none left for it."""
        if not image_hash:
            return -1
        tag = (image_hash >> 32) | 1
        for probe in range(_PROBES):
            number = (image_hash + probe) & (_REMEMBERED - 1)
            stored_tag = self._tags[number]
            if stored_tag == tag:
                return number
            if not stored_tag:
                self._tags[number] = tag
                return number
        return -1


def _tags(hashes: np.ndarray) -> np.ndarray:
    """What is kept of uint64 hashes to tell them apart: uint32, never 0."""
    tags: np.ndarray = (hashes >> np.uint64(32)).astype(np.uint32) | np.uint32(1)
    return tags


def _hash(opened: Opened) -> int:
    """What identifies an image in this process and those forked from it; 0: it gets no entry.

    64 bits, with a sign.
    """
    if opened.data is None:
        image_hash = hash((opened.path, opened.stamp, opened.stored))
    elif opened.stored is not None and opened.stored.kind == RAW:
        return 0  # pixels have no entry points
    else:
        core = _native.load()
        assert core is not None, "entry points are the core's"
        image_hash = hash((len(opened.data), core.crc32c(opened.data), opened.stored))
    return image_hash or 1


@functools.cache
def entry_points() -> EntryPoints:
    """The entry points of this process, and of workers that it forks after the first call."""
    return EntryPoints()
