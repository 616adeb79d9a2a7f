"""Route: who makes the batches of a loader, and why."""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

import torch
from torch.utils.data import IterDataPipe, MapDataPipe

from .._engine import chosen
from .._sources.source import Source, check_one_size, resolve
from .._sources.unreadable import Unreadable
from ..errors import UsageError
from .config import LoaderConfig
from .row_order import check_rows


@dataclasses.dataclass(frozen=True)
class EngineRoute:
    """An engine of fastload fills whole batches.

    Attributes:
        source: what it reads, with the dtype, layout and decoding that the loader asks for.
    """

    source: Source

    @property
    def decodes(self) -> bool:
        """Whether it decodes images, rather than copying rows of tensors."""
        return not self.source.tensors


@dataclasses.dataclass(frozen=True)
class WorkersRoute:
    """The dataset's own code makes the samples: in worker processes, or in this one.

    Attributes:
        reason: why, for ``explain()``.
        hybrid: where an engine begins each sample and Python ends it: what the engine reads.
    """

    reason: str
    hybrid: Source | None = None


@dataclasses.dataclass(frozen=True)
class TorchRoute:
    """torch's own iterator runs, with nothing of fastload but the clock.

    torch knows DataPipes by their type. With ``in_order=False`` it asks again for batches that have
    not come, which would keep a finished worker of an iterable dataset busy.

    Attributes:
        reason: why, for ``explain()``.
    """

    reason: str


Route: TypeAlias = EngineRoute | WorkersRoute | TorchRoute


def find(config: LoaderConfig) -> Route:
    """The route of a loader as it stands; its dataset may change between epochs.

    Raises:
        UsageError: arguments ask for what this route cannot do.
        MissingDependencyError: the engine that was asked for is not there.
    """
    hybrid = None
    try:
        source = _readable(config)
        if source.hybrid is None:
            chosen(config.engine, source.store)  # raises where it is not there
            source = source.with_output(config.dtype, config.memory_format)
            return EngineRoute(source.with_decode(config.decode))
        reason = source.reason
        hybrid = source if config.batched else None
    except Unreadable as unreadable:
        reason = unreadable.reason
    _check_left_to_python(config, reason)
    unordered = not config.in_order and config.num_workers > 0
    if unordered or isinstance(config.dataset, (IterDataPipe, MapDataPipe)):
        return TorchRoute(reason)
    return WorkersRoute(reason, hybrid)


def _readable(config: LoaderConfig) -> Source:
    """What an engine reads, or begins to. Raises Unreadable where there is nothing."""
    if config.engine == "workers":
        raise Unreadable("engine='workers' was asked for")
    if config.single:
        raise Unreadable("batch_size=None asks for single samples")
    source = resolve(config.dataset)
    if config.engine == "auto" and source.hybrid is None:
        if source.tensors:
            started = bool(config.num_workers and config.worker_init_fn)
            check_rows(config.sampler, config.batch_sampler, started=started)
        elif config.collates:
            check_one_size(source)
    return source


def _check_left_to_python(config: LoaderConfig, reason: str) -> None:
    """Raise UsageError for arguments that only an engine of fastload can follow."""
    if config.engine in ("native", "python", "dali"):
        raise UsageError(f"engine={config.engine!r} cannot read this dataset: {reason}")
    if config.dtype is not None or config.memory_format != torch.contiguous_format:
        raise UsageError(
            "dtype and memory_format are for fastload's own engines, which do not run here: "
            f"{reason}; convert in the transform or in collate_fn"
        )
    if config.decode != "exact":
        raise UsageError(
            f"decode={config.decode!r} is for fastload's own engines, which do not run here: "
            f"{reason}"
        )
