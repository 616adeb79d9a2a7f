"""Value classes: dataclasses for which no code is written and compiled when they are imported.

``dataclasses`` compiles six methods for a frozen class, which takes a millisecond: as long as to
import a module of 300 lines. Here all classes share the same methods. ``dataclasses.replace``,
``fields`` and ``is_dataclass`` take them as any dataclass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn, TypeVar

from typing_extensions import dataclass_transform

_Class = TypeVar("_Class", bound=type)


class _Fields(NamedTuple):
    """The fields of a class.

    Attributes:
        ordered, names: all of them, twice.
        positional: those that may be given by position.
        checks: whether the class looks at what it was given.
    """

    ordered: tuple[str, ...]
    names: frozenset[str]
    positional: tuple[str, ...]
    defaults: Mapping[str, Any]
    factories: Mapping[str, Callable[[], Any]]
    checks: bool


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def value_class(
    *, frozen: bool = True, kw_only: bool = False, eq: bool = True
) -> Callable[[_Class], _Class]:
    """A class decorator like ``dataclasses.dataclass``, whose instances are frozen by default.

    The arguments are those of ``dataclass``. Frozen ones that compare have a hash.
    """
    plain: Any = dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)
    shared: dict[str, Any] = {"__init__": _init, "__repr__": _repr}
    if frozen:
        shared |= {"__setattr__": _setattr, "__delattr__": _delattr}
    if eq:
        shared |= {"__eq__": _eq, "__hash__": _hash if frozen else None}

    def decorate(cls: _Class) -> _Class:
        own, kind = frozenset(vars(cls)), plain(cls)
        fields = [field for field in dataclasses.fields(kind) if field.init]
        kind._value_fields = _Fields(
            tuple(field.name for field in fields),
            frozenset(field.name for field in fields),
            tuple(field.name for field in fields if not field.kw_only),
            {
                field.name: field.default
                for field in fields
                if field.default is not dataclasses.MISSING
            },
            {
                field.name: field.default_factory
                for field in fields
                if field.default_factory is not dataclasses.MISSING
            },
            hasattr(kind, "__post_init__"),
        )
        for name in shared.keys() - own:
            setattr(kind, name, shared[name])
        return cls

    return decorate


def _init(self: Any, *args: Any, **named: Any) -> None:
    fields: _Fields = self._value_fields
    held = vars(self)
    held.update(fields.defaults)
    if args:
        if len(args) > len(fields.positional) or not named.keys().isdisjoint(
            fields.positional[: len(args)]
        ):
            raise _refused(self, fields, args, named)
        held.update(zip(fields.positional, args))
    held.update(named)
    for name, make in fields.factories.items():
        if name not in held:
            held[name] = make()
    if held.keys() != fields.names:
        raise _refused(self, fields, args, named)
    if fields.checks:
        self.__post_init__()


def _refused(
    self: Any, fields: _Fields, args: tuple[Any, ...], named: Mapping[str, Any]
) -> TypeError:
    return TypeError(
        f"{type(self).__name__}: expected {', '.join(fields.ordered)}, got {len(args)} by position "
        f"and {', '.join(named) or 'none'} by name"
    )


def _repr(self: Any) -> str:
    shown = (f"{name}={getattr(self, name)!r}" for name in self._value_fields.ordered)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _compared(self: Any) -> tuple[Any, ...]:
    return tuple(getattr(self, name) for name in self._value_fields.ordered)


def _eq(self: Any, other: object) -> bool:
    return _compared(self) == _compared(other) if type(self) is type(other) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_compared(self))


def _setattr(self: Any, name: str, value: object) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(self: Any, name: str) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
