"""Route: what makes the batches of a loader, and why."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from .. import _native
from .._engine.registry import ROWS, is_engine, is_torch, native
from .._sources.kinds import is_packed, nested
from .._sources.unreadable import Unreadable
from ..errors import UsageError, type_next
from .config import LoaderConfig
from .order import order_of

if TYPE_CHECKING:
    from .._engine.registry import EngineKind
    from .._sources.source import Source


class EngineRoute(NamedTuple):
    """An engine of fastload makes whole batches of ``source``, which has the loader's dtype and
    layout: it decodes images, or copies rows of tensors. ``engine`` is the one on the CPU.
    """

    source: Source
    engine: EngineKind


class WorkersRoute(NamedTuple):
    """The dataset's own code makes the samples, in worker processes or in this one.

    Attributes:
        reason: why, for ``explain()``.
        eager: why the dataset runs over images as Pillow opens them; empty: over deferred ones.
    """

    reason: str
    eager: str


class TorchRoute(NamedTuple):
    """torch's own iterator runs; fastload only measures it. ``reason`` says why, for ``explain()``.

    For DataPipes, because torch treats them specially by type; for ``in_order=False``, because
    torch then gives further tasks to workers of an iterable dataset that have already ended; and
    where another package has put its own code in torch's iteration, which may give other batches.
    """

    reason: str


Route: TypeAlias = EngineRoute | WorkersRoute | TorchRoute

_NO_CORE = "the C++ core is missing"

# engine, dtype, memory_format and decode that need no engine of fastload.
_ANY_ROUTE = ("auto", None, torch.contiguous_format, "exact")

# Samplers of torch's that give only ints, beside those whose order is known.
_OF_INTS = (
    RandomSampler,
    WeightedRandomSampler,
    DistributedSampler,
)


def find(config: LoaderConfig) -> Route:
    """The route of a loader now; it can change between epochs, with the dataset.

    Raises:
        UsageError: the arguments ask for something that this route cannot do.
        MissingDependencyError: the engine that was asked for is not installed.
    """
    reason, eager = config.left_to_python, _eager(config)
    if not reason:
        try:
            source = _readable(config, eager)
            engine = ROWS if source.tensors else native()
            source = source.made_as(config.dtype, config.memory_format, config.decode)
            return EngineRoute(source, engine)
        except Unreadable as unreadable:
            reason = unreadable.reason
    if (config.engine, config.dtype, config.memory_format, config.decode) != _ANY_ROUTE:
        _check_left_to_python(config, reason)
    if config.left_to_torch:
        return TorchRoute(reason)
    return WorkersRoute(reason, eager)


def _eager(config: LoaderConfig) -> str:
    """Why images that the dataset opens are not deferred; "": they are. Warns without the core."""
    if is_torch(config.engine):
        return "engine='torch' was asked for"
    if _native.load() is None:
        _native.warn_missing()
        return _NO_CORE
    return "FASTLOAD_DEFER is 0" if os.environ.get("FASTLOAD_DEFER") == "0" else ""


def _readable(config: LoaderConfig, eager: str) -> Source:
    """What an engine reads. Raises Unreadable if there is nothing."""
    from .._sources.source import check_one_size, resolve

    source = resolve(config.dataset)
    if config.engine == "auto":
        if eager == _NO_CORE:
            raise Unreadable(_NO_CORE)
        # Images of a store have no code of the user's.
        if config.needs_workers and not any(map(is_packed, nested(config.dataset))):
            raise Unreadable(
                "only worker processes call a worker_init_fn, and an engine reads without them; "
                "engine='native' never calls it"
            )
        if source.tensors:
            if not config.own_order:  # torch's own samplers give ints, and so do ours
                _check_rows(config.sampler, config.batch_sampler)
        elif config.custom_collate and not config.one_size:
            check_one_size(source)
    return source


def _check_rows(sampler: Iterable[Any] | None, batch_sampler: Iterable[Any] | None) -> None:
    """Raise Unreadable if a batch of a TensorDataset may be anything but rows of its tensors.

    An index that is not an int (a list, a slice) would make one sample of several rows. With a
    ``batch_sampler``, ``sampler`` is ignored.
    """
    if type(batch_sampler) is BatchSampler:
        sampler, batch_sampler = batch_sampler.sampler, None
    if batch_sampler is not None:
        listed = type(batch_sampler) in (list, tuple) and all(map(_ints, batch_sampler))
        rows = listed or order_of(batch_sampler).batched
    elif isinstance(sampler, BatchSampler):
        raise Unreadable("the sampler gives lists of indices, each of which is one sample")
    else:
        order = order_of(sampler)
        ours = sampler is None or (order.known and not order.batched)
        rows = ours or type(sampler) in _OF_INTS or _ints(sampler)
    if not rows:
        kind = type(sampler if batch_sampler is None else batch_sampler)
        raise Unreadable(
            f"a {kind.__name__} may give lists of indices, each of which is one sample of "
            "a TensorDataset; if it gives only ints, engine='native' copies rows"
        )


def _ints(sampler: object) -> bool:
    """Whether ``sampler`` is a sequence of ints, or torch's random sampler over one."""
    indices: object = sampler.indices if type(sampler) is SubsetRandomSampler else sampler
    if isinstance(indices, (list, tuple)) and type(indices) in (list, tuple):
        return all(type(index) is int for index in indices)
    return isinstance(indices, range)


def _check_left_to_python(config: LoaderConfig, reason: str) -> None:
    """Raise UsageError for arguments that need an engine of fastload."""
    if is_engine(config.engine):
        raise UsageError(
            f"engine={config.engine!r} cannot read this dataset: {reason}; without that argument, "
            "fastload runs the dataset's own code, and decodes its images in C++ if it can"
            + type_next('engine="auto"')
        )
    if config.dtype is not None or config.memory_format != torch.contiguous_format:
        raise UsageError(
            "dtype and memory_format need one of fastload's engines, and none can be used: "
            f"{reason}; convert in the transform or in collate_fn"
        )
    if config.decode != "exact":
        raise UsageError(
            f"decode={config.decode!r} needs one of fastload's engines, and none can be used: "
            f"{reason}"
        )
