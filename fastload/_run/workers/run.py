"""How a FastLoader runs an epoch of the user's Dataset: in torch's machinery, or in-process."""

from __future__ import annotations

import dataclasses
import os
import threading
import warnings
from typing import Any

from ..._base.shared_slabs import SharedRing
from ..._base.slabs import SlabRing
from ..._base.torch_loader import DataLoader
from ..._engine.registry import is_torch
from ..._sources.source import begun
from .. import epoch as _epoch
from ..delivery import delivery
from ..epoch import Epoch
from ..progress import positions
from .epoch import WorkerIterator
from .fetch import Fetcher
from .hybrid_samples import Halves
from .local import LocalIterator
from .start import WorkerInit
from .tasks import Outcome, Tasks, same

# Slabs of batches collated in this process: the one that the consumer works on, and the
# one that is being made.
_WARM_SLABS = 2

# Batches that ``prefetch_thread`` keeps ahead.
_AHEAD = 2


@dataclasses.dataclass(frozen=True)
class Inner:
    """Torch's loader of outcomes, and its sampler."""

    loader: DataLoader[Outcome]
    tasks: Tasks


def iterator(loader: Any, epoch: Epoch) -> WorkerIterator | LocalIterator:
    """The iterator over ``epoch`` where the user's Dataset makes the samples."""
    if not (loader.num_workers or loader.prefetch_thread or epoch.refill):
        return _local(loader, epoch)
    persistent = loader.persistent_workers and loader.num_workers > 0
    inner = loader._inner
    if inner is None or not persistent or _died(inner):
        inner = _inner(loader, epoch)
    progress = epoch.progress
    turn = progress.turn if epoch.resumed else 0
    inner.tasks.begin(progress.epoch, epoch.order(loader), epoch.skip, turn)
    made = WorkerIterator(
        inner.loader,
        inner.tasks,
        progress,
        loader._bad,
        loader._stamps,
        getattr(loader, "_IterableDataset_len_called", None),
        _AHEAD if loader.prefetch_thread and not loader.num_workers else 0,
        epoch.refill,
        epoch.skip,
        _turn(loader),
    )
    if epoch.resumed and not loader.num_workers:
        made.start()
    if persistent:
        loader._inner = inner
        if loader._base_seed is None:
            loader._base_seed = made._base_seed
    return made


def _turn(loader: Any) -> threading.Lock:
    """What the threads of ``prefetch_thread`` take turns by; another in a forked child."""
    if loader._turn is None or loader._turn[0] != os.getpid():
        loader._turn = os.getpid(), threading.Lock()
    return loader._turn[1]  # type: ignore[no-any-return]


def _local(loader: Any, epoch: Epoch) -> LocalIterator:
    """The same where each batch is made in this process, when it is asked for."""
    return LocalIterator(
        loader,
        _fetcher(loader, epoch),
        epoch.order(loader),
        skip=epoch.skip,
        repeats=_epoch.counts(loader),
        generator=_epoch.seeding(loader, epoch.progress),
        at_once=epoch.resumed,
        progress=epoch.progress,
        bad=loader._bad,
        stamps=loader._stamps,
    )


def _died(inner: Inner) -> bool:
    """Whether a worker that was to persist is gone; torch would wait for it in every epoch."""
    processes = getattr(inner.loader._iterator, "_workers", ())
    return not all(process.is_alive() for process in processes)


def _inner(loader: Any, epoch: Epoch) -> Inner:
    count = loader.num_workers
    if count and loader._ring is None:
        # what is ahead, the one the consumer works on, the one it just let go of
        held = delivery.slabs_held(loader)
        loader._ring = SharedRing(count * loader.prefetch_factor + 2 + held)
    fetcher = _fetcher(loader, epoch)
    tasks = Tasks(
        loader._index_sampler,
        loader._ring if count else None,
        repeats=_epoch.counts(loader),
        keep=epoch.refill is not None,
    )
    options: dict[str, Any] = {}
    if count:
        options = {
            "prefetch_factor": loader.prefetch_factor,
            "persistent_workers": loader.persistent_workers,
            "multiprocessing_context": loader.multiprocessing_context,
            "worker_init_fn": WorkerInit(loader.worker_init_fn),
        }
    with warnings.catch_warnings():
        # Torch has said it of the loader itself.
        warnings.filterwarnings("ignore", "This DataLoader will create")
        inner: DataLoader[Outcome] = DataLoader(
            fetcher,
            batch_size=None,
            sampler=tasks,
            num_workers=count,
            collate_fn=same,  # type: ignore[arg-type]
            pin_memory=loader.pin_memory and not delivery.accelerated(loader),
            pin_memory_device=loader.pin_memory_device,
            timeout=loader.timeout,
            generator=_epoch.seeding(loader, epoch.progress),
            **options,
        )
    return Inner(inner, tasks)


def _fetcher(loader: Any, epoch: Epoch) -> Fetcher:
    count = loader.num_workers
    if not count and loader._warm is None:
        loader._warm = SlabRing(_WARM_SLABS)
    return Fetcher(
        loader.dataset,
        loader._collate,
        size=loader.batch_size,
        batched=loader.batch_sampler is not None,
        drop_last=loader.drop_last,
        on_error=epoch.on_error,
        limit=loader.max_errors,
        # The generators are this process's own: a thread must not seed them under its feet.
        seed=None if loader.prefetch_thread and not count else loader.seed,
        resume=positions(epoch.progress, count) if epoch.resumed else None,
        every=loader.snapshot_every_n_steps or 0,
        halves=halves(loader),
        warm=None if count else loader._warm,
        waiting=loader._waiting,
    )


def halves(loader: Any) -> Halves | None:
    """What makes a loader's samples where an engine can begin what Python has to end."""
    if is_torch(loader.engine) or loader.batch_sampler is None:
        return None
    source = begun(loader.dataset)
    return None if source is None else Halves(source, loader.dataset, loader.check_crc)
