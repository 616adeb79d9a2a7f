"""Redirecting a function of another library, for everybody who has it, whenever they imported it.

Note [Why the code]
    ``PIL.Image.open = ours`` misses who wrote ``from PIL.Image import open`` before. So the
    function object stays, and its ``__code__`` becomes one that calls ours. The original code lives
    on in a new function. Name, defaults, signature, file and line stay as they were, so that
    ``inspect``, tracebacks and ``torch.jit.script`` see the original. The function to call is a
    global of the other library's module, under a name that no program can write: ``torch.compile``
    follows globals, and fails at a constant that is a function.
"""

from __future__ import annotations

import inspect
import itertools
import types
from collections.abc import Callable
from typing import Any

_NUMBERS = itertools.count()


def _called(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("its name is replaced wherever it is called")


def _stub(*args: Any, **kwargs: Any) -> Any:
    return _called(*args, **kwargs)


def redirect(
    function: Callable[..., Any], make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Calls of ``function`` go to ``make(original)``, where ``original`` is what it did before.

    Raises:
        TypeError: ``function`` is not a plain Python function, or has a closure.
    """
    if not isinstance(function, types.FunctionType) or function.__code__.co_freevars:
        raise TypeError(f"expected a plain Python function without a closure, not {function!r}")
    code = function.__code__
    original = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, None
    )
    original.__kwdefaults__ = function.__kwdefaults__
    original.__annotations__ = function.__annotations__
    original.__qualname__ = function.__qualname__
    original.__module__ = function.__module__
    original.__dict__.update(function.__dict__)
    signature = inspect.signature(function)
    called = f"fastload {next(_NUMBERS)}: {function.__qualname__}"
    function.__globals__[called] = make(original)
    names = {"co_qualname": code.co_qualname} if hasattr(code, "co_qualname") else {}
    function.__code__ = _stub.__code__.replace(
        co_names=(called,),
        co_name=code.co_name,
        co_filename=code.co_filename,
        co_firstlineno=code.co_firstlineno,
        **names,
    )
    function.__signature__ = signature  # type: ignore[attr-defined]
