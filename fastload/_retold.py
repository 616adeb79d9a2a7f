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

from . import _epoch
from ._sampler import SeededSampler


def watched(loader: Any, iterator: Iterator[Any]) -> Iterator[Any]:
    """``iterator``, of the epoch that ``loader`` has begun; where it may matter, as ``Retold``."""
    sampler, begun = loader._epoch_sampler(), loader._progress
    if isinstance(sampler, SeededSampler):
        return Retold(iterator, loader, lambda _: sampler.another(begun.epoch))
    if begun.sampler_epoch is None:
        return iterator
    return Retold(iterator, loader, lambda loader: _epoch.told(loader) != begun.sampler_epoch)


class Retold(Iterator[Any]):
    """The batches of ``iterator``, or where another epoch was chosen, those of a new one.

    Args:
        iterator: the epoch that was begun.
        loader: begins it again; it is not kept.
        another: whether the sampler has been told of another epoch than the one that was begun.
    """

    def __init__(
        self, iterator: Iterator[Any], loader: Any, another: Callable[[Any], bool]
    ) -> None:
        self._iterator = iterator
        self._loader: weakref.ref[Any] | None = weakref.ref(loader)
        self._another = another
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
        del self._iterator  # its worker processes end before others begin
        self._iterator = loader._begin()

    def __len__(self) -> int:
        return len(self._iterator)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "_iterator":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self._iterator, name)

    def __reduce__(self) -> Any:
        return self._iterator.__reduce__()
