"""The part of ``dataset_epoch.py`` that has worker processes make the batches."""

from __future__ import annotations

import functools

from ..._base.shared_slabs import SharedRing
from ..._base.torch_loader import PlainLoader
from ..config import LoaderConfig
from ..cursor import EpochCursor
from ..epoch_plan import EpochPlan
from ..maker import PersistentWorkers
from ..progress import Position
from ..resources import Resources, slabs_held
from .choice import Choice
from .dataset_epoch import decoder_of, fetcher_of
from .queues import with_arrivals
from .task_fetcher import TaskFetcher, WorkerInit
from .tasks import SentOutcome, Tasks, identity
from .torch_iterator import processes
from .worker_maker import WorkerMaker


def worker_maker(
    config: LoaderConfig,
    resources: Resources,
    cursor: EpochCursor,
    plan: EpochPlan,
    kept: PersistentWorkers,
    choice: Choice | None,
) -> WorkerMaker:
    """As ``dataset_epoch.maker``, with worker processes. ``choice``: as for ``fetcher_of``."""
    outcomes = kept.holder
    if not isinstance(outcomes, PlainLoader) or not _usable(config, outcomes):
        outcomes = _outcome_loader(config, resources, plan, choice)
    progress = plan.progress
    idle = progress.positions.turn if plan.resumed else 0
    tasks, fetcher = outcomes.sampler, outcomes.dataset
    assert isinstance(tasks, Tasks) and isinstance(fetcher, TaskFetcher)
    tasks.begin(progress.epoch, plan.order(config), skip=plan.skip, idle=idle, times=plan.times)
    workers = progress.positions.workers
    if fetcher.resumable is not None and not workers:
        workers += [Position() for _ in range(config.num_workers)]
    maker = WorkerMaker(outcomes, iterable=config.iterable, positions=workers)
    if config.persistent:
        kept.holder = outcomes
        if cursor.base_seed is None:
            cursor.base_seed = maker.base_seed
    return maker


def _usable(config: LoaderConfig, outcomes: PlainLoader[SentOutcome]) -> bool:
    """Whether there are as many workers, all alive; torch would wait for a dead one."""
    same = config.persistent and outcomes.num_workers == config.num_workers
    return same and all(process.is_alive() for process in processes(outcomes._iterator))


def _outcome_loader(
    config: LoaderConfig, resources: Resources, plan: EpochPlan, choice: Choice | None
) -> PlainLoader[SentOutcome]:
    count, ahead = config.num_workers, config.num_workers * (config.prefetch_factor or 0)
    if resources.ring is None:
        # batches ahead, the consumer's batch, and the one that it has just freed
        resources.ring = SharedRing(ahead + 2 + slabs_held(config, resources))
    fetcher = fetcher_of(config, resources, plan, choice, TaskFetcher)
    assert isinstance(fetcher, TaskFetcher)
    tasks = Tasks(
        config.index_sampler,
        resources.ring,
        repeats=plan.repeats,
        workers=count,
        decoder=functools.partial(decoder_of, config, resources) if choice else None,
        choice=choice or Choice(),
    )
    loader = PlainLoader(
        fetcher,
        batch_size=None,
        sampler=tasks,
        num_workers=count,
        collate_fn=identity,  # type: ignore[arg-type]
        pin_memory=config.pinned,
        pin_memory_device=config.pin_memory_device,
        timeout=config.timeout,
        generator=plan.seeding(config),
        prefetch_factor=config.prefetch_factor,
        persistent_workers=config.persistent_workers,
        multiprocessing_context=with_arrivals(config.multiprocessing_context),
        worker_init_fn=WorkerInit(config.worker_init_fn),
    )
    loader.warns = True  # in each epoch, as torch
    return loader
