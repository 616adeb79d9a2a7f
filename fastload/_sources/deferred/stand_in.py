"""StandIn: the class of classes whose objects pass for those of a library's class.

``isinstance`` is for each of them to see to. Programs also compare ``type(x) == PIL.Image.Image``,
and look for a word in ``str(type(x))``. Python puts the class's name into its errors.
"""

from __future__ import annotations

from typing import Any


class StandIn(type):
    """A class that is equal to the one that it stands for, and called the same."""

    stands_for: type

    def __init__(cls, *arguments: Any) -> None:
        super().__init__(*arguments)
        if cls.__module__.partition(".")[0] != __name__.partition(".")[0]:
            return  # somebody has derived it from one of these
        for name in ("__name__", "__qualname__", "__module__"):
            setattr(cls, name, getattr(cls.stands_for, name))

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.stands_for

    __hash__ = type.__hash__  # in a set or a dict they are others


class Seen(StandIn):
    """A class that users' code gets as ``type(x)``, and may ask whether a real object is of it.

    Our own code asks a class above it, whose metaclass is StandIn: that takes less time, and a real
    object is not one of those.
    """

    def __instancecheck__(cls, instance: object) -> bool:
        if super().__instancecheck__(instance):
            return True
        return "stands_for" in vars(cls) and isinstance(instance, cls.stands_for)
