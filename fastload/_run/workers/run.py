"""An epoch whose samples the user's Dataset makes: in worker processes, or in this one."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

from ..._base.shared_slabs import SharedRing
from ..._base.slabs import SlabRing
from ..._base.torch_loader import DataLoader
from ..config import LoaderConfig
from ..cursor import EpochCursor
from ..epoch import EpochPlan
from ..progress import positions
from ..resources import Resources, slabs_held
from ..route import WorkersRoute
from .epoch import WorkerIterator
from .fetch import Fetcher
from .hybrid_samples import HybridSamples
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


def stream(
    config: LoaderConfig,
    resources: Resources,
    cursor: EpochCursor,
    plan: EpochPlan,
    *,
    reported: int | None,
) -> WorkerIterator | LocalIterator:
    """The batches of ``plan``, whose samples the user's Dataset makes.

    Args:
        reported: the length that an IterableDataset gave, or None.
    """
    threaded = config.prefetch_thread and not config.num_workers
    if not (config.num_workers or threaded or plan.refill):
        return _local(config, resources, plan, reported)
    inner = resources.inner
    if not isinstance(inner, Inner) or not config.persistent or _died(inner):
        inner = _inner(config, resources, plan)
    progress = plan.progress
    turn = progress.turn if plan.resumed else 0
    inner.tasks.begin(progress.epoch, plan.order(config), plan.skip, turn)
    made = WorkerIterator(
        inner.loader,
        inner.tasks,
        progress,
        plan.bad,
        plan.stamps,
        reported,
        _AHEAD if threaded else 0,
        plan.refill,
        plan.skip,
        resources.lock(),
    )
    if plan.resumed and not config.num_workers:
        made.start()
    if config.persistent:
        resources.inner = inner
        if cursor.base_seed is None:
            cursor.base_seed = made._base_seed
    return made


def _local(
    config: LoaderConfig, resources: Resources, plan: EpochPlan, reported: int | None
) -> LocalIterator:
    """The same where each batch is made in this process, when it is asked for."""
    return LocalIterator(config, _fetcher(config, resources, plan), plan, reported=reported)


def _died(inner: Inner) -> bool:
    """Whether a worker that was to persist is gone; torch would wait for it in every epoch."""
    processes = getattr(inner.loader._iterator, "_workers", ())
    return not all(process.is_alive() for process in processes)


def _inner(config: LoaderConfig, resources: Resources, plan: EpochPlan) -> Inner:
    count = config.num_workers
    if count and resources.ring is None:
        # what is ahead, the one the consumer works on, the one it just let go of
        held = slabs_held(config, resources)
        ahead = count * (config.prefetch_factor or 0)
        resources.ring = SharedRing(ahead + 2 + held)
    fetcher = _fetcher(config, resources, plan)
    tasks = Tasks(
        config.index_sampler,
        resources.ring if count else None,
        repeats=plan.repeats,
        keep=plan.refill is not None,
    )
    options: dict[str, Any] = {}
    if count:
        options = {
            "prefetch_factor": config.prefetch_factor,
            "persistent_workers": config.persistent_workers,
            "multiprocessing_context": config.multiprocessing_context,
            "worker_init_fn": WorkerInit(config.worker_init_fn),
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
            pin_memory=config.pinned,
            pin_memory_device=config.pin_memory_device,
            timeout=config.timeout,
            generator=plan.seeding(config),
            **options,
        )
    return Inner(inner, tasks)


def _fetcher(config: LoaderConfig, resources: Resources, plan: EpochPlan) -> Fetcher:
    assert isinstance(plan.route, WorkersRoute)
    count, source = config.num_workers, plan.route.hybrid
    if not count and resources.warm is None:
        resources.warm = SlabRing(_WARM_SLABS)
    return Fetcher(
        config.dataset,
        config.collate,
        size=config.batch_size,
        batched=config.batched,
        drop_last=config.drop_last,
        on_error=plan.on_error,
        limit=config.max_errors,
        # The generators are this process's own: a thread must not seed them under its feet.
        seed=None if config.prefetch_thread and not count else config.seed,
        resume=positions(plan.progress, count) if plan.resumed else None,
        every=config.snapshot_every_n_steps or 0,
        hybrid=None if source is None else HybridSamples(source, config.dataset, config.check_crc),
        warm=None if count else resources.warm,
        waiting=resources.waiting,
    )
