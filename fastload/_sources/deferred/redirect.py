"""Redirecting a function of another library, for everybody who has it, whenever they imported it.

Note [Why the code]
    ``PIL.Image.open = ours`` misses who wrote ``from PIL.Image import open`` before. So the
    function object stays, and its ``__code__`` becomes a stub that calls ours. The original code
    lives on in a new function. The function to call is a global of the other library's module,
    under a name that no program can write: ``torch.compile`` follows globals, and fails at a
    constant that is a function.

Note [The original's parameters]
    A stub has the parameters of the code that it stands for, and name, defaults, file and line stay
    as they were. So ``inspect``, tracebacks and ``torch.jit.script`` see the original, and so does
    ``torch.compile``, which remembers the parameters of a function that it has seen.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable
from typing import Any, Final, TypeAlias

Function: TypeAlias = "Callable[..., Any]"


@dataclasses.dataclass(frozen=True)
class _Exchange:
    """What was exchanged in a function.

    Attributes:
        original, stub: its code before, and since.
    """

    original: types.CodeType
    stub: types.CodeType


_EXCHANGES: Final[dict[types.FunctionType, _Exchange]] = {}


LEFT_OUT: Final[list[str]] = []
"""Why functions are not redirected, a line for each: those of a release with other parameters."""


def redirect(*pairs: tuple[Function, Callable[[Function], Function]]) -> None:
    """For each ``function, make``: calls of the function go to ``make(original)``.

    ``original`` is what it did before. What is made gets all parameters by position, those with
    defaults and those that are keyword-only too. After ``put_back`` what was made first is called
    again. A function for which that cannot be stays as it is, with a line in ``LEFT_OUT``.

    Raises:
        TypeError: ``function`` is not a plain Python function, or has a closure.
    """
    for function, make in pairs:
        if not isinstance(function, types.FunctionType) or function.__code__.co_freevars:
            raise TypeError(f"expected a plain Python function without a closure, not {function!r}")
        exchange = _EXCHANGES.get(function) or _exchange(function, make)
        if exchange is not None:
            _EXCHANGES[function] = exchange
            function.__code__ = exchange.stub


def redirected() -> list[types.FunctionType]:
    """The functions that are redirected at the moment."""
    return [one for one, exchange in _EXCHANGES.items() if one.__code__ is exchange.stub]


def put_back() -> None:
    """Give every function its own code again, unless another program has exchanged it since."""
    # The stubs' globals stay: another thread may be in a stub, and has yet to look its global up.
    for function in redirected():
        function.__code__ = _EXCHANGES[function].original


def _exchange(
    function: types.FunctionType, make: Callable[[Function], Function]
) -> _Exchange | None:
    code = function.__code__
    original = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, None
    )
    original.__kwdefaults__ = function.__kwdefaults__
    original.__annotations__ = function.__annotations__
    original.__qualname__ = function.__qualname__
    original.__module__ = function.__module__
    original.__dict__.update(function.__dict__)
    called = f"fastload {len(_EXCHANGES)}: {function.__qualname__}"
    ours, theirs = make(original), inspect.signature(original)
    stub = _stub(code, called)
    if stub is None or not _takes(ours, theirs):
        name = f"{function.__module__}.{function.__qualname__}"
        why = f"{name} is left as it is: fastload does not know its parameters {theirs}"
        if why not in LEFT_OUT:
            LEFT_OUT.append(why)
        return None
    function.__globals__[called] = ours
    return _Exchange(code, stub)


def _takes(ours: Function, theirs: inspect.Signature) -> bool:
    """Whether ``ours`` has these parameters, and takes all of them by position."""
    wanted = list(theirs.parameters.values())
    for parameter in inspect.signature(ours).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            return all(one.kind is not one.VAR_KEYWORD for one in wanted)
        if not wanted or parameter.name != wanted[0].name:
            return False
        starred = parameter.VAR_KEYWORD in (parameter.kind, wanted[0].kind)
        if starred and parameter.kind is not wanted[0].kind:
            return False
        wanted.pop(0)
    return not wanted


def _stub(code: types.CodeType, called: str) -> types.CodeType | None:
    """A code with the parameters of ``code`` that calls the global ``called`` with them, if any."""
    count = code.co_argcount + code.co_kwonlyargcount
    flags = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    template = _TEMPLATES.get((count, flags))
    if template is None:
        return None
    names = {"co_qualname": code.co_qualname} if hasattr(code, "co_qualname") else {}
    return template.replace(
        co_names=(called,),
        co_varnames=code.co_varnames[: template.co_nlocals],
        co_argcount=code.co_argcount,
        co_posonlyargcount=code.co_posonlyargcount,
        co_kwonlyargcount=code.co_kwonlyargcount,
        co_name=code.co_name,
        co_filename=code.co_filename,
        co_firstlineno=code.co_firstlineno,
        **names,
    )


def _called(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("its name is replaced wherever it is called")


def _1(a: Any) -> Any:
    return _called(a)


def _2(a: Any, b: Any) -> Any:
    return _called(a, b)


def _3(a: Any, b: Any, c: Any) -> Any:
    return _called(a, b, c)


def _4(a: Any, b: Any, c: Any, d: Any) -> Any:
    return _called(a, b, c, d)


def _5(a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
    return _called(a, b, c, d, e)


def _6(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> Any:
    return _called(a, b, c, d, e, f)


def _7(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any) -> Any:
    return _called(a, b, c, d, e, f, g)


def _1_and_others(a: Any, *others: Any) -> Any:
    return _called(a, *others)


def _2_and_named(a: Any, b: Any, **named: Any) -> Any:
    return _called(a, b, **named)


_TEMPLATES: Final[dict[tuple[int, int], types.CodeType]] = {
    **{(n, 0): stub.__code__ for n, stub in enumerate((_1, _2, _3, _4, _5, _6, _7), 1)},
    (1, inspect.CO_VARARGS): _1_and_others.__code__,
    (2, inspect.CO_VARKEYWORDS): _2_and_named.__code__,
}
"""Stubs by their number of parameters, and by which of ``*args`` and ``**kwargs`` come after."""
