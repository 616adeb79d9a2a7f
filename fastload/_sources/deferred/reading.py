"""Reading: where the core finds the images of a batch: files, bytes in memory, or the cache."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ... import _native
from ..._engine.cache.opened import key_of
from ...storage.base import ENCODED, Spans
from .recording import Opened

if TYPE_CHECKING:
    from ..._engine.cache.opened import OpenedCache
    from ..._engine.cache.store import CacheFill
    from ..._engine.native import Kernel
    from ..._native import _core


@dataclasses.dataclass(frozen=True)
class Reading:
    """Where images are read from, and what of them is to be cached.

    Attributes:
        files: what the spans refer to; the caller closes them.
        spans, kinds, sizes: as in ``BatchRequest``.
        hits: how many come from the cache.
        cache: the cache, if there is one, and the numbers of the images in it.
        fill: what goes into the cache; None: nothing.
    """

    files: _core.Files
    spans: Spans
    kinds: np.ndarray
    sizes: np.ndarray
    hits: int = 0
    cache: tuple[OpenedCache, np.ndarray] | None = None
    fill: CacheFill | None = None

    def filling(self, kernel: Kernel) -> _core.CacheFill | None:
        """``fill`` as the core takes it."""
        if self.cache is None or self.fill is None:
            return None
        core, placed = _native.load(), self.fill.placed
        assert core is not None, "there is no kernel without the core"
        cache, records = self.cache
        made: _core.CacheFill = core.CacheFill(
            cache.arena,
            cache.form,
            records,
            self.fill.wanted,
            placed and (placed.source, placed.box, placed.resized, placed.window),
            order=kernel.order,
        )
        return made


def reading(opened: Sequence[Opened], cache: OpenedCache | None = None) -> Reading:
    """How to read these images, from ``cache`` where it has them."""
    core = _native.load()
    assert core is not None, "only the core reads"
    n = len(opened)
    paths = [os.fsencode(one.path) if one.path is not None else b"" for one in opened]
    in_memory = {
        i: np.frombuffer(one.data, np.uint8) for i, one in enumerate(opened) if one.data is not None
    }
    mapped = np.zeros(n, np.uint8)
    mapped[list(in_memory)] = 1
    files: _core.Files = core.Files(
        b"".join(paths),
        np.cumsum([len(path) for path in paths], dtype=np.int64),
        mapped,
        None if cache is None else cache.arena,
        in_memory,
    )
    spans = Spans(
        file=np.arange(n, dtype=np.int32),
        offset=np.zeros(n, np.int64),
        nbytes=np.array([-1 if one.data is None else len(one.data) for one in opened], np.int64),
    )
    kinds = np.full(n, ENCODED, np.uint8)
    sizes = np.array([one.size for one in opened], np.int32)
    if cache is None:
        return Reading(files, spans, kinds, sizes)
    found = cache.find([key_of(one.path, one.stamp, one.data) for one in opened], file=n)
    fill = cache.to_fill(found, sizes)
    kept = found.kept
    spans = Spans(
        file=np.where(kept, found.spans.file, spans.file),
        offset=np.where(kept, found.spans.offset, spans.offset),
        nbytes=np.where(kept, found.spans.nbytes, spans.nbytes),
    )
    return Reading(
        files,
        spans,
        np.where(kept, found.kinds, kinds),
        np.where(kept[:, None], found.sizes, sizes),
        int(kept.sum()),
        (cache, found.records),
        fill,
    )
