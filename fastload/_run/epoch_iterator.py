"""EpochIterator: what ``iter`` of a FastLoader returns.

As in torch, ``iter`` starts the epoch: it draws random numbers and starts workers. But trainers may
call ``iter`` before they set the epoch; Lightning does when it resumes after the end of an epoch.
If another epoch is set before the first batch, the started epoch is closed, torch's generators are
restored to their states before it, and the other epoch is started.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter
from typing_extensions import override

from .._base.timeline import Timeline
from .._base.trace import Stamps
from .._sources.source import remote_stores
from . import engine_epoch, epoch_plan, route
from .config import LoaderConfig
from .cursor import EpochCursor, generators, states_of
from .delivery import delivery
from .epoch import Epoch, ReportedLength
from .epoch_plan import EpochPlan
from .maker import Maker, NoMaker, PersistentWorkers, TorchMaker
from .measurements import Measurements
from .resources import Resources
from .route import EngineRoute, TorchRoute, WorkersRoute
from .setup import Setup, decide


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochContext:
    """What an EpochIterator needs from its loader, which this does not keep alive.

    Attributes:
        config: the arguments as they are now.
        timeline: where the epoch is recorded, or None.
        length: batches of this rank if the loader divides the epoch among ranks, else None.
        reported: the length that an IterableDataset gave when ``len`` asked for it, or None.
    """

    config: LoaderConfig
    resources: Resources
    cursor: EpochCursor
    timeline: Timeline | None
    length: int | None
    reported: int | None
    loader: weakref.ref[Loader]


_NOTHING = contextlib.nullcontext()
_TORCHS_FILE = torch.utils.data.dataloader.__file__


class Loader(Protocol):
    """A FastLoader, as far as it is used here."""

    def _iteration(self) -> EpochContext: ...

    def _torch_iterator(self, kept: object | None) -> _BaseDataLoaderIter: ...


class EpochIterator(_BaseDataLoaderIter):
    """The batches of one epoch, or of another one that is chosen before the first batch.

    It is one of torch's iterators for ``isinstance``. It has the attributes of what makes the
    batches, so that those of torch's iterators are available wherever one of those runs.
    """

    _epoch: Epoch | None = None

    def __init__(self, context: EpochContext) -> None:
        self._persistent = PersistentWorkers()
        self._closed = True
        self._start(context)

    def _torchs(self) -> Any:
        """Answers for what this lacks. Often torch's iterator, which may go before this one."""
        if self._epoch is None:
            raise AttributeError("there is no epoch")  # before __init__ has run: copy and pickle
        return self._epoch.maker.torch

    def __len__(self) -> int:
        return len(self._torchs())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torchs(), name)

    def __reduce__(self) -> str | tuple[Any, ...]:
        reduced: str | tuple[Any, ...] = self._torchs().__reduce__()  # torch's raises
        return reduced

    @property
    def _num_yielded(self) -> int:  # type: ignore[override]
        return 0 if self._epoch is None else self._epoch.yielded

    def _reset(self, loader: Loader, first_iter: bool = False) -> None:
        """Start the next epoch. torch calls this on iterators with persistent workers."""
        self.close()
        self._start(loader._iteration())

    def _start(self, context: EpochContext) -> None:
        self._context = context
        cursor = context.cursor
        self._before = self._persistent.holder, cursor.base_seed
        self._states = states_of(context.config)
        self._begin()
        self._first_pending = True
        self._process = os.getpid()

    def _begin(self) -> None:
        self._epoch = _epoch(self._context, self._persistent, self._states)
        self._closed = False

    def __iter__(self) -> EpochIterator:
        return self

    def __next__(self) -> Any:
        if self._first_pending and not self._closed:
            self._fix_epoch()
        if self._closed or self._epoch is None:  # not asked: it would be the end of the epoch
            raise StopIteration
        return self._epoch.next()

    @override
    def _next_data(self) -> Any:
        return next(self)

    def _fix_epoch(self) -> None:
        """Before the first batch: start again if another epoch was chosen since ``iter``."""
        self._first_pending = False
        if os.getpid() != self._process:
            return
        context, cursor = self._context, self._context.cursor
        assert self._epoch is not None, "it is not closed"
        begun = self._epoch.progress
        if not cursor.changed_since(context.config, begun):
            cursor.confirm(context.config, begun)
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
        """Whether ``next`` would not wait."""
        return self._closed or self._epoch is None or self._epoch.maker.ready()

    def close(self) -> None:
        """End the epoch now: nothing makes another batch. Workers end unless they persist."""
        self._closed = True
        if self._epoch is not None:
            self._epoch.maker.close()


def _epoch(
    context: EpochContext, workers: PersistentWorkers, states: Sequence[torch.Tensor]
) -> Epoch:
    """Start the next epoch. ``states``: of the generators that its order may be drawn from."""
    config, resources, cursor = context.config, context.resources, context.cursor
    number = cursor.begin(config)
    stamps = Stamps(context.timeline)
    way = route.find(config)
    loader = context.loader()
    if not (isinstance(way, TorchRoute) or config.iterable or loader is None):
        skipped = _skipped(loader)
        if skipped:
            cursor.skip(config, number, skipped)
    if cursor.resume is not None:
        workers.holder = None  # they are at another place in the data
    plan = epoch_plan.plan(config, cursor, way, stamps, number=number, states=states)
    cursor.progress = plan.progress
    native = isinstance(way, EngineRoute)
    resources.measurements = Measurements(
        native=native,
        stamps=stamps,
        bad=plan.bad,
        images=plan.images,
        remote=[(store, store.fetched() or {}) for store in remote_stores(config.dataset)],
        padding=plan.padding,
    )
    setup = decide(config, resources, way.source) if isinstance(way, EngineRoute) else None
    with plan.drawing() if plan.resumed else _NOTHING:
        maker = _host_maker(context, plan, setup, workers)
        if config.accelerated or config.batch_transform is not None:
            maker = delivery.deliver(config, resources, cursor, plan, setup, maker)
    length = None
    if context.reported is not None and isinstance(way, WorkersRoute):  # torch's warns itself
        length = ReportedLength(config.dataset, context.reported, config.num_workers)
    return Epoch(maker, plan.progress, stamps, plan.bad, plan.images, length)


def _host_maker(
    context: EpochContext, plan: EpochPlan, setup: Setup | None, workers: PersistentWorkers
) -> Maker:
    """What makes the batches in host memory, by the epoch's route."""
    config, resources, cursor = context.config, context.resources, context.cursor
    if isinstance(plan.route, EngineRoute):
        assert setup is not None, "decided for every engine"
        return engine_epoch.maker(
            config, resources, cursor, plan, plan.route.source, setup, length=context.length
        )
    if isinstance(plan.route, TorchRoute):
        loader = context.loader()
        if loader is None:
            return NoMaker()
        iterator = loader._torch_iterator(workers.holder)
        if config.persistent:
            workers.holder = iterator
        plan.progress.batches = iterator._num_yielded  # others may have it skip some
        return TorchMaker(iterator)
    from .workers import dataset_epoch

    return dataset_epoch.maker(config, resources, cursor, plan, workers, reported=context.reported)


def _skipped(loader: object) -> int:
    """How many batches another package has the next iterator of ``loader`` skip. Ask only once.

    SpeechBrain resumes an epoch in that way: what it adds to the ``__init__`` of torch's iterators
    draws as many batches from their ``_sampler_iter`` as its loader says, and tells the loader so.
    """
    code = getattr(_BaseDataLoaderIter.__init__, "__code__", None)
    if code is not None and code.co_filename == _TORCHS_FILE:
        return 0  # it is torch's own
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
