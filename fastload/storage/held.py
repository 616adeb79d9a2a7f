"""What keeps bytes of a remote store that were fetched, or are being fetched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from ..errors import DataError

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
