"""WrappedStore: a store in front of another one."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from .base import Field, Store

_T = TypeVar("_T")
_P = ParamSpec("_P")


def _forwarded(
    method: Callable[Concatenate[Store, _P], _T],
) -> Callable[Concatenate[WrappedStore, _P], _T]:
    """A method that asks ``method`` of the inner store."""
    name = method.__name__

    @functools.wraps(method, updated=())  # not its mark of an abstract method
    def forward(self: WrappedStore, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        def question(inner: Store) -> _T:
            asked: Callable[_P, _T] = getattr(inner, name)
            return asked(*args, **kwargs)

        return self._ask(question)

    return forward


class WrappedStore(Store):
    """Answers what the store behind it answers; a subclass says what differs.

    ``locate`` alone is not forwarded: it is made of what the subclass says.
    """

    @property
    @abc.abstractmethod
    def inner(self) -> Store:
        """The store behind it."""

    def _ask(self, question: Callable[[Store], _T]) -> _T:
        return question(self.inner)

    def _describe(self, inner: Store) -> None:
        """Take the attributes of ``inner``."""
        self.format, self.path, self.classes = inner.format, inner.path, inner.classes
        self.metadata, self.identity, self.left_out = inner.metadata, inner.identity, inner.left_out
        self.mapped, self.indirect, self.remote = inner.mapped, inner.indirect, inner.remote
        self.names, self.sample_fields = inner.names, inner.sample_fields

    @property
    def generation(self) -> int:  # type: ignore[override]
        return self.inner.generation

    @property
    def files(self) -> Sequence[str]:
        return self._ask(lambda inner: inner.files)

    @property
    def labels(self) -> np.ndarray | None:
        return self._ask(lambda inner: inner.labels)

    @property
    def fields(self) -> Mapping[str, Field]:
        return self._ask(lambda inner: inner.fields)

    @property
    def joint(self) -> dict[str, Any]:
        return self._ask(lambda inner: inner.joint)

    __len__ = _forwarded(Store.__len__)
    file_table = _forwarded(Store.file_table)
    mapped_files = _forwarded(Store.mapped_files)
    memory = _forwarded(Store.memory)
    spans = _forwarded(Store.spans)
    places = _forwarded(Store.places)
    shown = _forwarded(Store.shown)
    kinds = _forwarded(Store.kinds)
    sizes = _forwarded(Store.sizes)
    keys = _forwarded(Store.keys)
    checksums = _forwarded(Store.checksums)
    read = _forwarded(Store.read)
    column = _forwarded(Store.column)
    values = _forwarded(Store.values)
    batch = _forwarded(Store.batch)
    tables = _forwarded(Store.tables)
    check_whole = _forwarded(Store.check_whole)
    check_columns = _forwarded(Store.check_columns)
    ahead = _forwarded(Store.ahead)
    expect = _forwarded(Store.expect)
    passed = _forwarded(Store.passed)
    check_window = _forwarded(Store.check_window)
    doubt = _forwarded(Store.doubt)
    read_through = _forwarded(Store.read_through)
    hint = _forwarded(Store.hint)
    fetched = _forwarded(Store.fetched)
    close = _forwarded(Store.close)
