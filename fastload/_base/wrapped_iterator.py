"""WrappedIterator: an iterator around another one, which answers for what it lacks itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

_Item = TypeVar("_Item", covariant=True)


class WrappedIterator(Iterator[_Item]):
    """Has the length and the attributes of ``_wrapped``, which a subclass sets.

    The innermost is often torch's iterator: trainers read its attributes, and pickling raises its
    error.
    """

    _wrapped: Any  # any iterator with a length

    def __len__(self) -> int:
        return len(self._wrapped)

    def __getattr__(self, name: str) -> Any:
        if name == "_wrapped":  # asked for by copy and pickle before __init__ has run
            raise AttributeError(name)
        return getattr(self._wrapped, name)

    def __reduce__(self) -> str | tuple[Any, ...]:
        reduced: str | tuple[Any, ...] = self._wrapped.__reduce__()
        return reduced
