"""Sizes of images from their headers, for stores that have no table of them."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import IO

import numpy as np

from ..errors import StoreError
from ._read import open_regular, read_records
from .base import ENCODED, Spans, Store

THREADS = 4  # reading headers of loose files mostly waits for the disk
UNKNOWN, UNREADABLE = 0, -1  # in a column of widths
_LONGEST = 2**31 - 1


def readable(width: int, height: int) -> tuple[int, int]:
    """Width and height; twice UNREADABLE where int32 does not hold them, and nothing decodes it."""
    found = width, height
    return found if max(found) <= _LONGEST else (UNREADABLE, UNREADABLE)


def probe_sizes(store: Store, indices: np.ndarray) -> np.ndarray:
    """Width and height of the records ``indices`` (int64): int32 (n, 2).

    (-1, -1) for records that are not images: decoding such a record says what is wrong.
    """
    sizes = np.full((len(indices), 2), UNREADABLE, np.int32)
    found = np.zeros(len(indices), bool)
    if store.indirect is None:
        paths, ends = store.file_table()
        found = probe_by_core(paths, ends, store.spans(indices), sizes, store.memory())
    for at in np.flatnonzero(~found).tolist():
        try:
            (data,) = read_records(store, indices[at : at + 1])
        except StoreError:
            continue  # raised again, with the place, when the record is decoded
        sizes[at] = size_by_pillow(io.BytesIO(data))
    return sizes


def probe_by_core(
    paths: bytes,
    ends: np.ndarray,
    spans: Spans,
    sizes: np.ndarray,
    memory: Mapping[int, np.ndarray] = MappingProxyType({}),
) -> np.ndarray:
    """Fill ``sizes`` by the native core: bool (n,), which it found; none without a core."""
    from .. import _native

    core = _native.load()
    count = len(sizes)
    if core is None:
        return np.zeros(count, bool)
    status = np.zeros(count, np.int32)
    probed = np.zeros((count, 2), np.int32)
    mapped = np.zeros(len(ends), np.uint8)
    mapped[list(memory)] = 1
    files = core.Files(paths, ends, mapped, memory=dict(memory))
    kinds = np.full(count, ENCODED, np.uint8)
    try:
        core.probe(files, spans.file, spans.offset, spans.nbytes, kinds, probed, status, THREADS)
    finally:
        files.close()
    good: np.ndarray = (status == 0) & (probed > 0).all(axis=1)
    sizes[good] = probed[good]
    return good


def size_by_pillow(source: str | io.BytesIO) -> tuple[int, int]:
    """Width and height; or twice UNREADABLE, or UNKNOWN for what ``pixel_limit.py`` refuses now."""
    from PIL import Image

    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")  # decoding warns
            file: str | IO[bytes] = source
            if isinstance(source, str):
                file = stack.enter_context(open(source, "rb", opener=open_regular))
            image = stack.enter_context(Image.open(file))
            return readable(*image.size)
    except Image.DecompressionBombError:
        return UNKNOWN, UNKNOWN
    except Exception:  # noqa: BLE001 - Pillow raises anything; decoding reports it
        return UNREADABLE, UNREADABLE
