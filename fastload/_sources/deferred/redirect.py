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

import inspect
import itertools
import types
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .guarded import Function, GuardedFunction, forget_all, leave_out

if TYPE_CHECKING:
    from .patches.patch import Patch


class _Exchange(NamedTuple):
    """What was exchanged in a function."""

    original: types.CodeType
    stub: types.CodeType  # its code since
    guarded: GuardedFunction  # of what the stub calls
    stays: bool  # whether it has the stub at rest, too


_EXCHANGES: Final[dict[types.FunctionType, _Exchange]] = {}
_NUMBERS: Final = itertools.count()


def redirect(function: object, patch: Patch) -> GuardedFunction | None:
    """Have calls of ``function`` go to what ``patch`` makes of it; None: they cannot.

    What is made gets all parameters by position, those with defaults and those that are
    keyword-only too; where there are both ``*args`` and ``**kwargs``, it gets a tuple and a dict at
    the end. A function for which that cannot be stays as it is, and so does what is no plain Python
    function without a closure, and one that fails the proof, at its first call (``guarded.py``).
    """
    if not isinstance(function, types.FunctionType) or function.__code__.co_freevars:
        leave_out(patch.names[0], "it is not a plain Python function")
        return None
    exchange = _EXCHANGES.get(function)
    if exchange is None or _of_others(function, exchange):
        exchanged = _exchange(function, patch)
        if isinstance(exchanged, str):
            leave_out(patch.names[0], exchanged)
            return None
        exchange = _EXCHANGES[function] = exchanged
    function.__code__ = exchange.stub
    return exchange.guarded


def redirected() -> list[types.FunctionType]:
    """The functions that are redirected at the moment."""
    return [
        function for function, exchange in _EXCHANGES.items() if function.__code__ is exchange.stub
    ]


def holds(function: Function) -> bool:
    """Whether what is redirected from here has proved itself, which it may do now."""
    for redirected, exchange in _EXCHANGES.items():
        if redirected is function:
            return redirected.__code__ is exchange.stub and exchange.guarded.is_ours()
    return False


def rest(everything: bool) -> None:
    """Give the functions their own codes until ``wake``; those that stay only with ``everything``.

    The codes are the same objects each time: what ``torch.compile`` has made for one is used again.
    """
    for function, exchange in list(_EXCHANGES.items()):
        if function.__code__ is exchange.stub and (everything or not exchange.stays):
            function.__code__ = exchange.original


def wake() -> None:
    """Undo ``rest``."""
    for function, exchange in list(_EXCHANGES.items()):
        if function.__code__ is exchange.original:
            function.__code__ = exchange.stub


def put_back() -> None:
    """Give every function its own code again, unless another program has exchanged it since."""
    # The stubs' globals stay: another thread may be in a stub, and has yet to look its global up.
    for function in redirected():
        function.__code__ = _EXCHANGES[function].original
    _EXCHANGES.clear()
    forget_all()


def _of_others(function: types.FunctionType, exchange: _Exchange) -> bool:
    """Whether another program has given the function its code since."""
    return function.__code__ is not exchange.original and function.__code__ is not exchange.stub


def _exchange(function: types.FunctionType, patch: Patch) -> _Exchange | str:
    """What to exchange; or why the function stays as it is."""
    code = function.__code__
    original = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, None
    )
    original.__kwdefaults__ = function.__kwdefaults__
    original.__annotations__ = function.__annotations__
    original.__qualname__ = function.__qualname__
    original.__module__ = function.__module__
    original.__dict__.update(function.__dict__)
    called = f"fastload {next(_NUMBERS)}: {function.__qualname__}"
    try:
        ours = patch.ours(original)
    except AttributeError as error:  # of what it needs besides
        return f"this release lacks what fastload needs for it ({error})"
    theirs, stub = inspect.signature(original), _stub(code, called)
    if stub is None or not _takes(ours, theirs):
        return f"fastload does not know its parameters {theirs}"

    def settle(settled: Function) -> None:
        function.__globals__[called] = settled
        if settled is not ours:
            _EXCHANGES.pop(function, None)
            if function.__code__ is stub:
                function.__code__ = code

    guarded = GuardedFunction(
        patch.names[0],
        ours,
        _by_position(original),
        lambda: patch.proof(original, ours),
        settle,
        patch.in_usual_state,
        patch.needed,
    )
    function.__globals__[called] = guarded
    return _Exchange(code, stub, guarded, patch.needed)


def _by_position(function: types.FunctionType) -> Function:
    """The function, which gets those parameters by position, too, that it takes by keyword only."""
    code = function.__code__
    names = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    gathered = code.co_flags & _GATHERED == _GATHERED
    if not names and not gathered:
        return function

    def by_position(*args: Any, **kwargs: Any) -> Any:
        others: tuple[Any, ...] = ()
        if gathered:
            *args, others, kwargs = args  # type: ignore[assignment]
        count = len(args) - len(names)
        named = dict(zip(names, args[count:], strict=True))
        return function(*args[:count], *others, **named, **kwargs)

    return by_position


def _takes(ours: Function, theirs: inspect.Signature) -> bool:
    """Whether ``ours`` has these parameters, and takes all of them by position."""
    expected = list(theirs.parameters.values())
    if {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}.issubset(
        parameter.kind for parameter in expected
    ):
        order = sorted(expected, key=lambda parameter: parameter.kind is parameter.VAR_POSITIONAL)
        order.sort(key=lambda parameter: parameter.kind is parameter.VAR_KEYWORD)
        return [parameter.name for parameter in order] == list(inspect.signature(ours).parameters)
    for parameter in inspect.signature(ours).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            return all(other.kind is not other.VAR_KEYWORD for other in expected)
        if not expected or parameter.name != expected[0].name:
            return False
        starred = parameter.VAR_KEYWORD in (parameter.kind, expected[0].kind)
        if starred and parameter.kind is not expected[0].kind:
            return False
        expected.pop(0)
    return not expected


def _stub(code: types.CodeType, called: str) -> types.CodeType | None:
    """A code with the parameters of ``code`` that calls the global ``called`` with them, if any."""
    count = code.co_argcount + code.co_kwonlyargcount
    flags = code.co_flags & _GATHERED
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


def _2_and_all(a: Any, b: Any, *others: Any, **named: Any) -> Any:
    return _called(a, b, others, named)


_GATHERED: Final = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS

_TEMPLATES: Final[dict[tuple[int, int], types.CodeType]] = {
    **{(n, 0): stub.__code__ for n, stub in enumerate((_1, _2, _3, _4, _5, _6, _7), 1)},
    (1, inspect.CO_VARARGS): _1_and_others.__code__,
    (2, inspect.CO_VARKEYWORDS): _2_and_named.__code__,
    (2, _GATHERED): _2_and_all.__code__,
}
"""Stubs by their number of parameters, and by which of ``*args`` and ``**kwargs`` come after."""
