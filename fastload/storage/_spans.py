"""Where records lie, and what their bytes are: what an engine has to know, whatever store it is.

Also what keeps bytes of a remote store that were fetched, or are being fetched.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from ..errors import DataError

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


_Error = TypeVar("_Error", bound=DataError)

CLEAR = "`fastload cache clear` deletes what is cached"
"""What to do about a cache that does not mend itself."""


def fetched_again(error: _Error) -> _Error:
    """``error``, of bytes that were dropped and fetched once more."""
    again = type(error)(
        f"{error.message}; its bytes were fetched again, to no avail: see whether the object "
        f"itself is damaged; {CLEAR}",
        path=error.path,
        record=error.record,
        offset=error.offset,
    )
    again.__cause__ = error.__cause__
    return again


class Held(Protocol):
    """Bytes that stay where they can be read, or come there, as long as this lives."""

    def ready(self) -> bool:
        """Whether ``wait`` would return, or raise, at once."""

    def wait(self, ended: Callable[[], bool] = ...) -> None:
        """Return when the bytes are there, or soon after ``ended`` says that nobody needs them.

        Raises StoreError if they cannot be fetched.
        """

    def release(self) -> None:
        """They may go. Deleting the object does the same a moment later."""


class HeldTogether:
    """Several as one."""

    def __init__(self, parts: Sequence[Held]) -> None:
        self._parts = list(parts)

    def ready(self) -> bool:
        return all(hold.ready() for hold in self._parts)

    def wait(self, ended: Callable[[], bool] = lambda: False) -> None:
        for hold in self._parts:
            hold.wait(ended)

    def release(self) -> None:
        for hold in self._parts:
            hold.release()
