"""Checks whether a sampler allows copying whole batches of rows from a TensorDataset."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from .._sources.unreadable import Unreadable
from .order import order_of

# Samplers of torch's that give only ints, beside those whose order is known.
_OF_INTS = (
    RandomSampler,
    WeightedRandomSampler,
    DistributedSampler,
)


def check_rows(
    sampler: Iterable[Any] | None, batch_sampler: Iterable[Any] | None, *, started: bool
) -> None:
    """Raise Unreadable if a batch of a TensorDataset may be anything but rows of its tensors.

    An index that is not an int (a list, a slice) would make one sample of several rows. With a
    ``batch_sampler``, ``sampler`` is ignored. ``started``: workers have a ``worker_init_fn`` to
    call.
    """
    if started:
        raise Unreadable(
            "only worker processes call a worker_init_fn, and rows are copied without them; "
            "engine='native' copies rows and never calls it"
        )
    if batch_sampler is not None:
        _check_batches(batch_sampler)
    elif isinstance(sampler, BatchSampler):
        raise Unreadable("the sampler gives lists of indices, each of which is one sample")
    elif not (sampler is None or _gives_ints(sampler)):
        raise _may_give_lists(sampler)


def _check_batches(batch_sampler: Iterable[Any]) -> None:
    if order_of(batch_sampler).batched:
        return
    if type(batch_sampler) is BatchSampler:
        check_rows(batch_sampler.sampler, None, started=False)
    elif type(batch_sampler) not in (list, tuple) or not all(map(_ints, batch_sampler)):
        raise _may_give_lists(batch_sampler)


def _may_give_lists(sampler: object) -> Unreadable:
    return Unreadable(
        f"a {type(sampler).__name__} may give lists of indices, each of which is one sample of a "
        "TensorDataset; if it gives only ints, engine='native' copies rows"
    )


def _gives_ints(sampler: object) -> bool:
    order = order_of(sampler)
    ours = order.known and not order.batched
    return ours or type(sampler) in _OF_INTS or _ints(sampler)


def _ints(sampler: object) -> bool:
    """Whether ``sampler`` is a sequence of ints, or torch's random sampler over one."""
    indices: object = sampler.indices if type(sampler) is SubsetRandomSampler else sampler
    if isinstance(indices, (list, tuple)) and type(indices) in (list, tuple):
        return all(type(index) is int for index in indices)
    return isinstance(indices, range)
