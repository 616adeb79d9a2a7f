"""Objects that a command line names."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from fastload.errors import UsageError


def named(name: str) -> Any:
    """What ``module:object`` names; the module is looked for in this folder too.

    Raises:
        UsageError: it cannot be had.
    """
    module, _, path = name.partition(":")
    if not path:
        raise UsageError(f"expected MODULE:OBJECT, or a path that exists, got {name!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"cannot find {name!r}: {error}") from error
    return found
