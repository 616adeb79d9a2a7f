"""An iteration that begins again where its sampler is told another epoch before the first batch.

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

from . import _epoch
from ._sampler import SeededSampler


def watched(loader: Any) -> Iterator[Any]:
    """Begin an epoch of ``loader``: its iterator; where it may matter, as ``Retold``."""
    base_seed = loader._base_seed
    states = [generator.get_state() for generator in _epoch.generators(loader)]
    iterator = loader._begin()
    sampler, begun = loader._epoch_sampler(), loader._progress

    def again(loader: Any) -> Iterator[Any]:
        return _again(loader, base_seed, states)

    if isinstance(sampler, SeededSampler):
        return Retold(iterator, loader, lambda _: sampler.another(begun.epoch), again)
    if begun.sampler_epoch is None:
        return iterator  # type: ignore[no-any-return]
    return Retold(
        iterator, loader, lambda loader: _epoch.told(loader) != begun.sampler_epoch, again
    )


def _again(loader: Any, base_seed: int | None, states: list[torch.Tensor]) -> Iterator[Any]:
    """Begin once more, as if nothing had been drawn yet; the global generator is the user's."""
    if loader._inner is not None:  # workers that persist have their seed: none is drawn
        return loader._begin()  # type: ignore[no-any-return]
    own = torch.default_generator.get_state()
    loader._base_seed = base_seed
    for generator, state in zip(_epoch.generators(loader), states):
        generator.set_state(state)
    try:
        return loader._begin()  # type: ignore[no-any-return]
    finally:
        torch.default_generator.set_state(own)


class Retold(Iterator[Any]):
    """The batches of ``iterator``, or where another epoch was chosen, those of a new one.

    Args:
        iterator: the epoch that was begun.
        loader: whose it is; it is not kept.
        another: whether the sampler has been told of another epoch than the one that was begun.
        again: begins the epoch that the sampler was told.
    """

    def __init__(
        self,
        iterator: Iterator[Any],
        loader: Any,
        another: Callable[[Any], bool],
        again: Callable[[Any], Iterator[Any]],
    ) -> None:
        self._iterator = iterator
        self._loader: weakref.ref[Any] | None = weakref.ref(loader)
        self._another = another
        self._again = again
        self._process = os.getpid()

    def __next__(self) -> Any:
        if self._loader is not None:
            self._settle()
        return next(self._iterator)

    def _settle(self) -> None:
        """Before the first batch: see which epoch it is to be of."""
        assert self._loader is not None
        loader, self._loader = self._loader(), None
        if loader is None or os.getpid() != self._process or not self._another(loader):
            return
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()
        # Its worker processes end before others begin; where none can, it has ended.
        self._iterator = iter(())
        self._iterator = self._again(loader)

    def __len__(self) -> int:
        return len(self._iterator)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "_iterator":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self._iterator, name)

    def __reduce__(self) -> Any:
        return self._iterator.__reduce__()
