"""How a FastLoader runs an epoch: in an engine of ours, or through torch's machinery.

Functions of the loader rather than methods, so that ``_loader.py`` stays what its user reads.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import (
    IterableDataset,
    IterDataPipe,
    MapDataPipe,
)
from torch.utils.data._utils.pin_memory import pin_memory

from .._base.machine import cpu, memory
from .._base.slabs import SlabRing
from .._base.trace import Stamps
from .._engine.base import BatchEngine, Images
from .._engine.image_engine import EngineOptions
from .._engine.registry import chosen, make_engine
from .._sources.collate import annotations_of, batch_of, collate, samples_of
from .._sources.source import Source
from .._transforms.pixels.erasing import Drawn
from ..errors import UsageError
from . import decode_device, division
from . import order as _sampler
from .delivery import delivery
from .engine_stream import BatchIterator, default_prefetch
from .epoch import Epoch
from .order import Order
from .progress import Progress

if TYPE_CHECKING:
    from .governor import Governor


# --- num_workers="auto" -----------------------------------------------------------------------


def governor(source: Source | str, dataset: Any, batch_size: int | None) -> Governor | None:
    """What adjusts the workers; None for an IterableDataset, which workers would repeat."""
    from .governor import for_engine, for_processes

    memory_nbytes = memory.available()
    if not isinstance(source, str):
        nbytes = source.plan.nbytes
        return for_engine(
            cpus=cpu.available(),
            batch_nbytes=None if nbytes is None else nbytes * (batch_size or 1),
            memory_nbytes=memory_nbytes,
        )
    if isinstance(dataset, IterableDataset):
        return None
    return for_processes(cpus=cpu.available(), memory_nbytes=memory_nbytes)


def adjust(loader: Any, last: Stamps) -> None:
    """Begin an epoch with as many threads or processes as the last one suggests."""
    if loader._governor is None:
        return
    if loader._native:
        loader.num_workers = loader._governor.setting.workers
        return
    from .governor import after_epoch

    setting = after_epoch(loader._governor, last.snapshot(), memory_nbytes=memory.available())
    workers = setting.workers
    if workers != loader.num_workers:
        loader.num_workers = workers
        loader._inner = None  # persistent workers, of the number there was


def _batches_ahead(loader: Any, source: Source) -> int:
    """Batches that an engine of ours keeps ahead of the consumer."""
    if loader._governor is not None:
        return int(loader._governor.setting.prefetch)
    ahead = loader.prefetch_factor or default_prefetch()
    divided = division.division(loader, source)
    if divided is not None and divided.processes:
        return division.ahead(ahead, loader.num_workers, loader.batch_size)
    # Copies to a device, pinned memory and DALI need batches in flight of their own.
    on_gpu = delivery.accelerated(loader) or (loader.pin_memory and torch.cuda.is_available())
    if ahead != default_prefetch() or on_gpu:
        return ahead
    if decode_device.decoding(loader, source).engine.on_device:
        return ahead
    return default_prefetch(source.plan.nbytes, loader.batch_size, loader.num_workers)


# --- torch's own iterator -------------------------------------------------------------------------


def plain(loader: Any) -> bool:
    """Whether torch's own iterator runs with nothing of ours but the clock.

    DataPipes are known to torch by their type, and with ``in_order=False`` batches that are asked
    for again and again would keep a finished worker of an iterable dataset busy.
    """
    unordered = not getattr(loader, "in_order", True) and loader.num_workers > 0
    return unordered or isinstance(loader.dataset, (IterDataPipe, MapDataPipe))


def leave_to_torch(loader: Any, epoch: Epoch) -> None:
    """Note that torch's own iterator runs. Raises UsageError where that cannot do what is asked."""
    if loader.on_error != "raise":
        raise UsageError(
            f"on_error={loader.on_error!r} needs in_order=True, and a dataset that is no "
            "DataPipe: there torch's own iterator runs, which raises what is raised"
        )
    epoch.progress.unordered = True


# --- engines of ours ------------------------------------------------------------------------------


def native(loader: Any, source: Source, epoch: Epoch) -> BatchIterator:
    """The iterator over ``epoch`` where an engine of ours makes the batches."""
    progress = epoch.progress
    # As in DataLoader: first the sampler's iterator, then the base seed, then its first draw.
    if epoch.known is not None:
        order = Order(iter(epoch.known), epoch.known)
    else:
        order = _sampler.index_batches(loader.batch_sampler, whole=epoch.refill is not None)
    seed, number = _augmentation(loader, source, progress)
    left_out = _sampler.leave_out(order, epoch.skip) if epoch.resumed else None
    return BatchIterator(
        source=source,
        engine=_engine(loader, source),
        order=order,
        # Not the loader, which may keep the iterator.
        sized=loader._index_sampler if loader._shard() is None else range(len(loader)),
        assemble=functools.partial(
            _assemble,
            source,
            loader._collate,
            _pinned(loader),
            delivery.rest(loader, source) is not None,
        ),
        prefetch=_batches_ahead(loader, source) if loader.num_workers else 0,
        timeout_s=loader.timeout,
        seed=seed,
        epoch=number,
        stamps=loader._stamps,
        progress=progress,
        left_out=left_out,
        on_error=epoch.on_error,
        refill=epoch.refill,
        bad=loader._bad,
        governor=loader._governor,
        rest=delivery.rest(loader, source),
    )


def _augmentation(loader: Any, source: Source, progress: Progress) -> tuple[int, int]:
    """Seed and epoch that augmentation is drawn for."""
    # Workers that persist keep their first base seed: DataLoader draws no other then.
    loader._base_seed, number = progress.base_seed, progress.epoch + 1
    if loader._base_seed is None:
        drawn = torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        loader._base_seed, number = int(drawn.item()), 0
    if loader.seed is not None:
        return loader.seed, progress.epoch
    return source.draw or (loader._base_seed, number)


def _pinned(loader: Any) -> bool:
    if delivery.accelerated(loader):
        return False  # the transfer stage pins by itself
    if loader.pin_memory and not torch.cuda.is_available():
        warnings.warn(
            "'pin_memory' argument is set as true but no accelerator is found, "
            "then device pinned memory won't be used.",
            stacklevel=8,  # who asked the loader for its iterator
        )
    return loader.pin_memory and torch.cuda.is_available()


def _engine(loader: Any, source: Source) -> BatchEngine:
    """The engine of this process for ``source``; kept from epoch to epoch."""
    # Not one that was made before a fork: its threads are the parent's.
    decode_device.settle(loader, source)
    decoding = decode_device.decoding(loader, source)
    key = (os.getpid(), source.parts, decoding.engine, decoding.device)
    rest = delivery.rest(loader, source)
    plan = source.plan if rest is None else rest.levels()
    if loader._made is not None:
        made_for, engine = loader._made
        if made_for == key and engine.makes(plan):
            engine.use_threads(loader.num_workers)
            return engine  # type: ignore[no-any-return]
    pinned = loader.pin_memory and not delivery.accelerated(loader) and torch.cuda.is_available()
    adjusted = loader._governor
    ahead = _batches_ahead(loader, source) if adjusted is None else adjusted.most.prefetch
    store = source.store
    if loader._cache is not None and loader._cache.serves(store):
        store = loader._cache.before(
            store,
            source.parts,
            plan,
            engine=chosen(loader.engine, store),
            checked=loader.check_crc != "never",
        )
    processes = None
    if not decoding.engine.on_device:
        processes = division.processes(loader, source, store, plan)
    options = EngineOptions(
        threads=loader.num_workers,
        # what is ahead, the one the consumer works on, and what is being copied to a device
        ring=None
        if pinned
        else SlabRing(
            ahead + 1 + delivery.slabs_held(loader),
            patient=loader.num_workers > 0,
        ),
        channels_last=loader.memory_format == torch.channels_last,
        check_crc=loader.check_crc,
        device=decoding.device,
        hw_decoder_load=decoding.hw_decoder_load,
        processes=processes,
    )
    engine = make_engine(decoding.engine.name, store, plan, options)
    loader._made = key, engine
    return engine


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
