"""An epoch whose batches an engine of fastload fills: the engine, its memory, what a batch is."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils.pin_memory import pin_memory

from .._base import callers
from .._base.slabs import SlabRing
from .._engine import chosen, make_decoder
from .._engine.decoder import Decoder, Images
from .._sources.collate import annotations_of, batch_of, collate, samples_of
from .._sources.source import Source
from .._transforms.pixels.erasing import Drawn
from . import decode_device, division
from . import order as _order
from .config import LoaderConfig
from .cursor import EpochCursor
from .delivery import delivery
from .engine_stream import BatchIterator
from .epoch import EpochPlan
from .order import Order
from .progress import Progress
from .resources import EngineKey, Resources, slabs_held

# How long the producer waits for a consumer to let go of the batch before. It does so within
# microseconds of taking the next one, if at all; a new slab of 256 photos costs 30 ms.
_PATIENCE_S = 2e-3

# Large slabs that a loop begins with: the batch that it works on, and the one that is being filled.
_FEW = 2

# Batches ahead of the consumer where prefetch_factor is not given: torch's own default per worker.
_PREFETCH = 2


def stream(
    config: LoaderConfig,
    resources: Resources,
    cursor: EpochCursor,
    plan: EpochPlan,
    source: Source,
    *,
    length: int | None,
) -> BatchIterator:
    """The batches of ``plan`` that an engine makes of ``source``.

    Args:
        length: of the epoch, where it is divided among ranks; None: that of the sampler.
    """
    progress = plan.progress
    # As in DataLoader: first the sampler's iterator, then the base seed, then its first draw.
    if plan.known is not None:
        order = Order(iter(plan.known), plan.known)
    else:
        order = _order.index_batches(config.batch_sampler, whole=plan.refill is not None)
    seed, number = _augmentation(config, cursor, source, progress)
    left_out = _order.leave_out(order, plan.skip) if plan.resumed else None
    governor = resources.governor
    return BatchIterator(
        source=source,
        decoder=_engine(config, resources, source),
        order=order,
        sized=config.index_sampler if length is None else range(length),
        assemble=functools.partial(
            _assemble,
            source,
            config.collate,
            _pinned(config),
            delivery.rest(config, resources.choice, source) is not None,
        ),
        prefetch=_batches_ahead(config, resources, source) if config.num_workers else 0,
        timeout_s=config.timeout,
        seed=seed,
        epoch=number,
        stamps=plan.stamps,
        progress=progress,
        left_out=left_out,
        on_error=plan.on_error,
        refill=plan.refill,
        bad=plan.bad,
        governor=governor,
    )


def _augmentation(
    config: LoaderConfig, cursor: EpochCursor, source: Source, progress: Progress
) -> tuple[int, int]:
    """Seed and epoch that augmentation is drawn for."""
    # Workers that persist keep their first base seed: DataLoader draws no other then.
    cursor.base_seed, number = progress.base_seed, progress.epoch + 1
    if cursor.base_seed is None:
        drawn = torch.empty((), dtype=torch.int64).random_(generator=config.generator)
        cursor.base_seed, number = int(drawn.item()), 0
    if config.seed is not None:
        return config.seed, progress.epoch
    return source.draw or (cursor.base_seed, number)


def _batches_ahead(config: LoaderConfig, resources: Resources, source: Source) -> int:
    """Batches that are made ahead of the consumer."""
    if resources.governor is not None:
        return resources.governor.setting.prefetch
    ahead = config.prefetch_factor or _PREFETCH
    divided = division.division(config, resources, source)
    if divided is None or not divided.processes:
        return ahead
    return division.ahead(ahead, config.num_workers, config.batch_size)


def _pinned(config: LoaderConfig) -> bool:
    """Whether batches are to be pinned; warns where they cannot be."""
    if config.pinned and not torch.cuda.is_available():
        warnings.warn(
            "'pin_memory' argument is set as true but no accelerator is found, "
            "then device pinned memory won't be used.",
            stacklevel=callers.stacklevel(),
        )
    return config.pinned and torch.cuda.is_available()


def _engine(config: LoaderConfig, resources: Resources, source: Source) -> Decoder:
    """The engine of this process for ``source``, kept from epoch to epoch."""
    resources.choice = decode_device.settle(config, resources.choice, source)
    decoding = decode_device.decoding(config, resources.choice, source)
    # Not one that was made before a fork: its threads are the parent's.
    key = EngineKey(os.getpid(), source.parts, decoding.engine, decoding.device)
    rest = delivery.rest(config, resources.choice, source)
    plan = source.plan if rest is None else rest.levels()
    if resources.engine is not None:
        made_for, decoder = resources.engine
        if made_for == key and decoder.makes(plan):
            decoder.threads = config.num_workers
            decoder.rest = rest
            return decoder
    pinned = config.pinned and torch.cuda.is_available()
    adjusted = resources.governor
    if adjusted is None:
        ahead = _batches_ahead(config, resources, source)
    else:
        ahead = adjusted.most.prefetch
    store = source.store
    if resources.cache is not None and resources.cache.serves(store):
        store = resources.cache.before(
            store,
            source.parts,
            plan,
            engine=chosen(config.engine, store),
            checked=config.check_crc != "never",
        )
    processes = None
    if decoding.engine != "dali":
        processes = division.processes(config, resources, source, store, plan)
    # Not where others count: flights hold on to slabs, libraries of GPUs and processes have batches
    # in flight of their own, and the governor tries what batches ahead are worth.
    few = not config.accelerated and adjusted is None and decoding.engine != "dali"
    decoder = make_decoder(
        decoding.engine,
        store,
        plan,
        threads=config.num_workers,
        # what is ahead, the one the consumer works on, and what is being copied to a device
        ring=None
        if pinned
        else SlabRing(
            ahead + 1 + slabs_held(config, resources),
            _PATIENCE_S if config.num_workers else 0,
            few=_FEW if few and processes is None else None,
        ),
        channels_last=config.channels_last,
        check_crc=config.check_crc,
        device=decoding.device,
        hw_decoder_load=decoding.hw_decoder_load,
    )
    decoder.rest = rest
    decoder.employ(processes)
    resources.engine = key, decoder
    return decoder


def _assemble(
    source: Source,
    collate_fn: Callable[[list[Any]], Any],
    pinned: bool,
    levels: bool,
    images: Images,
    records: np.ndarray,
    moved: dict[str, Any],
    drawn: Drawn | None = None,
) -> Any:
    """The batch as the caller gets it, or as the device stage does (``levels``)."""
    if source.tensors:
        rows: Any = images if collate_fn is collate else collate_fn(list(zip(*images)))
        return pin_memory(rows) if pinned else rows  # type: ignore[no-untyped-call]
    annotations = annotations_of(
        source.store, records, source.labels, source.target_transform, source.fields, moved
    )
    if collate_fn is collate:
        batch = batch_of(images, annotations)
        if levels:
            return delivery.Levels(batch, drawn)
    else:
        # of views, those of each sample
        each = map(list, zip(*images, strict=True)) if isinstance(images, list) else images
        batch = collate_fn(samples_of(each, annotations))
    return pin_memory(batch) if pinned else batch  # type: ignore[no-untyped-call]
