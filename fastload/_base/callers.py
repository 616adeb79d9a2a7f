"""The frame of the user's code to which a warning should point."""

from __future__ import annotations

import sys

_INNER = ("fastload", "torch", "accelerate", "contextlib")


def stacklevel() -> int:
    """``stacklevel`` for ``warnings.warn`` in the caller: that of the user's code."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _package(frame.f_globals.get("__name__", "")) in _INNER:
        level, frame = level + 1, frame.f_back
    return level


def _package(module: str) -> str:
    return module.partition(".")[0]
