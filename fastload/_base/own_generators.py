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


class _Search:
    """Looks for the parts of a Dataset that are ``wanted``: when asked for time 1, 2, 4, 8 ...

    To look at some hundred objects takes a part of a millisecond, as much as a small batch.
    """

    def __init__(self, wanted: Callable[[object], bool]) -> None:
        self._wanted = wanted
        self._found: list[Any] = []
        self._asked = 0

    def found(self, *owners: object) -> list[Any]:
        self._asked += 1
        if self._asked & (self._asked - 1) == 0:
            self._found = list(_parts(owners, self._wanted))
        return self._found


class OwnGenerators:
    """The generators of one Dataset."""

    def __init__(self) -> None:
        self._search = _Search(_is_generator)

    def states(self, *owners: object) -> Before:
        """The states of all generators now. ``owners``: a Dataset, a ``collate_fn``."""
        return Before(randomness.get(), list(map(_restorer, self._search.found(*owners))))


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


def _is_generator(part: object) -> bool:
    # Not a constant: NumPy imports its own when they are first asked for, which takes 5 ms.
    numpys = np.random.Generator, np.random.RandomState
    if not issubclass(type(part), (random.Random, torch.Generator, *numpys)):
        return False
    # the global ones, as in ``from random import randint``: ``randomness.py`` has these
    shared = part is random.seed.__self__ or part is torch.default_generator  # type: ignore[attr-defined]
    return not shared and _has_state(part)


class OwnSeeds:
    """What a Dataset, or a transform, has that can be seeded: Albumentations' pipelines."""

    def __init__(self, owner: object) -> None:
        self._owner = owner
        self._search = _Search(_is_seedable)

    def seed_all(self, seed: int) -> None:
        """Seed them, and the global generators of this process."""
        randomness.seed_all(seed)
        for pipeline in self._search.found(self._owner):
            pipeline.set_random_seed(seed & 0xFFFFFFFF)


def _is_seedable(part: object) -> bool:
    method = getattr(type(part), "set_random_seed", None)
    return getattr(method, "__module__", "").partition(".")[0] == "albumentations"


def kind_of_own(dataset: object) -> str | None:
    """The type of a generator of the Dataset's own, or of what keeps some; None: there is none."""
    own = next(_parts((dataset,), lambda part: _is_seedable(part) or _is_generator(part)), None)
    return None if own is None else f"{type(own).__module__}.{type(own).__qualname__}"


def _parts(owners: Iterable[object], wanted: Callable[[object], bool]) -> Iterator[object]:
    """The objects that are ``wanted``. What is in these is not looked at."""
    seen: set[int] = set()
    left = list(owners)
    # Looked at last, since one function may lead to many others.
    functions = [getattr(type(owner), name, None) for owner in left for name in _CALLED]
    while (left or functions) and len(seen) < _MOST:
        part: Any = left.pop() if left else functions.pop()
        kind = type(part)  # isinstance also asks the object, which may be a stand-in
        if issubclass(kind, _DATA) or id(part) in seen or str(kind.__module__).startswith(_RUN):
            continue
        seen.add(id(part))
        if wanted(part):
            yield part
        elif issubclass(kind, (list, tuple)):
            left += part if len(part) <= _LARGEST else ()
        elif issubclass(kind, dict):
            left += part.values() if len(part) <= _LARGEST else ()
        elif issubclass(kind, types.MethodType):
            left.append(part.__self__)
            functions.append(part.__func__)
        elif issubclass(kind, functools.partial):
            left += [part.func, part.args, part.keywords]
        elif issubclass(kind, types.FunctionType):
            functions += _named_in(part)
        else:
            with contextlib.suppress(Exception):
                left += getattr(part, "__dict__", {}).values()


_CALLED = ("__getitem__", "__getitems__", "__iter__", "__call__")


def _named_in(function: types.FunctionType) -> list[Any]:
    """What a function names, and the functions in it."""
    found: list[Any] = list(function.__defaults__ or ())
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # empty
            found.append(cell.cell_contents)
    codes = [function.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        known = function.__globals__
        found += [known[name] for name in code.co_names if name in known]
    return found
