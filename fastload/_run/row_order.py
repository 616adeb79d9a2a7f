"""Check whether a sampler lets batches of a TensorDataset be rows of its tensors."""

from __future__ import annotations

from typing import Any

from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from .._sources.unreadable import Unreadable
from .order import InOrder, SeededSampler

# Samplers that give nothing but ints.
_OF_INTS = (
    SequentialSampler,
    RandomSampler,
    WeightedRandomSampler,
    DistributedSampler,
    SeededSampler,
    InOrder,
)


def check_rows(sampler: Any, batch_sampler: Any, *, started: bool) -> None:
    """Raise Unreadable where batches of a TensorDataset may not be rows of its tensors.

    Args:
        sampler, batch_sampler: what gives the indices; ``sampler`` does not matter beside a
            ``batch_sampler``. What is no int (a list, a slice) is taken by a tensor too, as one
            sample of many rows.
        started: whether workers are to call a ``worker_init_fn``.
    """
    if started:
        raise Unreadable(
            "a worker_init_fn is called by worker processes, and rows are copied without any; "
            "engine='native' copies rows and never calls it"
        )
    if batch_sampler is not None:
        _check_batches(batch_sampler)
    elif isinstance(sampler, BatchSampler):
        raise Unreadable("the sampler gives lists of indices, each of which is one sample")
    elif not (sampler is None or type(sampler) in _OF_INTS or _ints(sampler)):
        raise _may_give_lists(sampler)


def _check_batches(batch_sampler: Any) -> None:
    if type(batch_sampler) is BatchSampler:
        check_rows(batch_sampler.sampler, None, started=False)
    elif type(batch_sampler) not in (list, tuple) or not all(map(_ints, batch_sampler)):
        raise _may_give_lists(batch_sampler)


def _may_give_lists(sampler: Any) -> Unreadable:
    return Unreadable(
        f"a {type(sampler).__name__} may give lists of indices, each of which is one sample of a "
        "TensorDataset; if all it gives are ints, engine='native' copies rows"
    )


def _ints(sampler: Any) -> bool:
    if type(sampler) is SubsetRandomSampler:
        sampler = sampler.indices
    if type(sampler) in (list, tuple):
        return all(type(index) is int for index in sampler)
    return isinstance(sampler, range)
