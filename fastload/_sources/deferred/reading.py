"""Reading: where the core finds the images of a batch: files, stores, bytes in memory, the cache.

A store's files stay mapped from batch to batch, as long as the decoder lives: mapping them anew
would fault in the same pages again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ... import _native
from ...hints import CheckCrc
from ...storage._spans import ENCODED, Spans
from .recording import Opened

if TYPE_CHECKING:
    from ..._engine.cache.opened import OpenedCache
    from ..._engine.cache.store import CacheFill
    from ..._native import _core

_NO_STAMP: Final = (0, -1, 0)  # of an image that came from no file, and of a store's


class Reading(NamedTuple):
    """Where images are read from, and what of them is to be cached.

    Attributes:
        files: what the spans refer to.
        spans, kinds, sizes: as in ``BatchRequest``.
        checksums: uint32 (n,), of records of stores; None: there are none, or not to be verified.
        summed: uint8 (n,), 1 where there is a checksum.
        always: whether checksums are verified each time.
        lasting: whether other batches read ``files`` too, so that this one must not close it.
        hits: how many come from the cache.
        cache: the cache, if there is one, and the numbers of the images in it.
        fill: what goes into the cache; None: nothing.
    """

    files: _core.Files
    spans: Spans
    kinds: np.ndarray
    sizes: np.ndarray
    checksums: np.ndarray | None = None
    summed: np.ndarray | None = None
    always: bool = False
    lasting: bool = False
    hits: int = 0
    cache: tuple[OpenedCache, np.ndarray] | None = None
    fill: CacheFill | None = None

    def to_check(self, verified: np.ndarray) -> np.ndarray | None:
        """uint8 (n,), 1 where a checksum is to be verified; None: nowhere.

        ``verified``: uint8 (n,), 1 where this process has done so.
        """
        if self.summed is None:
            return None
        check: np.ndarray = self.summed if self.always else self.summed & (1 - verified)
        return check

    def close(self) -> None:
        """Close the files, unless others read them."""
        if not self.lasting:
            self.files.close()


class Reader:
    """Makes ``Reading`` of what was opened. Thread-safe.

    Args:
        check_crc: when checksums of records are verified, as for ``EngineOptions``.
    """

    def __init__(self, check_crc: CheckCrc = "first") -> None:
        self._check_crc = check_crc
        self._numbers: dict[str, int] = {}  # of the mapped files
        self._mapped: _core.Files | None = None
        self._lock = threading.Lock()

    def __call__(self, opened: Sequence[Opened], cache: OpenedCache | None = None) -> Reading:
        """How to read these images, from ``cache`` where it has them."""
        stored = [image.stored for image in opened]
        records = stored.count(None) < len(stored)
        lasting = cache is None and all(
            record is not None and record.mapped and image.path is not None
            for record, image in zip(stored, opened)
        )
        if lasting:
            files, numbers = self._lasting([image.path or "" for image in opened])
        else:
            files, numbers = _files(opened, cache), np.arange(len(opened), dtype=np.int32)
        summed = checksums = None
        offsets, kinds = np.zeros(len(opened), np.int64), np.full(len(opened), ENCODED, np.uint8)
        if records:
            offsets[:] = [0 if record is None else record.offset for record in stored]
            kinds[:] = [ENCODED if record is None else record.kind for record in stored]
            crcs = [None if record is None else record.checksum for record in stored]
            if self._check_crc != "never" and any(crc is not None for crc in crcs):
                summed = np.array([crc is not None for crc in crcs], np.uint8)
                checksums = np.array([crc or 0 for crc in crcs], np.uint32)
        reading = Reading(
            files,
            Spans(
                file=numbers,
                offset=offsets,
                nbytes=np.array(list(map(_nbytes, opened)), np.int64),
            ),
            kinds,
            np.array([image.size for image in opened], np.int32),
            checksums,
            summed,
            self._check_crc == "always",
            lasting,
        )
        return reading if cache is None else _cached(reading, opened, cache)

    def _lasting(self, paths: Sequence[str]) -> tuple[_core.Files, np.ndarray]:
        """Mapped files, and the number of each of ``paths``."""
        by_path = self._numbers
        with self._lock:
            before = len(by_path)
            numbers = [by_path.setdefault(path, len(by_path)) for path in paths]
            if self._mapped is None or len(by_path) > before:
                self._mapped = _of_paths(list(by_path), np.ones(len(by_path), np.uint8), {})
            return self._mapped, np.array(numbers, np.int32)


def _cached(reading: Reading, opened: Sequence[Opened], cache: OpenedCache) -> Reading:
    """``reading``, from the cache where it has the images."""
    from ..._engine.cache.opened import key_of

    keys = [key_of(_cache_path(image), image.stamp, image.data) for image in opened]
    located, records = cache.find(keys, file=len(opened))
    cached, spans = located.kept, reading.spans
    assert cached is not None, "of a cache"
    summed = reading.summed
    if summed is not None:  # was verified before it was kept, perhaps in another form
        summed = summed & ~cached.view(np.uint8) & 1
    return reading._replace(
        spans=Spans(
            file=np.where(cached, located.spans.file, spans.file),
            offset=np.where(cached, located.spans.offset, spans.offset),
            nbytes=np.where(cached, located.spans.nbytes, spans.nbytes),
        ),
        kinds=np.where(cached, located.kinds, reading.kinds),
        sizes=np.where(cached[:, None], located.sizes, reading.sizes),
        summed=summed,
        hits=int(cached.sum()),
        cache=(cache, records),
        fill=cache.to_fill(cached, records, reading.sizes),
    )


def _cache_path(opened: Opened) -> str | None:
    """What names an image in the cache: its path, and of a record where it is."""
    if opened.stored is None or opened.path is None:
        return opened.path
    return f"{opened.path}\0{opened.stored}"


def _files(opened: Sequence[Opened], cache: OpenedCache | None) -> _core.Files:
    """One file for each image: its own, or its bytes; then the cache's."""
    in_memory = {
        i: np.frombuffer(image.data, np.uint8)
        for i, image in enumerate(opened)
        if image.data is not None
    }
    mapped = np.zeros(len(opened), np.uint8)
    mapped[list(in_memory)] = 1
    stamps = np.array([image.stamp or _NO_STAMP for image in opened], np.int64)
    return _of_paths([image.path or "" for image in opened], mapped, in_memory, cache, stamps)


def _of_paths(
    paths: Sequence[str],
    mapped: np.ndarray,
    in_memory: dict[int, np.ndarray],
    cache: OpenedCache | None = None,
    stamps: np.ndarray | None = None,
) -> _core.Files:
    core = _native.load()
    assert core is not None, "only the core reads"
    encoded: Sequence[str | bytes] = paths
    joined = "".join(paths)
    if not joined.isascii():
        encoded = [os.fsencode(path) for path in paths]
    files: _core.Files = core.Files(
        os.fsencode(joined),
        np.cumsum(list(map(len, encoded)), dtype=np.int64),
        mapped,
        None if cache is None else cache.arena,
        in_memory,
        stamps,
    )
    return files


def _nbytes(opened: Opened) -> int:
    if opened.data is not None:
        return len(opened.data)
    return -1 if opened.stored is None else opened.stored.nbytes
