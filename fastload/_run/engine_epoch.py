"""An epoch whose batches an engine fills: chooses the engine and its memory, assembles batches."""

from __future__ import annotations

import dataclasses
import functools
import os
import warnings
from collections.abc import Callable, Iterable, Sized
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import BatchSampler
from torch.utils.data._utils.pin_memory import pin_memory

from .._base import callers
from .._base.indices import repeats_within
from .._base.slabs import SlabRing
from .._engine.base import BatchEngine
from .._engine.image_engine import EngineOptions, ImageEngine
from .._engine.registry import EngineKind, make_engine
from .._sources.collate import annotations_of, batch_of, collate, samples_of
from .._sources.source import Source
from .._transforms.plan import Plan, Views
from ..storage.base import Store
from . import drawing
from .bad_samples.batch_filler import EngineFiller, FilledBatch
from .config import PREFETCH, LoaderConfig
from .cursor import EpochCursor
from .drawing import IndexBatches, Repeats
from .engine_maker import EngineMaker, Pipeline
from .epoch_plan import EpochPlan
from .order import Batches
from .progress import Progress
from .resources import EngineKey, Resources, slabs_held
from .route import EngineRoute
from .setup import Setup, pillow_processes
from .shard import Shard


def maker(plan: EpochPlan, resources: Resources, cursor: EpochCursor, setup: Setup) -> EngineMaker:
    """What makes the batches of ``plan``."""
    assert isinstance(plan.route, EngineRoute)
    config, source = plan.config, plan.route.source
    progress, stamps = plan.progress, plan.measurements.stamps
    # Random numbers are drawn in DataLoader's order: the sampler's iterator is made, the base seed
    # is drawn, and only then the sampler's iterator draws.
    begin = functools.partial(_order, plan, config.batch_sampler)
    order = begin()
    seed, number = _augmentation(config, cursor, source, progress)
    begins_again = config.torch_workers and progress.base_seed is None
    if begins_again and type(config.batch_sampler) is not BatchSampler:
        order = begin()  # as DataLoader does: a batch sampler of the user's may draw each time
    refill, whole = plan.refill, order.known
    if refill is not None:
        refill.order = lambda: whole.indices
        if source.plan.random:
            refill.times = lambda: _times(source, plan, whole)
    left_out = drawing.skip_batches(order, plan.skip) if plan.resumed else None
    known = order.known
    repeats = None
    several = config.order.repeats or source.records is not None or plan.measurements.padding > 0
    if source.plan.random and several:  # a record may come several times in the epoch
        repeats = Repeats(len(source.store), plan.times)
        if left_out is not None:
            repeats.count(source.lookup(left_out))
    pinned = config.pinned and _can_pin()
    engine = _engine(config, resources, source, setup, pinned=pinned)
    filler = EngineFiller(
        engine=engine,
        source=source,
        seed=seed,
        epoch=number,
        on_error=plan.on_error,
        refill=refill,
        repeats=repeats,
        rest=setup.finished,
    )
    fetch = None
    if engine.store.remote:
        from .fetch_ahead import FetchAhead

        following = functools.partial(
            config.epochs.following, progress.epoch + 1, plan.shard or Shard()
        )
        fetch = FetchAhead(
            engine.store, source.lookup, known, following, blocks=config.epochs.blocks
        )
    pipeline = Pipeline(filler, known, config.timeout, stamps, fetch)
    length = None
    if plan.shard is not None:
        length = config.order.count(config.division(plan.shard))
    return EngineMaker(
        order,
        pipeline,
        sized=cast(Sized, config.index_sampler) if length is None else range(length),
        assemble=functools.partial(
            _assemble, source, config.collate, pinned, filler.rest is not None
        ),
        prefetch=setup.ahead,
        ahead_in_torch=config.torch_workers * (config.prefetch_factor or PREFETCH),
        drawn_by_next=not (config.torch_workers or plan.resumed or plan.known is not None),
        stamps=stamps,
        governor=resources.governor,
    )


def _order(plan: EpochPlan, batches: Iterable[Any] | None) -> IndexBatches:
    if plan.known is not None:
        return IndexBatches(iter(plan.known), plan.known)
    assert batches is not None, "engines make batches"
    return drawing.index_batches(batches, whole=plan.refill is not None)


def _times(source: Source, plan: EpochPlan, order: Batches) -> np.ndarray:
    """How often each sample of ``order`` came before."""
    return repeats_within(source.lookup(order.indices)) if plan.times is None else plan.times


def _augmentation(
    config: LoaderConfig, cursor: EpochCursor, source: Source, progress: Progress
) -> tuple[int, int]:
    """The seed and epoch of the augmentation."""
    # As in DataLoader, persistent workers keep their first base seed.
    cursor.base_seed, number = progress.base_seed, progress.epoch + 1
    if cursor.base_seed is None:
        drawn = torch.empty((), dtype=torch.int64).random_(generator=config.generator)
        cursor.base_seed, number = int(drawn.item()), 0
    if config.seed is not None:
        return config.seed, progress.epoch
    return source.draw or (cursor.base_seed, number)


def _can_pin() -> bool:
    """Whether batches can be pinned; warns if not, because there is no accelerator."""
    available = torch.cuda.is_available()
    if not available:
        warnings.warn(
            "'pin_memory' argument is set as true but no accelerator is found, "
            "then device pinned memory won't be used.",
            stacklevel=callers.stacklevel(),
        )
    return available


def _engine(
    config: LoaderConfig, resources: Resources, source: Source, setup: Setup, *, pinned: bool
) -> BatchEngine:
    """The engine of this process for ``source``; it is kept from epoch to epoch."""
    # The process is part of the key: after a fork, the engine's threads are the parent's.
    key = EngineKey(os.getpid(), source.parts, setup.engine, setup.on_ray, setup.device)
    plan = source.plan if setup.finished is None else setup.finished.levels()
    if resources.engine is not None:
        made_for, engine = resources.engine
        if made_for == key and engine.makes(plan):
            engine.use_threads(config.num_workers)
            return engine
    ahead = setup.ahead if resources.governor is None else resources.governor.most.prefetch
    store = source.store
    if resources.cache is not None and resources.cache.serves(store):
        checked = source.check_crc != "never"
        store = resources.cache.before(
            store, source.parts, plan, engine=setup.engine, checked=checked
        )
    processes = None
    if setup.pillow is not None and setup.pillow.processes and not setup.engine.on_device:
        processes = pillow_processes(config, store, plan)
    # batches ahead, the consumer's batch, and those being copied to a device
    slabs = ahead + 1 + slabs_held(config, resources)
    options = EngineOptions(
        threads=config.num_workers,
        ring=None if pinned else SlabRing(slabs, patient=config.num_workers > 0),
        channels_last=config.channels_last,
        check_crc=source.check_crc,
        device=setup.device,
        processes=processes,
    )
    engine = make_engine(setup.engine, store, plan, options)
    if setup.on_ray:
        engine = _on_ray(engine, setup.engine, store, plan, options)
    resources.engine = key, engine
    return engine


def _on_ray(
    local: BatchEngine,
    kind: EngineKind,
    store: Store,
    plan: Plan | Views,
    options: EngineOptions,
) -> BatchEngine:
    """The same in tasks on a Ray cluster. Raises UsageError without a connection to one."""
    from .._engine.on_ray import RayEngine

    alone = dataclasses.replace(options, threads=0, ring=SlabRing(1), processes=None)
    remote = make_engine(kind, store, plan, alone)
    # neither rows of tensors nor several views: see ``setup.py``
    assert isinstance(local, ImageEngine) and isinstance(remote, ImageEngine)
    return RayEngine(local, remote)


def _assemble(
    source: Source,
    collate_fn: Callable[[list[Any]], Any],
    pinned: bool,
    unfinished: bool,
    filled: FilledBatch,
) -> Any:
    """The batch in the form that the caller gets, or with ``unfinished`` the device stage."""
    images = filled.images
    if source.tensors:
        rows: Any = images if collate_fn is collate else collate_fn(list(zip(*images)))
        return pin_memory(rows) if pinned else rows  # type: ignore[no-untyped-call]
    annotations = annotations_of(
        source.store,
        filled.records,
        source.labels,
        source.target_transform,
        source.fields,
        filled.moved,
    )
    if collate_fn is collate:
        batch = batch_of(images, annotations)
        if unfinished:
            from .delivery.delivery import UnfinishedBatch

            return UnfinishedBatch(batch, filled.drawn)
    else:
        # with several views, a list of views for each sample
        each = map(list, zip(*images, strict=True)) if isinstance(images, list) else images
        batch = collate_fn(samples_of(each, annotations))
    return pin_memory(batch) if pinned else batch  # type: ignore[no-untyped-call]
