"""Where records lie, and what their bytes are: what an engine has to know, whatever store it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from .held import Held

ENCODED = 0  # the record is an image file: JPEG, PNG, BMP, WebP ...; its first bytes say which
RAW = 1  # the record is uint8 pixels, HWC, RGB, without padding; `sizes` has width and height
DCT = 2  # the record is fastload's quantised DCT form (SPECIFICATION.md)
TURNED = 3  # as ENCODED, but its EXIF orientation is applied when decoded; never written


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spans:
    """Where n records lie. All arrays have length n and are C-contiguous.

    Attributes:
        file: int32, index into ``Store.files``.
        offset: int64, bytes from the start of that file.
        nbytes: int64, length in bytes; -1 means "to the end of the file".
        held: keeps bytes of a remote store; they may be read as long as this lives.
        memory: arrays in the place of files, for these spans alone: uint8 (n,), contiguous. A file
            number of -1 - k means number k of them.
    """

    file: np.ndarray
    offset: np.ndarray
    nbytes: np.ndarray
    held: Held | None = None
    memory: Sequence[np.ndarray] | None = None


class Located(NamedTuple):
    """What an engine has to know about n records, taken at one moment.

    Attributes:
        spans, kinds, sizes: as the store's methods of these names return them.
        kept: bool (n,), which records lie in a cache; None: the store is not a cache.
        converted: bool (n,), which records the cache holds in another form than the store, so that
            the store's checksums do not apply to them; None: no record.
    """

    spans: Spans
    kinds: np.ndarray
    sizes: np.ndarray
    kept: np.ndarray | None = None
    converted: np.ndarray | None = None
