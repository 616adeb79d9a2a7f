"""Rebinding names in every module of the program that refers to certain objects."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from typing import Final

# These have most of a program's globals, and none of OpenCV's.
_PASSED_OVER: Final = frozenset(("fastload", "torch", "sympy", "mpmath", "numpy", "scipy"))


def rebind(replaced: Mapping[object, object]) -> None:
    """In all modules but a few, bind each global that is a key to its value."""
    by_id = {id(old): new for old, new in replaced.items()}
    # A copy of the dict: while a list is made of it, a garbage collection may import a module.
    for name, module in sys.modules.copy().items():
        if name.partition(".")[0] in _PASSED_OVER or not isinstance(module, types.ModuleType):
            continue
        names = vars(module)  # bypasses __setattr__ and __getattr__, which modules may define
        for key, value in list(names.items()):
            if id(value) in by_id:
                names[key] = by_id[id(value)]
