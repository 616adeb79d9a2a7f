"""Comparing the records and columns of a store with their checksums."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator

import numpy as np

from ..errors import DataError, StoreError, sample_error
from ._crc import crc32c
from ._read import read_each, where_of
from .base import Store

# Bytes read at a time: enough for the full speed of a disk, little memory.
_READ_NBYTES = 8 << 20
READ_RECORDS = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Damage:
    """One damaged record.

    Attributes:
        path, offset: the file it lies in, and where, in bytes; None if it does not lie there as it
            is.
        reason: what is wrong, for a message.
    """

    record: int
    key: str
    path: str
    offset: int | None
    reason: str


def check_columns(store: Store) -> str:
    """Whether labels, keys and fields match: "right", "no checksum", or what is wrong."""
    try:
        return "right" if store.check_columns() else "no checksum"
    except StoreError as error:
        return str(error)


def reading_order(store: Store) -> np.ndarray:
    """All records, in their order on the disk."""
    everything = np.arange(len(store), dtype=np.int64)
    if store.indirect is not None:
        return everything
    spans = store.places(everything)
    order: np.ndarray = np.lexsort((spans.offset, spans.file)).astype(np.int64)
    return order


def parts_of(store: Store, order: np.ndarray, most: int) -> Iterator[np.ndarray]:
    """Pieces of ``order`` of about 8 MB."""
    nbytes = np.maximum(store.places(order).nbytes, 64 << 10 if not store.mapped else 0)
    which = np.maximum(np.cumsum(nbytes) // _READ_NBYTES, np.arange(len(order)) // most)
    edges = [*np.flatnonzero(np.diff(which, prepend=-1)).tolist(), len(order)]
    for start, stop in itertools.pairwise(edges):
        yield order[start:stop]


def check_records(
    store: Store,
    indices: np.ndarray,
    decode: Callable[[int], None] | None,
    ended: Callable[[], bool] = lambda: False,
) -> tuple[int, list[Damage]]:
    """Bytes read, and what is wrong with ``indices``, or with those until ``ended`` is true."""
    expected = store.checksums(indices)
    damaged: list[Damage] = []
    total = 0
    for at, (index, data) in enumerate(zip(indices.tolist(), read_each(store, indices))):
        if ended():
            break
        reason = None
        try:
            if isinstance(data, DataError):
                raise data
            total += len(data)
            if expected is not None and (crc := crc32c(data)) != int(expected[at]):
                reason = f"expected CRC32C {int(expected[at]):08x}, found {crc:08x}"
            elif decode is not None:
                decode(index)
        except Exception as error:  # noqa: BLE001 - libraries raise anything for damaged records
            reason = sample_error(error).message
        if reason is not None:
            damaged.append(_damage(store, index, reason))
    return total, damaged


def _damage(store: Store, index: int, reason: str) -> Damage:
    try:
        (key,) = store.keys(np.array([index], np.int64))
    except StoreError:
        key = ""
    where = where_of(store, index)
    return Damage(
        record=index, key=key, path=str(where["path"]), offset=where["offset"], reason=reason
    )
