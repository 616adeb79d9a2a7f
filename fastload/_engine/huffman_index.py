"""What the core remembers of a store's JPEGs, so that it can start to decode where a crop starts.

``_native/jpeg/huffman_index.h`` says what that is, and why it never changes a pixel.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from torch.utils.data import get_worker_info

from .. import _native
from .._base.machine import memory, ranks

if TYPE_CHECKING:
    from .._native import _core
    from ..storage.base import Store

# Share of the memory that is available when a store is first read. 1,000 photos take about 0.7 MB.
_SHARE = 0.01

_StoreKey: TypeAlias = "tuple[weakref.ref[Store], ...]"
_Tables: TypeAlias = "weakref.WeakKeyDictionary[Store, dict[_StoreKey, _core.EntryTable]]"
_tables: _Tables = weakref.WeakKeyDictionary()


def table_of(store: Store) -> _core.EntryTable:
    """The core's table for ``store``, which all loaders over its dataset share.

    It takes no memory before there is something to remember, and at most 1 % of what is available
    now, divided by the ranks of this machine and, in worker processes, by their number.
    """
    stores = _stores_in(store)
    tables = _tables.setdefault(stores[0], {})
    key = tuple(map(weakref.ref, stores))
    if key not in tables:
        tables.setdefault(key, new_table(len(store)))
    return tables[key]


def new_table(records: int) -> _core.EntryTable:
    """An empty table for so many records; see ``table_of`` for its memory."""
    core = _native.required()
    worker = get_worker_info()
    sharers = ranks.local()
    sharers *= 1 if worker is None else worker.num_workers
    limit = int(memory.available() * _SHARE) // max(1, sharers)
    table: _core.EntryTable = core.EntryTable(records, limit)
    return table


def nbytes(stores: Sequence[Store]) -> int:
    """Bytes of the table so far, for a store that consists of ``stores``."""
    table = _existing(stores)
    return 0 if table is None else table.used


def describe(stores: Sequence[Store]) -> str | None:
    """The table for ``explain()``; None: it is empty."""
    table = _existing(stores)
    if table is None or not table.count:
        return None
    return (
        f"of {table.count} JPEGs, {table.used:,} bytes: later crops are decoded from "
        "their first row on"
    )


def _existing(stores: Sequence[Store]) -> _core.EntryTable | None:
    return _tables.get(stores[0], {}).get(tuple(map(weakref.ref, stores)))


def _stores_in(store: Store) -> list[Store]:
    if store.format == "concat":
        from ..storage.concat import ConcatStore

        if isinstance(store, ConcatStore):
            return [part for inner in store.stores for part in _stores_in(inner)]
    return [store]
