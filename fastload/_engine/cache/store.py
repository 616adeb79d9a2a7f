"""A store in front of a store, which keeps the records that were read in memory.

A record's span leads into the inner store until the record is kept, and into the memory file from
the next batch on; its kind says what was kept. Engines need no other code path for it. They fill
the cache while they decode: the thread that decodes a record copies its bytes, or turns them into a
DCT record or pixels.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, overload

import numpy as np
from typing_extensions import override

from ..._transforms import sample_params
from ..._transforms.geometry.crop_geometry import Geometry, Refused
from ..._transforms.sample_params import SampleParams
from ...storage._spans import Held
from ...storage.base import Located, Spans, Store
from ...storage.wrapped import WrappedStore
from .memory_file import CacheFile, fingerprint
from .prefix import Placed, Prefix, merged

if TYPE_CHECKING:
    from ..._native import _core
    from ..._transforms.geometry.draws import Numbers
    from ..._transforms.geometry.geometry_log import GeometryLog
    from ..._transforms.plan import Plan

# What a record is kept as; batch/cache_fill.h numbers them so.
BYTES, DCT_RECORDS, PIXELS = 0, 1, 2

FORMS = {BYTES: "bytes", DCT_RECORDS: "DCT records", PIXELS: "pixels"}


class CacheFill(NamedTuple):
    """What of a batch goes into the cache.

    Attributes:
        wanted: uint8 (n,), 1 where a sample does.
        placed: with PIXELS, what is stored of each sample (where it is not wanted: anything).
    """

    wanted: np.ndarray
    placed: Placed | None

    def part(self, which: slice | np.ndarray) -> CacheFill:
        """Of some of the samples."""
        placed = None if self.placed is None else self.placed.part(which)
        return CacheFill(wanted=self.wanted[which], placed=placed)


class CachedStore(WrappedStore):
    """``inner`` with records in memory. See the module.

    ``asked_limit`` is the limit that the user gave, if any: processes share only with the same one.

    Attributes:
        form: BYTES, DCT_RECORDS or PIXELS.
        prefix: with PIXELS, the operations that were applied to them.
        file: the memory file; ``arena`` is its.
    """

    def __init__(
        self,
        inner: Store,
        stores: Sequence[Store],
        kind: str,
        form: int,
        prefix: Prefix | None,
        limit: int,
        asked_limit: int | None = None,
    ) -> None:
        self._inner = inner
        self._describe(inner)
        self.format = "cache"
        self.form, self.prefix = form, prefix
        self.file = CacheFile(kind, len(inner), limit, lambda: fingerprint(stores, asked_limit))
        self.arena = self.file.arena
        self._number = len(inner.files)

    @property
    def inner(self) -> Store:
        """The store that is cached, which errors name."""
        return self._inner

    @property
    def files(self) -> Sequence[str]:
        """The inner store's files, and the memory file as this process can open it."""
        return _OneMore(self.inner.files, f"/proc/self/fd/{self.file.fd}")

    def file_table(self) -> tuple[bytes, np.ndarray]:
        paths, ends = self.inner.file_table()
        paths += os.fsencode(self.files[self._number])
        return paths, np.append(ends, len(paths))

    def mapped_files(self) -> np.ndarray:
        return np.append(self.inner.mapped_files(), np.uint8(self.mapped))

    @override
    def locate(self, indices: np.ndarray) -> Located:
        """At one moment: the whole answer agrees on which records are kept."""
        located = look_up(self.arena, indices, self._number)
        assert located.kept is not None and located.converted is not None, "look_up knows"
        missing = np.flatnonzero(~located.kept)
        if not len(missing):
            return located
        inner = self.inner.locate(np.asarray(indices, np.int64)[missing])
        spans, theirs = located.spans, inner.spans
        spans.file[missing], spans.offset[missing] = theirs.file, theirs.offset
        spans.nbytes[missing], located.kinds[missing] = theirs.nbytes, inner.kinds
        located.sizes[missing], located.converted[missing] = inner.sizes, False
        spans = dataclasses.replace(spans, held=theirs.held, memory=theirs.memory)
        return located._replace(spans=spans)

    def to_fill(self, records: np.ndarray, located: Located) -> CacheFill | None:
        """What of a batch goes into the cache, or None where there is nothing or no room."""
        if located.kept is None or located.kept.all() or self.arena.full:
            return None
        placed = None if self.prefix is None else self.prefix.place(located.sizes, records)
        missing = ~located.kept
        if placed is not None:  # the table has 16 bits for a side
            missing &= placed.window[:, 2:].max(axis=1, initial=0) <= 0xFFFF
        return CacheFill(wanted=missing.astype(np.uint8), placed=placed)

    def draw(
        self,
        plan: Plan,
        numbers: Numbers,
        located: Located,
        fill: CacheFill | None,
        log: GeometryLog | None,
    ) -> tuple[np.ndarray, Geometry, SampleParams | None]:
        """The sizes of a batch's images, their geometry, and what follows it.

        Where there are pixels, or ``fill`` is about to put some here, the first operations are
        done already.
        """

        def drawn(
            plan: Plan, sizes: np.ndarray, numbers: Numbers = numbers
        ) -> tuple[Geometry, SampleParams | None]:
            return sample_params.draw(plan, sizes, numbers, log)

        sizes, prefix, done = located.sizes, self.prefix, located.kept
        if prefix is None or done is None:
            return sizes, *drawn(plan, sizes)
        if fill is not None and fill.placed is not None:
            filled = fill.wanted.astype(bool)
            sizes, done = sizes.copy(), done | filled
            sizes[filled] = fill.placed.window[filled, 2:]
        if not prefix.ops or not done.any():
            return sizes, *drawn(plan, sizes)
        if done.all():
            return sizes, *drawn(prefix.rest(plan), sizes)
        draws = []
        for which, rest_of_plan in ((done, prefix.rest(plan)), (~done, plan)):
            try:
                draws.append(drawn(rest_of_plan, sizes[which], numbers.part(which)))
            except Refused as refused:
                raise refused.of(int(np.flatnonzero(which)[refused.position])) from None
        (first, _), (second, _) = draws
        if (first.out_h, first.out_w) != (second.out_h, second.out_w):
            # Images of several sizes: raise what a batch without a cache raises.
            return sizes, *drawn(plan, self.inner.sizes(numbers.indices))
        return sizes, *merged(done, draws[0], draws[1])

    def describe(self) -> str:
        """How full it is, for ``explain()``."""
        records = f"of {len(self)} records kept as {FORMS[self.form]}"
        return self.file.describe(records, "the store")

    def spans(self, indices: np.ndarray) -> Spans:
        return self.locate(indices).spans

    def places(self, indices: np.ndarray) -> Spans:
        """As ``spans``, but with lengths of 0 for records that are kept."""
        missing = self._missing(indices)
        spans = self.inner.places(indices)
        return dataclasses.replace(spans, nbytes=np.where(missing, spans.nbytes, 0))

    def shown(self, file: int) -> str:
        return self.files[file] if file == self._number else self.inner.shown(file)

    @override
    def ahead(self, indices: np.ndarray, *, urgency: float, blocks: bool = False) -> Held | None:
        """Of records that are not kept."""
        missing = indices[self._missing(indices)]
        return self.inner.ahead(missing, urgency=urgency, blocks=blocks)

    def _missing(self, indices: np.ndarray) -> np.ndarray:
        """bool (n,): which records are not kept."""
        missing: np.ndarray = look_up(self.arena, indices, self._number).spans.offset < 0
        return missing

    def kinds(self, indices: np.ndarray) -> np.ndarray:
        return self.locate(indices).kinds

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Where a record is kept, the size of the kept image."""
        return self.locate(indices).sizes

    @override
    def read(self, indices: np.ndarray) -> list[bytes]:
        """In the form that ``kinds`` says."""
        return super().read(indices) if self.indirect is not None else Store.read(self, indices)


def look_up(arena: _core.Arena, numbers: np.ndarray, file: int) -> Located:
    """What ``arena`` has of the records ``numbers``, as file ``file``; of others anything."""
    n = len(numbers)
    offset, nbytes = np.empty(n, np.int64), np.empty(n, np.int64)
    kinds, sizes = np.empty(n, np.uint8), np.empty((n, 2), np.int32)
    converted = np.zeros(n, np.uint8)
    numbers = np.ascontiguousarray(numbers, np.int64)
    arena.find(numbers, offset, nbytes, kinds, sizes, converted)
    return Located(
        spans=Spans(file=np.full(n, file, np.int32), offset=offset, nbytes=nbytes),
        kinds=kinds,
        sizes=sizes,
        kept=offset >= 0,
        converted=converted.view(bool),
    )


class _OneMore(Sequence[str]):
    """A sequence with one more item at its end, not copied."""

    def __init__(self, items: Sequence[str], last: str) -> None:
        self._items, self._last = items, last

    def __len__(self) -> int:
        return len(self._items) + 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        return self._last if index == len(self._items) else self._items[index]
