"""The generators of random numbers that a Dataset and its transforms keep for themselves.

A batch may be made twice (``deferral.py``), and must then draw the same numbers. With an int
``seed``, what can be seeded is seeded before each sample, as the global generators are
(``randomness.py``). Both are found where Datasets have them: in attributes, in lists, tuples and
dicts there, and in what functions name: variables of their module, of a function around them, and
defaults. What is in a large container is not found.
"""

from __future__ import annotations

import contextlib
import functools
import random
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from . import randomness

# Objects that are looked at. A Dataset may refer to anything.
_MOST: int = 400
# Of a container with more entries, which is data, none is looked at.
_LARGEST: int = 32

# What a FastLoader keeps of its epochs. The user's objects among it are in its arguments, too.
_RUN = "fastload._run."

_DATA = (str, bytes, int, float, type(None), type, torch.Tensor, np.ndarray, types.ModuleType)


class Before(NamedTuple):
    """The states of all generators before a batch.

    Attributes:
        shared: of Python's, NumPy's and torch's global ones.
        own: restores one of the Dataset's own each.
    """

    shared: randomness.State
    own: list[Callable[[], object]]

    def restore(self) -> None:
        """Have all of them continue from there."""
        randomness.put(self.shared)
        for restore in self.own:
            restore()


class _ObjectSearch:
    """Looks for what a Dataset has that ``matches``: when asked for time 1, 2, 4, 8 ...

    To look at some hundred objects takes a part of a millisecond, as much as a small batch.
    """

    def __init__(self, matches: Callable[[object], bool]) -> None:
        self._matches = matches
        self._objects: list[Any] = []
        self._calls = 0

    def objects(self, *owners: object) -> list[Any]:
        self._calls += 1
        if self._calls & (self._calls - 1) == 0:
            self._objects = list(_objects_in(owners, self._matches))
        return self._objects


class OwnGenerators:
    """The generators of one Dataset."""

    def __init__(self) -> None:
        self._search = _ObjectSearch(_is_generator)

    def states(self, *owners: object) -> Before:
        """The states of all generators now. ``owners``: a Dataset, a ``collate_fn``."""
        return Before(randomness.get(), list(map(_restorer, self._search.objects(*owners))))


def _has_state(generator: object) -> bool:
    """Whether it has a state that can be read in any process."""
    if isinstance(generator, torch.Generator):
        return generator.device.type == "cpu"  # a forked process must not touch CUDA
    return not isinstance(generator, random.SystemRandom)


def _restorer(generator: Any) -> Callable[[], object]:
    """What sets a generator back to its state of now."""
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        numbers = bits.state
        return lambda: setattr(bits, "state", numbers)
    if isinstance(generator, random.Random):
        words = generator.getstate()
        return lambda: generator.setstate(words)
    state = generator.get_state()
    return lambda: generator.set_state(state)


def _is_generator(value: object) -> bool:
    # Not a constant: NumPy imports its own when they are first asked for, which takes 5 ms.
    numpys = np.random.Generator, np.random.RandomState
    if not issubclass(type(value), (random.Random, torch.Generator, *numpys)):
        return False
    # the global ones, as in ``from random import randint``: ``randomness.py`` has these
    shared = value is random.seed.__self__ or value is torch.default_generator  # type: ignore[attr-defined]
    return not shared and _has_state(value)


class OwnSeeds:
    """What a Dataset, or a transform, has that can be seeded: Albumentations' pipelines."""

    def __init__(self, owner: object) -> None:
        self._owner = owner
        self._search = _ObjectSearch(_is_seedable)

    def seed_all(self, seed: int) -> None:
        """Seed them, and the global generators of this process."""
        randomness.seed_all(seed)
        for pipeline in self._search.objects(self._owner):
            pipeline.set_random_seed(seed & 0xFFFFFFFF)


def _is_seedable(value: object) -> bool:
    method = getattr(type(value), "set_random_seed", None)
    return getattr(method, "__module__", "").partition(".")[0] == "albumentations"


def kind_of_own(dataset: object) -> str | None:
    """The type of a generator of the Dataset's own, or of what keeps some; None: there is none."""
    own = next(
        _objects_in((dataset,), lambda value: _is_seedable(value) or _is_generator(value)), None
    )
    return None if own is None else f"{type(own).__module__}.{type(own).__qualname__}"


def _objects_in(owners: Iterable[object], matches: Callable[[object], bool]) -> Iterator[object]:
    """What ``matches`` is true of. What is in these is not looked at."""
    seen: set[int] = set()
    to_visit = list(owners)
    # Looked at last, since one function may lead to many others.
    functions = [getattr(type(owner), name, None) for owner in to_visit for name in _CALLED]
    while (to_visit or functions) and len(seen) < _MOST:
        value: Any = to_visit.pop() if to_visit else functions.pop()
        kind = type(value)  # isinstance also asks the object, which may be a stand-in
        if issubclass(kind, _DATA) or id(value) in seen or str(kind.__module__).startswith(_RUN):
            continue
        seen.add(id(value))
        if matches(value):
            yield value
        elif issubclass(kind, (list, tuple)):
            to_visit += value if len(value) <= _LARGEST else ()
        elif issubclass(kind, dict):
            to_visit += value.values() if len(value) <= _LARGEST else ()
        elif issubclass(kind, types.MethodType):
            to_visit.append(value.__self__)
            functions.append(value.__func__)
        elif issubclass(kind, functools.partial):
            to_visit += [value.func, value.args, value.keywords]
        elif issubclass(kind, types.FunctionType):
            functions += _named_in(value)
        else:
            with contextlib.suppress(Exception):
                to_visit += getattr(value, "__dict__", {}).values()


_CALLED = ("__getitem__", "__getitems__", "__iter__", "__call__")


def _named_in(function: types.FunctionType) -> list[Any]:
    """What a function names, and the functions in it."""
    named: list[Any] = list(function.__defaults__ or ())
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # empty
            named.append(cell.cell_contents)
    codes = [function.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        variables = function.__globals__
        named += [variables[name] for name in code.co_names if name in variables]
    return named
