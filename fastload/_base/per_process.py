"""PerProcess: a place for a value that every process makes for itself.

Threads, locks and devices do not survive a fork: a child that used its parent's would wait for a
thread that it does not have, or use a device that it cannot. So a forked child finds the place
empty, and so does a process that the place was pickled for.
"""

from __future__ import annotations

import os
from typing import Generic, TypeVar

_Value = TypeVar("_Value")


class PerProcess(Generic[_Value]):
    """Holds what this process has put there last.

    Example:
        >>> place = PerProcess[Mover]()
        >>> mover = place.get() or place.put(Mover(...))
    """

    def __init__(self) -> None:
        self._held: tuple[int, _Value] | None = None

    def get(self) -> _Value | None:
        """The value; None if this process has put none there."""
        held = self._held  # read once: another thread may put another value
        return None if held is None or held[0] != os.getpid() else held[1]

    def put(self, value: _Value) -> _Value:
        """Hold ``value`` for this process, and return it."""
        self._held = os.getpid(), value
        return value

    def __reduce__(self) -> tuple[type[PerProcess[_Value]], tuple[()]]:
        return PerProcess, ()
