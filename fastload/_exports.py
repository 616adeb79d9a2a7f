"""The names of a package, loaded when first used: to import the package alone imports nothing."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazily(package: dict[str, Any], names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package with these ``globals()``; its names by the module inside."""
    modules = {name: module for module, some in names.items() for name in some}

    def loaded(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        module = importlib.import_module(f".{modules[name]}", package["__name__"])
        value = package[name] = getattr(module, name)
        return value

    return loaded
