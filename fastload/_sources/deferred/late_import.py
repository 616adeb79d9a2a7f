"""Seeing a module that the program imports after deferring has begun, before anybody can use it.

A finder in ``sys.meta_path`` stands before the others. What they find is loaded as ever, and keeps
its loader. Then ``imported`` is called, while the module is still locked for other threads: it must
not wait for a thread that may import.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any


class LateImport(importlib.abc.MetaPathFinder):
    """Calls ``imported`` when the program imports the module ``name``, while it watches."""

    def __init__(self, name: str, imported: Callable[[], None]) -> None:
        self._name = name
        self._imported = imported

    def watch(self, on: bool) -> None:
        """Begin to watch, or end."""
        if self in sys.meta_path:
            if not on:
                sys.meta_path.remove(self)
        elif on:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """What another finder finds."""
        if fullname != self._name:
            return None
        for finder in [finder for finder in sys.meta_path if finder is not self]:
            if not hasattr(finder, "find_spec"):
                continue  # an old one, which Python itself passes over
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._imported)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    """Has ``loader`` load a module, and then calls ``imported``."""

    def __init__(self, loader: importlib.abc.Loader, imported: Callable[[], None]) -> None:
        self._loader = loader
        self._imported = imported

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # of one that is asked for the module's source, say

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._imported()
