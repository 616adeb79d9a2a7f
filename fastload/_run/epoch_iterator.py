"""EpochIterator: what ``iter`` of a FastLoader returns; its ``Epoch`` counts, ends and reports.

As in torch, ``iter`` starts the epoch: it draws random numbers and starts workers. But trainers may
call ``iter`` before they set the epoch; Lightning does when it resumes after the end of an epoch.
If another epoch is set before the first batch, the started epoch is closed, torch's generators are
restored to their states before it, and the other epoch is started.

How it counts
    An outcome counts when the maker has returned it, whether it holds a batch, an error or nothing.
    What the maker raises (a worker died, a timeout, Ctrl-C) counts nothing: a state that is saved
    then resumes with the batch that did not come. Batches that are on their way, to a device for
    example, do not count yet.
How it ends
    success    the maker has no more: the epoch is marked as ended, and bad samples are reported.
    early exit ``close``: nothing is marked, so a state resumes where the consumer stopped.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
import warnings
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind
from typing_extensions import override

from .._base import callers
from .._base.torch_loader import is_torchs
from . import epoch_plan, route
from .config import LoaderConfig
from .cursor import EpochCursor, generators
from .epoch_plan import EpochPlan
from .maker import Maker, NoMaker, Outcome, PersistentWorkers, TorchMaker
from .measurements import Measurements
from .progress import Progress
from .resources import Resources
from .route import EngineRoute, TorchRoute, WorkersRoute

_EACH_WHOLE = (
    "For multiprocessing data-loading, this happens if each worker process gives the whole dataset "
    "instead of its own part (torch.utils.data.get_worker_info)."
)


# What torch's iterators copy from their loader: names of its config, with a "_" before. Programs
# read these: they tell from the sampler and the workers how far ahead of the loop the sampler is,
# and change the dataset for the next epoch.
_COPIED = frozenset(
    ("_dataset", "_index_sampler", "_drop_last", "_num_workers", "_timeout", "_collate_fn",
     "_persistent_workers")
)  # fmt: skip
_COPIED_FOR_WORKERS = frozenset(("_prefetch_factor", "_worker_init_fn", "_in_order"))


class ReportedLength(NamedTuple):
    """What an IterableDataset said of its length, in batches of so many worker processes."""

    dataset: object
    batches: int
    workers: int

    def check(self, given: int) -> None:
        """Warn, as torch does, if it gave more batches."""
        if given > self.batches:
            warnings.warn(
                f"Length of IterableDataset {self.dataset} was reported to be {self.batches} (when "
                f"accessing len(dataloader)), but {given} samples have been fetched. "
                f"{_EACH_WHOLE if self.workers else ''}",
                stacklevel=callers.stacklevel(),
            )


class Epoch:
    """One iteration, of the batches of ``maker``. It updates ``progress`` and the rest.

    ``length`` is what an IterableDataset reported; None: no warning of more batches.

    Attributes:
        yielded: batches that the consumer got, and those that were skipped before.
    """

    def __init__(
        self,
        maker: Maker,
        progress: Progress,
        measurements: Measurements,
        length: ReportedLength | None = None,
    ) -> None:
        self.maker = maker
        self.progress = progress
        self.yielded = self._before = progress.batches
        self._measurements = measurements
        self._stamps, self._bad = measurements.stamps, measurements.bad
        self._length = length
        self._samples = 0

    def next(self) -> Any:
        """The next batch. Raises what took its place, or StopIteration at the end."""
        maker = self.maker
        maker.settle()
        begin_ns = time.perf_counter_ns()
        while True:
            try:
                outcome = next(maker)
            except StopIteration:
                self._end(begin_ns)
                raise
            self._count(outcome)
            if outcome.error is not None:
                # Its traceback refers to this frame: a cycle that would keep the maker.
                error, outcome.error = outcome.error, None
                try:
                    raise error
                finally:
                    del error
            if not outcome.empty:
                break
        self.yielded += 1
        if self._length is not None:
            self._length.check(self.yielded - self._before)
        self._stamps.batch(outcome.samples, begin_ns)
        batch, outcome.batch = outcome.batch, None  # a thread may hold the outcome for a while
        return batch

    def _count(self, outcome: Outcome) -> None:
        self.progress.count(outcome)
        self._samples += outcome.samples
        if outcome.clock is not None:
            self._stamps.worker(outcome.clock)
        if outcome.report is not None:
            self._measurements.images.add(outcome.report)
        if outcome.bad:
            self._samples += len(outcome.bad)
            self._bad.add(outcome.bad, self._samples)

    def _end(self, begin_ns: int) -> None:
        if not self.progress.ended:
            self.progress.ended = not self.progress.unordered  # that never has a state
            self._bad.report(self.progress.epoch, self._samples)
        self._stamps.ended(begin_ns)


class EpochContext(NamedTuple):
    """What an EpochIterator needs from its loader, which this does not keep alive.

    Attributes:
        config: the arguments as they are now.
        reported: the length that an IterableDataset gave when ``len`` asked for it, or None.
    """

    config: LoaderConfig
    resources: Resources
    cursor: EpochCursor
    reported: int | None
    loader: weakref.ref[Loader]


class Loader(Protocol):
    """A FastLoader, as far as it is used here."""

    def _begin_iteration(self) -> EpochContext: ...

    def _torch_iterator(self, kept: object | None) -> _BaseDataLoaderIter: ...


class EpochIterator(_BaseDataLoaderIter):
    """The batches of one epoch, or of another one that is chosen before the first batch.

    It is one of torch's iterators for ``isinstance``. What these copy from their loader it has from
    the config, and otherwise the attributes of what makes the batches.
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
        torchs = self._torchs()
        config = self._context.config
        assert self._epoch is not None, "it has torch's"
        copied = name in _COPIED or (config.num_workers and name in _COPIED_FOR_WORKERS)
        if not copied or self._epoch.progress.unordered:  # torch's own, or another package's
            return getattr(torchs, name)
        return getattr(config, name[1:])

    def __reduce__(self) -> str | tuple[Any, ...]:
        reduced: str | tuple[Any, ...] = self._torchs().__reduce__()  # torch's raises
        return reduced

    @property
    def _dataset_kind(self) -> int:  # type: ignore[override]
        return _DatasetKind.Iterable if self._context.config.iterable else _DatasetKind.Map

    @property
    def _auto_collation(self) -> bool:
        return self._context.config.batched

    @property
    def _num_yielded(self) -> int:  # type: ignore[override]
        return 0 if self._epoch is None else self._epoch.yielded

    def _reset(self, loader: Loader, first_iter: bool = False) -> None:
        """Start the next epoch. torch calls this on iterators with persistent workers."""
        self.close()
        self._start(loader._begin_iteration())

    def _start(self, context: EpochContext) -> None:
        self._context = context
        cursor = context.cursor
        self._before = self._persistent.holder, cursor.base_seed
        self._states = [generator.get_state() for generator in generators(context.config)]
        self._begin()
        self._first_pending = True
        self._process = os.getpid()

    def _begin(self) -> None:
        """Start the next epoch."""
        context, workers = self._context, self._persistent
        config, resources, cursor = context.config, context.resources, context.cursor
        resources.begin()
        number = cursor.begin(config)
        way = route.find(config)
        loader = context.loader()
        if not (isinstance(way, TorchRoute) or config.iterable or loader is None):
            skipped = _skipped(loader)
            if skipped:
                cursor.skip(config, number, skipped)
        if cursor.resume is not None:
            workers.holder = None  # they are at another place in the data
        plan = epoch_plan.plan(config, cursor, way, number=number, states=self._states)
        cursor.progress = plan.progress
        resources.measurements = plan.measurements
        with plan.drawing() if plan.resumed else contextlib.nullcontext():
            maker = _maker(context, plan, workers)
        length = None
        if context.reported is not None and isinstance(way, WorkersRoute):  # torch's warns itself
            length = ReportedLength(config.dataset, context.reported, config.num_workers)
        self._epoch = Epoch(maker, plan.progress, plan.measurements, length)
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


def _maker(context: EpochContext, plan: EpochPlan, workers: PersistentWorkers) -> Maker:
    """What makes the batches, by the epoch's route, and delivers them."""
    config, resources, cursor = context.config, context.resources, context.cursor
    maker: Maker
    setup = None
    if isinstance(plan.route, EngineRoute):
        from .engine_epoch import maker as engine_maker
        from .setup import decide

        setup = decide(config, resources, plan.route)
        maker = engine_maker(plan, resources, cursor, setup)
    elif isinstance(plan.route, WorkersRoute):
        from .workers.dataset_epoch import maker as dataset_maker

        maker = dataset_maker(plan, resources, cursor, workers, reported=context.reported)
    else:
        maker = _torchs(context, plan, workers)
    if config.accelerated or config.batch_transform is not None:
        from .delivery import delivery

        maker = delivery.deliver(plan, resources, cursor, setup, maker)
    return maker


def _torchs(context: EpochContext, plan: EpochPlan, workers: PersistentWorkers) -> Maker:
    """torch's own iterator."""
    loader = context.loader()
    if loader is None:
        return NoMaker()
    iterator = loader._torch_iterator(workers.holder)
    if context.config.persistent:
        workers.holder = iterator
    # Others may have it skip some, or put an iterator of their own around it.
    plan.progress.batches = getattr(iterator, "_num_yielded", 0)
    return TorchMaker(iterator)


def _skipped(loader: object) -> int:
    """How many batches another package has the next iterator of ``loader`` skip. Ask only once.

    SpeechBrain resumes an epoch in that way: what it adds to the ``__init__`` of torch's iterators
    draws as many batches from their ``_sampler_iter`` as its loader says, and tells the loader so.
    """
    if is_torchs(_BaseDataLoaderIter.__init__):
        return 0
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
        own = torch.Generator(torch.empty(0).device)  # torch draws a seed there
        vars(self).update(_loader=loader, generator=own, _index_sampler=itertools.count())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._loader, name, value)
