"""Import an object by the name given on a command line, ``module:object``."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Any

from ..errors import UsageError


def import_object(name: str) -> Any:
    """Import ``module:object``; the current folder is searched too.

    Raises UsageError if the object cannot be found, or importing its module raises anything.
    """
    module, _, path = name.partition(":")
    if not path or not all(package.isidentifier() for package in module.split(".")):
        raise UsageError(
            f"{name!r}: expected MODULE:OBJECT, such as train:transform for the object `transform` "
            "in train.py, or a path that exists"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        value: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        hint = f": without .py, {module[:-3]}:{path}" if module.endswith(".py") else ""
        raise UsageError(f"cannot find {name!r}: {error}{hint}") from error
    except (Exception, SystemExit) as error:  # of the user's code, which the import runs
        raise UsageError(f"cannot import {module!r}: {one_line(error)}") from error
    try:
        for attribute in path.split("."):
            value = getattr(value, attribute)
    except AttributeError as error:
        raise UsageError(f"cannot find {name!r}: {error}") from error
    return value


def one_line(error: BaseException) -> str:
    """Type, message and place of an error from the user's code, in one line."""
    if isinstance(error, SyntaxError):
        position = [(error.filename or "", error.lineno)]
        words = error.msg
    else:
        frames = traceback.extract_tb(error.__traceback__)
        position = [(frame.filename, frame.lineno) for frame in frames[-1:]]
        words = " ".join(str(error).split())
    location = "".join(f" ({file}, line {line})" for file, line in position)
    return f"{type(error).__name__}: {words}{location}"
