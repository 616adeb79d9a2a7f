"""EpochIterator: what ``iter`` of a FastLoader returns.

As in torch, ``iter`` starts the epoch: it draws random numbers and starts workers. But trainers may
call ``iter`` before they set the epoch; Lightning does when it resumes after the end of an epoch.
If another epoch is set before the first batch, the started epoch is closed, torch's generators are
restored to their states before it, and the other epoch is started.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from .._base.timeline import Timeline
from .._base.trace import Observed, Stamps
from .._base.wrapped_iterator import WrappedIterator
from .._sources.source import remote_stores
from . import engine_epoch, epoch_plan, route
from .config import LoaderConfig
from .cursor import EpochCursor, generators
from .delivery import delivery
from .epoch_plan import EpochPlan
from .measurements import Measurements
from .resources import Resources
from .route import EngineRoute, TorchRoute
from .setup import Setup, decide
from .stream import BatchStream


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochContext:
    """What an EpochIterator needs from its loader. It does not keep the loader alive.

    Attributes:
        config: the arguments as they are now.
        resources: what the loader keeps between epochs.
        cursor: which epoch it is at.
        timeline: where the epoch is recorded, or None.
        length: batches of this rank if the loader divides the epoch among ranks, else None.
        reported: the length that an IterableDataset gave when ``len`` asked for it, or None.
        torch_iterator: gives torch's own iterator; None when the loader is gone.
    """

    config: LoaderConfig
    resources: Resources
    cursor: EpochCursor
    timeline: Timeline | None
    length: int | None
    reported: int | None
    torch_iterator: Callable[[], Iterator[Any] | None]


class Loader(Protocol):
    """A loader that can start another epoch."""

    def _iteration(self) -> EpochContext: ...


class EpochIterator(WrappedIterator[Any], BatchStream):
    """The batches of one epoch, or of another one that is chosen before the first batch.

    It has the attributes of the stream inside, so that the attributes of torch's iterators are
    available wherever one of those runs.

    Args:
        context: what the epoch needs; it does not refer to the loader.
    """

    def __init__(self, context: EpochContext) -> None:
        self._wrapped: BatchStream = _ClosedStream()
        self._closed = True
        self._start(context)

    def _reset(self, loader: Loader, first_iter: bool = False) -> None:
        """Start the next epoch. torch calls this on iterators with persistent workers."""
        self.close()
        self._start(loader._iteration())

    def _start(self, context: EpochContext) -> None:
        self._context = context
        resources, cursor = context.resources, context.cursor
        self._before = resources.outcomes, resources.torch_iterator, cursor.base_seed
        self._states = [generator.get_state() for generator in generators(context.config)]
        self._wrapped = _stream(context)
        self._closed = False
        assert cursor.progress is not None
        self._started = cursor.progress
        self._first_pending = True
        self._process = os.getpid()

    def __next__(self) -> Any:
        if self._first_pending and not self._closed:
            self._fix_epoch()
        if self._closed:  # not asked: it would take this for the end of the epoch
            raise StopIteration
        return next(self._wrapped)

    def _fix_epoch(self) -> None:
        """Before the first batch: start again if another epoch was chosen since ``iter``."""
        self._first_pending = False
        if os.getpid() != self._process:
            return
        context, cursor = self._context, self._context.cursor
        if not cursor.changed_since(context.config, self._started):
            cursor.confirm(context.config, self._started)
            return
        self.close()
        resources = context.resources
        outcomes, torch_iterator, base_seed = self._before
        if resources.outcomes is not outcomes or resources.torch_iterator is not torch_iterator:
            resources.end_workers()  # their seed is from the epoch that is given up
        if cursor.resume is None:
            cursor.base_seed = base_seed
        users_state = torch.default_generator.get_state()
        for generator, state in zip(generators(context.config), self._states):
            generator.set_state(state)
        try:
            self._wrapped = _stream(context)
            self._closed = False
        finally:
            torch.default_generator.set_state(users_state)

    def ready(self) -> bool:
        """As in BatchStream."""
        return self._wrapped.ready()

    def close(self) -> None:
        """As in BatchStream. Worker processes end unless they persist."""
        self._closed = True
        self._wrapped.close()


class _ClosedStream(BatchStream):
    """The stream of an epoch that was closed: it has no more batches."""

    def __next__(self) -> Any:
        raise StopIteration

    def __len__(self) -> int:
        return 0

    def ready(self) -> bool:
        return True

    def close(self) -> None:
        pass


def _stream(context: EpochContext) -> BatchStream:
    """Start the next epoch."""
    config, resources, cursor = context.config, context.resources, context.cursor
    number = cursor.begin(config)
    stamps = Stamps(context.timeline)
    found = route.find(config)
    plan = epoch_plan.plan(config, cursor, found, stamps, number=number)
    cursor.progress = plan.progress
    native = isinstance(found, EngineRoute)
    resources.measurements = Measurements(
        native=native,
        stamps=stamps,
        bad=plan.bad,
        images=plan.images,
        remote=[(store, store.fetched() or {}) for store in remote_stores(config.dataset)],
        padding=plan.padding,
    )
    setup = decide(config, resources, found.source) if isinstance(found, EngineRoute) else None
    with plan.drawing():
        inner = _host_batches(context, plan, setup)
        return delivery.deliver(config, resources, cursor, plan, setup, inner)


def _host_batches(context: EpochContext, plan: EpochPlan, setup: Setup | None) -> BatchStream:
    """The batches in host memory, made by the epoch's route."""
    config, resources, cursor = context.config, context.resources, context.cursor
    if isinstance(plan.route, EngineRoute):
        assert setup is not None, "decided for every engine"
        return engine_epoch.stream(
            config, resources, cursor, plan, plan.route.source, setup, length=context.length
        )
    if isinstance(plan.route, TorchRoute):
        found = context.torch_iterator()
        return _ClosedStream() if found is None else Observed(found, plan.stamps)
    from .workers import dataset_epoch

    return dataset_epoch.stream(config, resources, cursor, plan, reported=context.reported)
