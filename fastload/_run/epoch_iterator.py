"""EpochIterator: what ``iter`` of a FastLoader returns.

As in torch, ``iter`` starts the epoch: it draws random numbers and starts workers. But trainers may
call ``iter`` before they set the epoch; Lightning does when it resumes after the end of an epoch.
If another epoch is set before the first batch, the started epoch is closed, torch's generators are
restored to their states before it, and the other epoch is started.
"""

from __future__ import annotations

import dataclasses
import os
import weakref
from typing import Any, Protocol

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

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
from .persistent_workers import PersistentWorkers
from .resources import Resources
from .route import EngineRoute, TorchRoute
from .setup import Setup, decide
from .skipped import skipped
from .stream import BatchStream, ClosedStream


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochContext:
    """What an EpochIterator needs from its loader.

    Attributes:
        config: the arguments as they are now.
        resources: what the loader keeps between epochs.
        cursor: which epoch it is at.
        timeline: where the epoch is recorded, or None.
        length: batches of this rank if the loader divides the epoch among ranks, else None.
        reported: the length that an IterableDataset gave when ``len`` asked for it, or None.
        loader: the loader, which this does not keep alive.
    """

    config: LoaderConfig
    resources: Resources
    cursor: EpochCursor
    timeline: Timeline | None
    length: int | None
    reported: int | None
    loader: weakref.ref[Loader]


class Loader(Protocol):
    """A FastLoader, as far as it is used here."""

    def _iteration(self) -> EpochContext: ...

    def _torch_iterator(self, kept: object | None) -> _BaseDataLoaderIter: ...


class EpochIterator(WrappedIterator[Any], BatchStream, _BaseDataLoaderIter):
    """The batches of one epoch, or of another one that is chosen before the first batch.

    It is one of torch's iterators for ``isinstance``. It has the attributes of the stream inside,
    so that those of torch's iterators are available wherever one of those runs.

    Args:
        context: what the epoch needs.
    """

    def __init__(self, context: EpochContext) -> None:
        self._persistent = PersistentWorkers()
        self._wrapped: BatchStream = ClosedStream()
        self._closed = True
        self._start(context)

    def _reset(self, loader: Loader, first_iter: bool = False) -> None:
        """Start the next epoch. torch calls this on iterators with persistent workers."""
        self.close()
        self._start(loader._iteration())

    def _start(self, context: EpochContext) -> None:
        self._context = context
        cursor = context.cursor
        self._before = self._persistent.holder, cursor.base_seed
        self._states = [generator.get_state() for generator in generators(context.config)]
        self._begin()
        self._first_pending = True
        self._process = os.getpid()

    def _begin(self) -> None:
        self._wrapped = _stream(self._context, self._persistent)
        self._closed = False
        progress = self._context.cursor.progress
        assert progress is not None
        self._started, self._num_yielded = progress, progress.batches

    def __iter__(self) -> EpochIterator:
        return self

    def __next__(self) -> Any:
        if self._first_pending and not self._closed:
            self._fix_epoch()
        if self._closed:  # not asked: it would take this for the end of the epoch
            raise StopIteration
        batch = next(self._wrapped)
        self._num_yielded += 1
        return batch

    def _next_data(self) -> Any:
        """As in torch: the next batch."""
        return next(self)

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
        holder, base_seed = self._before
        if self._persistent.holder is not holder:
            self._persistent.holder = None  # their seed is from the epoch that is given up
        if cursor.resume is None:
            cursor.base_seed = base_seed
        users_state = torch.default_generator.get_state()
        for generator, state in zip(generators(context.config), self._states):
            generator.set_state(state)
        try:
            self._begin()
        finally:
            torch.default_generator.set_state(users_state)

    def ready(self) -> bool:
        """As in BatchStream."""
        return self._wrapped.ready()

    def close(self) -> None:
        """As in BatchStream. Worker processes end unless they persist."""
        self._closed = True
        self._wrapped.close()


def _stream(context: EpochContext, workers: PersistentWorkers) -> BatchStream:
    """Start the next epoch."""
    config, resources, cursor = context.config, context.resources, context.cursor
    number = cursor.begin(config)
    stamps = Stamps(context.timeline)
    found = route.find(config)
    loader = context.loader()
    if not (isinstance(found, TorchRoute) or config.iterable or loader is None):
        cursor.skip(config, number, skipped(loader))
    if cursor.resume is not None:
        workers.holder = None  # they are at another place in the data
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
        inner = _host_batches(context, plan, setup, workers)
        return delivery.deliver(config, resources, cursor, plan, setup, inner)


def _host_batches(
    context: EpochContext, plan: EpochPlan, setup: Setup | None, workers: PersistentWorkers
) -> BatchStream:
    """The batches in host memory, made by the epoch's route."""
    config, resources, cursor = context.config, context.resources, context.cursor
    if isinstance(plan.route, EngineRoute):
        assert setup is not None, "decided for every engine"
        return engine_epoch.stream(
            config, resources, cursor, plan, plan.route.source, setup, length=context.length
        )
    if isinstance(plan.route, TorchRoute):
        loader = context.loader()
        if loader is None:
            return ClosedStream()
        found = loader._torch_iterator(workers.holder)
        if config.persistent:
            workers.holder = found
        plan.progress.batches = found._num_yielded  # others may have it skip some
        return Observed(found, plan.stamps)
    from .workers import dataset_epoch

    return dataset_epoch.stream(config, resources, cursor, plan, workers, reported=context.reported)
