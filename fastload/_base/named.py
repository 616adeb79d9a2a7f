"""What another library has under a name, which another release of it may not have."""

from __future__ import annotations

import importlib
import types
from typing import Any


def named(*names: str) -> Any:
    """What is under the first of these names that exists: "PIL.ImageOps.expand"; None: nothing."""
    for name in names:
        value = _named(name)
        if value is not None:
            return value
    return None


def _named(name: str) -> Any:
    value: Any = None
    path = ""
    for attribute in name.split("."):
        path = f"{path}.{attribute}" if path else attribute
        inside = getattr(value, attribute, None)
        if inside is None and (value is None or isinstance(value, types.ModuleType)):
            try:
                inside = importlib.import_module(path)
            except ImportError:
                return None
        value = inside
        if value is None:
            return None
    return value
