"""Python objects that a dataset holds by the million, which worker processes come to copy.

A forked worker shares the memory of its parent until one of them writes to it. Using a Python
object writes its reference count, and with that the page it lies in is copied: in the course of an
epoch every worker comes to own a copy of every list of strings, tuples or numbers that the dataset
looks into. Arrays have one reference count for all that is in them.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from torch.utils.data import Dataset

# Fewer are not worth a word, nor is less memory in all processes together.
_MANY = 100_000
_LARGE_NBYTES = 64 << 20

_LOOKED_AT = 200  # objects that the average size is taken of
_DEPTH = 4  # of datasets within datasets

REMEDY = (
    "keep text in one array (np.array(paths, dtype=bytes), or pyarrow) and numbers in NumPy "
    "arrays, or pack the dataset (fastload pack)"
)


@dataclasses.dataclass(frozen=True)
class Held:
    """The objects of one attribute.

    Attributes:
        name: class of the dataset and name of the attribute.
        count: objects.
        nbytes: what they take together, extrapolated from some of them.
    """

    name: str
    count: int
    nbytes: int

    def words(self, workers: int) -> str:
        """What comes of them in ``workers`` processes."""
        return (
            f"{self.name} holds {self.count:,} Python objects, about {self.nbytes / 1e6:,.0f} MB; "
            f"using one writes its reference count, so each of {workers} worker processes comes to "
            f"own a copy, {workers * self.nbytes / 1e6:,.0f} MB in all"
        )


def held(dataset: Any, workers: int) -> Held | None:
    """What of ``dataset`` takes most memory in ``workers`` processes; None where that is little."""
    found = max(_attributes(dataset, 0), key=lambda one: one.nbytes, default=None)
    return found if found is not None and found.nbytes * workers >= _LARGE_NBYTES else None


def _attributes(dataset: Any, depth: int) -> Iterator[Held]:
    for name, value in getattr(dataset, "__dict__", {}).items():
        values = value if isinstance(value, (list, tuple)) and len(value) < _MANY else [value]
        for inner in values if depth < _DEPTH else []:
            if isinstance(inner, Dataset):
                yield from _attributes(inner, depth + 1)
        count = _count(value)
        if count >= _MANY:
            nbytes = round(count * _average(value))
            yield Held(f"{type(dataset).__name__}.{name}", count, nbytes)


def _count(value: Any) -> int:
    objects = isinstance(value, np.ndarray) and value.dtype == object and value.ndim > 0
    return len(value) if isinstance(value, (list, tuple, dict, set)) or objects else 0


def _average(value: Any) -> float:
    """Bytes of an object of ``value``: of those spread over it, or the first ones of a dict."""
    if isinstance(value, (dict, set)):
        few = list(islice(value.items() if isinstance(value, dict) else value, _LOOKED_AT))
    else:
        few = list(value[:: max(1, len(value) // _LOOKED_AT)])
    return sum(map(_nbytes, few)) / len(few)


def _nbytes(value: Any) -> int:
    """Bytes of an object and of what it holds, as far as it is its own."""
    if value is None or isinstance(value, bool) or (type(value) is int and -6 < value < 257):
        return 0  # one for the whole interpreter
    nbytes = sys.getsizeof(value)
    if isinstance(value, (list, tuple, set)):
        return nbytes + sum(map(_nbytes, islice(value, _LOOKED_AT)))
    if isinstance(value, dict):
        # Keys are mostly the same objects in all of them.
        return nbytes + sum(map(_nbytes, islice(value.values(), _LOOKED_AT)))
    return nbytes
