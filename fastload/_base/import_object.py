"""Objects that a command line names."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Any

from ..errors import UsageError


def named(name: str) -> Any:
    """What ``module:object`` names; the module is looked for in this folder too.

    Raises:
        UsageError: it cannot be had, whatever its module raises when it is imported.
    """
    module, _, path = name.partition(":")
    if not path or not all(part.isidentifier() for part in module.split(".")):
        raise UsageError(
            f"{name!r}: expected MODULE:OBJECT, such as train:transform for what train.py calls "
            "transform, or a path that exists"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        hint = f": without .py, {module[:-3]}:{path}" if module.endswith(".py") else ""
        raise UsageError(f"cannot find {name!r}: {error}{hint}") from error
    except (Exception, SystemExit) as error:  # the module is the user's code, and runs
        raise UsageError(f"cannot import {module!r}: {told(error)}") from error
    try:
        for part in path.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise UsageError(f"cannot find {name!r}: {error}") from error
    return found


def told(error: BaseException) -> str:
    """What an error of the user's code says, and where, in one line."""
    if isinstance(error, SyntaxError):
        place = [(error.filename or "", error.lineno)]
        words = error.msg
    else:
        frames = traceback.extract_tb(error.__traceback__)
        place = [(frame.filename, frame.lineno) for frame in frames[-1:]]
        words = " ".join(str(error).split())
    where = "".join(f" ({file}, line {line})" for file, line in place)
    return f"{type(error).__name__}: {words}{where}"
