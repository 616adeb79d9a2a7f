"""Batches that others have torch's iterators skip, by what they add to the iterators' ``__init__``.

SpeechBrain resumes an epoch in that way: its addition draws from the iterator's ``_sampler_iter``
as many batches as its loader says, and tells the loader that it has done so.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter


def skipped(loader: object) -> int:
    """How many batches the next iterator of ``loader`` skips. Ask only once for each."""
    shown = _Shown(loader)
    _BaseDataLoaderIter(shown)  # type: ignore[arg-type]
    return next(shown._index_sampler)


class _Shown:
    """``loader`` with another order, of which what was drawn is counted.

    Nothing that it has instead of the loader's draws random numbers, warns, or asks the dataset.
    """

    dataset = None
    pin_memory = False
    _index_sampler: Iterator[int]

    def __init__(self, loader: object) -> None:
        own = torch.Generator(torch.get_default_device())  # torch draws a seed on that device
        vars(self).update(_loader=loader, generator=own, _index_sampler=itertools.count())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._loader, name, value)
