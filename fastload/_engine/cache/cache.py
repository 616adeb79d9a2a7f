"""``FastLoader(..., cache=...)``: what a loader keeps in memory between epochs.

``store.py`` is the cache of a store, ``opened.py`` that of the files which a user's Dataset opens.
Records are kept in the order in which they come until the limit
is reached, and never evicted: an epoch reads each record once, so the record that was used longest
ago is the next one to be needed.

Loaders over one dataset share a cache. Threads and forked children fill and read it together
(``_native/io/arena.h``); with "shm" all processes of the user do (``memory_file.py``).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import get_args

from ... import _native
from ..._base import byte_sizes
from ..._base.machine import memory, ranks
from ..._transforms.plan import Plan, Views
from ...errors import UsageError
from ...hints import CacheKind
from ...storage.base import Store
from ...storage.memory import gathers
from ..registry import EngineKind, is_torch
from .opened import OpenedCache
from .prefix import Prefix
from .store import BYTES, DCT_RECORDS, PIXELS, CachedStore

KINDS = get_args(CacheKind)

# Of the memory that is available when the cache is made: the training gets the other half.
_SHARE = 0.5

_caches: weakref.WeakValueDictionary[tuple[object, ...], CachedStore] = (
    weakref.WeakValueDictionary()
)


class Cache:
    """One loader's cache: made when it first iterates, deleted with the loaders that use it.

    A pickled loader does not take it along.

    Args:
        kind: as ``FastLoader(cache=...)``.
        limit: bytes at most, the table of records included; None: half of what is available.
    """

    def __init__(self, kind: CacheKind, limit: int | None) -> None:
        self._kind, self._limit = kind, limit
        self._store: CachedStore | None = None
        self._opened: OpenedCache | None = None

    @classmethod
    def of(
        cls, cache: CacheKind | None, cache_limit: int | str | None, engine: str
    ) -> Cache | None:
        """The cache that these arguments of FastLoader ask for, or None.

        Raises:
            UsageError: arguments that contradict each other.
        """
        if cache is None:
            if cache_limit is not None:
                raise UsageError(
                    f"cache_limit={cache_limit!r} needs cache={'|'.join(KINDS)}: it bounds what "
                    "that keeps. What a store at a URL may take on the disk: "
                    f"PackedDataset(url, disk_limit={cache_limit!r})"
                )
            return None
        if cache not in KINDS:
            names = ", ".join(map(repr, KINDS))
            raise UsageError(f"cache: expected one of {names} or None, got {cache!r}")
        if is_torch(engine):
            raise UsageError(
                f"cache={cache!r} is for fastload's own engines, and engine={engine!r} reads with "
                "the dataset's code: leave one of them out"
            )
        limit = None if cache_limit is None else byte_sizes.argument("cache_limit", cache_limit)
        return cls(cache, limit)

    def _most(self) -> int:
        """The limit, or the share of the memory that is available now.

        Ranks on one machine divide it, unless they share the cache.
        """
        if self._limit is not None:
            return self._limit
        sharers = 1 if self._kind == "shm" else ranks.local()
        return int(memory.available() * _SHARE) // sharers

    @property
    def nbytes(self) -> int:
        """Bytes of records that it holds."""
        return sum(kept.arena.used for kept in (self._store, self._opened) if kept is not None)

    def serves(self, store: Store) -> bool:
        """Whether there is anything to keep of ``store``: pixels in memory need no cache."""
        if _native.load() is None or gathers(store):
            return False
        pixels = [array for array in store.memory().values() if array.ndim > 1]
        return self._kind == "decoded" or len(pixels) < len(store.files)

    def before(
        self,
        store: Store,
        stores: Sequence[Store],
        plan: Plan | Views,
        *,
        engine: EngineKind,
        checked: bool,
    ) -> CachedStore:
        """``store`` with the cache in front of it, one for loaders over the same ``stores`` of it.

        ``engine`` fills the cache with what ``plan`` makes; ``checked`` says whether checksums
        are verified before anything is kept.
        """
        form, prefix = _form(self._kind, engine), None
        if form == PIXELS:
            prefix = Prefix.of(plan)
        key = (tuple(map(id, stores)), self._kind, self._limit, form, prefix, checked)
        self._store = _caches.get(key)
        if self._store is None:
            self._store = _caches[key] = CachedStore(
                store, stores, self._kind, form, prefix, self._most(), self._limit
            )
        self._store.file.announce()
        return self._store

    def opened(self, images: int) -> OpenedCache | None:
        """The cache of what a user's Dataset opens; ``images``: how many are expected.

        None without the core, which keeps the records.
        """
        if _native.load() is None:
            return None
        if self._opened is None:
            form = {"decoded": PIXELS, "dct": DCT_RECORDS}.get(self._kind, BYTES)
            self._opened = OpenedCache(self._kind, form, self._most(), self._limit, images)
        self._opened.file.announce()
        return self._opened

    def explain(
        self, engine: EngineKind | None, store: Store | None, *, opened: bool = False
    ) -> str:
        """What is kept of ``store`` by ``engine`` (None: torch's machinery runs), and why.

        ``opened`` says whether what a user's Dataset opens is kept.
        """
        kind, limit = self._kind, self._limit
        if _native.load() is None:
            return f"none; {kind!r} needs fastload's native core"
        most = "half of the available memory" if limit is None else f"{limit:,} bytes"
        empty = f"empty until the first epoch, at most {most}"
        if opened:
            return f"{kind}, {empty if self._opened is None else self._opened.describe()}"
        if engine is None or store is None:
            return f"none; {kind!r} is for fastload's own engines"
        if not self.serves(store):
            return f"none; the dataset is in memory already, and {kind!r} would keep it twice"
        text = empty if self._store is None else self._store.describe()
        why = engine.no_dct_cache() if kind == "dct" else None
        return f"{kind}, {text}" + (f"; bytes instead of DCT records, as {why}" if why else "")

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_store": None, "_opened": None}


def _form(kind: CacheKind, engine: EngineKind) -> int:
    """What an engine keeps for a cache of this kind."""
    if kind == "decoded":
        return PIXELS
    return DCT_RECORDS if kind == "dct" and engine.no_dct_cache() is None else BYTES
