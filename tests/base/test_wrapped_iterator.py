"""Iterators around an iterator."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import pytest

from fastload._base.wrapped_iterator import WrappedIterator


class Inner(Iterator[int]):
    workers = 3

    def __next__(self) -> int:
        raise StopIteration

    def __len__(self) -> int:
        return 5

    def __reduce__(self) -> str:
        raise NotImplementedError("cannot be pickled")


class Outer(WrappedIterator[int]):
    def __init__(self, wrapped: Iterator[int]) -> None:
        self._wrapped = wrapped

    def __next__(self) -> int:
        return next(self._wrapped)


@pytest.mark.parametrize("iterator", [Outer(Inner()), Outer(Outer(Inner()))])
def test_it_answers_as_the_innermost_does(iterator: Outer) -> None:
    assert (len(iterator), iterator.workers) == (5, 3)
    with pytest.raises(AttributeError, match="absent"):
        iterator.absent  # noqa: B018
    for copied in (copy.copy, pickle.dumps):
        with pytest.raises(NotImplementedError, match="cannot be pickled"):
            copied(iterator)


def test_before_it_has_one_an_attribute_is_missing() -> None:
    with pytest.raises(AttributeError):
        Outer.__new__(Outer).workers  # noqa: B018
