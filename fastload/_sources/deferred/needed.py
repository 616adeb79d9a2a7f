"""What the program has imported, on which depends what can be deferred."""

from __future__ import annotations

import sys

_DEFERRED = "fastload._sources.deferred"
_OPENERS = frozenset(("PIL.Image", "cv2", "torchvision.io"))


def loaded() -> bool:
    """Whether the program has imported something that opens images."""
    return not sys.modules.keys().isdisjoint(_OPENERS)


def has_tensors() -> bool:
    """Whether there can be deferred tensors: torchvision makes them, if the program imports it."""
    return f"{_DEFERRED}.tensor" in sys.modules
