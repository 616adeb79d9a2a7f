"""derived: a property whose value is made when it is asked for first, and kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

from typing_extensions import Self

_Value = TypeVar("_Value")


class derived(Generic[_Value]):
    """As functools.cached_property of Python 3.12: that of 3.11 takes a lock, which costs more than
    most of these values. Two threads may each make the value. One that was set stays.
    """

    def __init__(self, make: Callable[[Any], _Value]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, holder: None, owner: type) -> Self: ...

    @overload
    def __get__(self, holder: object, owner: type) -> _Value: ...

    def __get__(self, holder: object | None, owner: type) -> Self | _Value:
        if holder is None:
            return self
        value = vars(holder)[self._name] = self._make(holder)
        return value
