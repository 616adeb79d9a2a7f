"""ObjectMemory: Python objects of a dataset that every forked worker ends up copying.

A forked worker shares memory with its parent until one of them writes to a page. Using a Python
object writes its reference count, so its page is copied. In the course of an epoch, every worker
gets its own copy of each list of strings, tuples or numbers that the dataset uses. An array has one
reference count for all of its elements. With a list of a million paths (92 MB), 2 workers had 33 MB
of their own after the first batch, and 289 after an epoch; with an array (43 MB), 20 and 105.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from torch.utils.data import Dataset

# Fewer objects, or less memory in all processes together, are not reported.
_MANY = 100_000
_LARGE_NBYTES = 64 << 20

_LOOKED_AT = 200  # number of objects whose average size is taken
_DEPTH = 4  # how deeply nested datasets are searched

REMEDY = (
    "keep text in one array (np.array(paths, dtype=bytes), or pyarrow) and numbers in NumPy "
    "arrays, or pack the dataset (fastload pack)"
)


@dataclasses.dataclass(frozen=True)
class ObjectMemory:
    """The Python objects in one attribute of a dataset.

    ``name`` is that of the dataset's class and of the attribute; ``nbytes`` of all together is
    extrapolated from some.
    """

    name: str
    count: int
    nbytes: int

    def words(self, workers: int) -> str:
        """Their effect in ``workers`` processes, as a sentence."""
        return (
            f"{self.name} holds {self.count:,} Python objects, about {self.nbytes / 1e6:,.0f} MB; "
            f"using one writes its reference count, so each of {workers} worker processes ends up "
            f"with a copy, {workers * self.nbytes / 1e6:,.0f} MB in total"
        )


def object_memory(dataset: object, workers: int) -> ObjectMemory | None:
    """The attribute whose copies in ``workers`` take most memory; None if that is little."""
    largest = max(_attributes(dataset, 0), key=lambda objects: objects.nbytes, default=None)
    large = largest is not None and largest.nbytes * workers >= _LARGE_NBYTES
    return largest if large else None


def _attributes(dataset: object, depth: int) -> Iterator[ObjectMemory]:
    for name, value in getattr(dataset, "__dict__", {}).items():
        values = value if isinstance(value, (list, tuple)) and len(value) < _MANY else [value]
        for inner in values if depth < _DEPTH else []:
            if isinstance(inner, Dataset):
                yield from _attributes(inner, depth + 1)
        count = _count(value)
        if count >= _MANY:
            nbytes = round(count * _average(value))
            yield ObjectMemory(f"{type(dataset).__name__}.{name}", count, nbytes)


def _count(value: object) -> int:
    if isinstance(value, (list, tuple, dict, set)):
        return len(value)
    objects = isinstance(value, np.ndarray) and value.dtype == object and value.ndim > 0
    return len(value) if isinstance(value, np.ndarray) and objects else 0


def _average(value: Any) -> float:
    """Average bytes of an object in ``value``; of a dict or set, of its first objects."""
    if isinstance(value, (dict, set)):
        few = list(islice(value.items() if isinstance(value, dict) else value, _LOOKED_AT))
    else:
        few = list(value[:: max(1, len(value) // _LOOKED_AT)])
    return sum(map(_nbytes, few)) / len(few)


def _nbytes(value: object) -> int:
    """Bytes of an object and of the objects in it that are not shared."""
    if value is None or isinstance(value, bool) or (type(value) is int and -6 < value < 257):
        return 0  # these exist once in the interpreter
    nbytes = sys.getsizeof(value)
    if isinstance(value, (list, tuple, set)):
        return nbytes + sum(map(_nbytes, islice(value, _LOOKED_AT)))
    if isinstance(value, dict):
        # Only values: dicts mostly share their keys.
        return nbytes + sum(map(_nbytes, islice(value.values(), _LOOKED_AT)))
    return nbytes
