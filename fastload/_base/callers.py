"""Which frame a warning is to point at: the user's."""

from __future__ import annotations

import sys

_INNER = ("fastload", "torch", "contextlib")


def stacklevel() -> int:
    """For ``warnings.warn`` in the calling function: the first frame outside fastload and torch."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _package(frame.f_globals.get("__name__", "")) in _INNER:
        level, frame = level + 1, frame.f_back
    return level


def _package(module: str) -> str:
    return module.partition(".")[0]
