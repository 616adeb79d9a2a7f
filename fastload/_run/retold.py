"""An iteration that begins again where another epoch is chosen before its first batch.

Trainers ask for the iterator early: Lightning, when it goes on after the end of an epoch, does so
before it tells the sampler which epoch comes now. A sampler that is asked for its order by the
first batch does not mind; an engine that is ahead by then has begun the wrong one.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import epoch
from .progress import Progress


def _again(loader: Any, states: list[torch.Tensor]) -> Iterator[Any]:
    """Begin once more, as if nothing had been drawn yet; the global generator is the user's."""
    own = torch.default_generator.get_state()
    for generator, state in zip(epoch.generators(loader), states):
        generator.set_state(state)
    try:
        return loader._begin()  # type: ignore[no-any-return]
    finally:
        torch.default_generator.set_state(own)


class Retold(Iterator[Any]):
    """The batches of one epoch of ``loader``; of a new one, where another is chosen meanwhile.

    It has the attributes of the iterator inside and passes for one of its class: trainers ask
    whether an iterator is one of torch's.

    Args:
        loader: a FastLoader; it is not kept.
    """

    def __init__(self, loader: Any) -> None:
        self._iterator: Iterator[Any] = iter(())
        # Until the first batch: what is kept alive, such as workers of before, is let go then.
        self._first: tuple[weakref.ref[Any], Callable[[Any], Iterator[Any]]] | None = None
        self._reset(loader)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Begin the next epoch: what torch calls where an iterator persists with its workers."""
        self._end()
        self._first = None
        inner, base_seed = loader._inner, loader._base_seed
        states = [generator.get_state() for generator in epoch.generators(loader)]

        def again(loader: Any) -> Iterator[Any]:
            if loader._inner is not inner:
                loader._inner = None  # workers that persist from now on, seeded with what was drawn
            if loader._resume is None:  # whose seed it is else
                loader._base_seed = base_seed
            return _again(loader, states)

        self._iterator = loader._begin()
        self._first = weakref.ref(loader), again
        self._begun: Progress = loader._progress
        self._process = os.getpid()

    def __next__(self) -> Any:
        if self._first is not None:
            self._settle()
        return next(self._iterator)

    def _settle(self) -> None:
        """Before the first batch: see which epoch it is to be of."""
        assert self._first is not None
        (reference, again), self._first = self._first, None
        loader = reference()
        if loader is None or os.getpid() != self._process:
            return
        if not epoch.another(loader, self._begun):
            epoch.settle(loader, self._begun)
            return
        self._end()
        self._iterator = again(loader)

    def _end(self) -> None:
        """End the epoch that was begun: its worker processes end before others begin.

        Where no other can begin, the iterator has ended.
        """
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()
        self._iterator = iter(())

    def __len__(self) -> int:
        return len(self._iterator)  # type: ignore[arg-type]

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # what isinstance looks at beside the type
        return type(self._iterator)

    def __getattr__(self, name: str) -> Any:
        if name == "_iterator":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self._iterator, name)

    def __reduce__(self) -> Any:
        return self._iterator.__reduce__()
