"""Rebinding a name in every module of the program that refers to an object."""

from __future__ import annotations

import sys
import types


def rebind(old: object, new: object) -> None:
    """In all modules except fastload's, bind each global that is ``old`` to ``new``."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "fastload" or not isinstance(module, types.ModuleType):
            continue
        names = vars(module)  # bypasses __setattr__ and __getattr__, which modules may define
        for known in [known for known, value in list(names.items()) if value is old]:
            names[known] = new
