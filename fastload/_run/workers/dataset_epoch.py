"""An epoch whose samples the user's Dataset makes, in worker processes or in this one."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING

from ..._base.machine import cpu
from ..._base.slabs import SlabRing
from ..._engine.registry import is_torch
from ..._sources.deferred.needed import loaded
from ..._sources.kinds import check_crc, is_packed, nested, runnable
from ..config import LoaderConfig
from ..cursor import EpochCursor
from ..epoch_plan import EpochPlan
from ..maker import Maker, PersistentWorkers
from ..progress import is_stateful
from ..resources import Resources, slabs_held
from ..route import WorkersRoute
from . import placed_rows
from .choice import Choice, choice_for
from .columns import SMALL_NBYTES
from .deferral import Deferral, Local, begin_epoch, rest
from .fetch import Fetcher

if TYPE_CHECKING:
    from ..._engine.cache.opened import OpenedCache
    from ..._sources.deferred.ahead import Ahead
    from ..._sources.deferred.batch import BatchDecoder
    from .local_maker import LocalMaker
    from .resumable import Resumable
    from .worker_maker import WorkerMaker

# Slabs for batches collated in this process: one in use, and one being made.
_WARM_SLABS = 2

# Of fewer images, what workers would remember is not worth the hundredth of a second that it takes
# to make what they share.
_FEW = 1000

# Images to expect of a dataset without a length.
_UNKNOWN = 1 << 20


def maker(
    plan: EpochPlan,
    resources: Resources,
    cursor: EpochCursor,
    kept: PersistentWorkers,
    *,
    reported: int | None,
) -> Maker:
    """What makes the batches of ``plan``.

    Args:
        kept: worker processes of the epochs before, and of this one.
        reported: the length that an IterableDataset gave, or None.
    """
    assert isinstance(plan.route, WorkersRoute)
    config, choice = plan.config, None
    if not plan.route.eager and loaded():
        choice = _expecting(config, resources)
    maker: LocalMaker | WorkerMaker  # imported when used: either takes a millisecond
    if config.num_workers:
        from .worker_maker import worker_maker

        if any(map(is_packed, nested(config.dataset))):
            from ..._sources import in_python  # noqa: F401 - before workers are forked
        maker = worker_maker(plan, resources, cursor, kept, choice)
    else:
        from .local_maker import LocalMaker

        fetcher = fetcher_of(plan, resources, choice)
        maker = LocalMaker(plan, fetcher, reported=reported)
    if plan.refill is None:
        return maker
    from ..bad_samples.refill import Refilled

    return Refilled(maker, plan.refill)


def _expecting(config: LoaderConfig, resources: Resources) -> Choice:
    """What decides whether images are deferred, told of what begins; and prepare what a dataset
    needs that has begun to defer.
    """
    choice = resources.choice
    if choice is None:
        choice = choice_for(config.dataset, config.collate, config.num_workers)
        resources.choice = choice
    choice.measures = config.measures
    anew = _begins_anew(config)
    length = _length(config) if choice.waits or anew else 0
    choice.expect(length, max(1, config.num_workers), anew=anew)
    begun = not choice.waits or resources.decoder is not None
    if config.num_workers and (begun or config.accelerated):
        begin_epoch()  # before workers are forked; and copies to a device have to know the slabs
        decoder_of(config, resources)
        rest(choice)  # only the workers run the dataset
    few = choice.waits and 0 < length < _FEW
    if config.num_workers and not few:
        # Before workers are forked, which share them, whether they defer or wait.
        from ..._sources.deferred.entry_points import entry_points
        from ..._sources.deferred.headers import header_table

        header_table()
        entry_points()
    return choice


def _begins_anew(config: LoaderConfig) -> bool:
    """Whether this epoch's workers are new, and each begins to defer by itself."""
    if not config.num_workers or config.persistent_workers:
        return False
    from .start_method import is_prepared

    return not is_prepared(config.multiprocessing_context)


def _length(config: LoaderConfig) -> int:
    """How many samples the dataset says that it has; 0: it does not say."""
    if config.iterable or not config.own_order:  # else torch does not ask it either
        return 0
    try:
        return len(config.dataset)
    except Exception:  # noqa: BLE001 - the sampler's to raise, with the first batch
        return 0


def fetcher_of(
    plan: EpochPlan,
    resources: Resources,
    choice: Choice | None,
    kind: type[Fetcher] = Fetcher,
) -> Fetcher:
    """What makes the samples of ``plan``; in worker processes another ``kind``.

    ``choice``: decides whether their images are deferred; None: they never are.
    """
    config = plan.config
    count = config.num_workers
    if not count and resources.warm is None:
        resources.warm = SlabRing(_WARM_SLABS + slabs_held(config, resources))
    dataset = runnable(config.dataset)
    resumable: Resumable | None = None
    if config.iterable or is_stateful(dataset):
        from .resumable import Resumable

        resume = None
        if plan.resumed:
            plan.progress.positions.check(count)
            resume = plan.progress.epoch, plan.progress.positions.copied()
        resumable = Resumable(
            dataset,
            size=config.batch_size,
            drop_last=config.drop_last,
            on_error=plan.on_error,
            limit=config.max_errors,
            seed=config.seed,
            resume=resume,
            every=config.snapshot_every_n_steps or 0,
        )
    deferral = None
    if choice is not None:
        deferral = _deferral(config, resources, choice, once=resumable is not None)
    kept = resources.fetcher
    if kept is not None and kept[0] is config and resumable is None:
        fetcher = kept[1]
        if fetcher.dataset is dataset and fetcher.on_error == plan.on_error:
            fetcher.deferral = deferral
            return fetcher
    fetcher = kind(
        dataset=dataset,
        collate_fn=config.collate,
        resumable=resumable,
        batched=config.batched,
        on_error=plan.on_error,
        seed=config.seed,
        warm=None if count else resources.warm,
        large=SMALL_NBYTES if count or config.accelerated else placed_rows.WARM_NBYTES,
        waiting=resources.waiting,
        deferral=deferral,
        eager=is_torch(config.engine),
    )
    # With a seed, what the dataset has that is to be seeded is looked for in each epoch.
    again = not count and resumable is None and config.seed is None
    resources.fetcher = (config, fetcher) if again else None
    return fetcher


def _deferral(
    config: LoaderConfig, resources: Resources, choice: Choice, *, once: bool
) -> Deferral:
    """What runs the dataset over deferred images. ``once``: as there."""
    if not config.num_workers:
        holder = weakref.ref(resources)  # which holds the deferral: no cycle

        def local() -> Local:
            held = holder()
            assert held is not None, "the iterator's fetcher runs"
            decoder = decoder_of(config, held)
            return Local(decoder, _ahead(held, decoder))

        deferral = resources.deferral
        if deferral is None or deferral.once != once:
            deferral = resources.deferral = Deferral(choice, once=once)
        deferral.local = local
        if config.accelerated:
            deferral.begin()  # copies to the device have to know its slabs
        return deferral
    cache = _cache(config, resources)
    few = None
    if cache is None and config.num_workers >= cpu.available():  # else other threads have CPUs
        few = functools.partial(_few, config)
    return Deferral(choice, keep=True, cache=cache, few=few, once=once)


def _few(config: LoaderConfig) -> BatchDecoder:
    """What fills batches of a few images in a worker."""
    from ..._sources.deferred.batch import BatchDecoder

    return BatchDecoder(0, SlabRing(0), check_crc(config.dataset))


def _ahead(resources: Resources, decoder: BatchDecoder) -> Ahead | None:
    """What decodes while the dataset's code runs; None: there is no CPU for it."""
    if resources.ahead is None and decoder.threads > 1:
        from ..._sources.deferred.ahead import Ahead

        resources.ahead = Ahead(decoder.threads)
    return resources.ahead


def _cache(config: LoaderConfig, resources: Resources) -> OpenedCache | None:
    """The cache of what the dataset opens; None: the user asked for none."""
    if resources.cache is None:
        return None
    length = getattr(config.dataset, "__len__", None)
    return resources.cache.opened(_UNKNOWN if length is None else length())


def decoder_of(config: LoaderConfig, resources: Resources) -> BatchDecoder:
    """What fills batches of recorded images in this process; it counts for the running epoch."""
    count, known = config.num_workers, resources.decoder
    # Asking for the CPUs reads files: it takes longer than an epoch of a few small batches.
    if known is None or (count and known.threads != count):
        from ..._sources.deferred.batch import BatchDecoder

        ahead = count * (config.prefetch_factor or 0)
        threads = count or cpu.available()
        ring = SlabRing(ahead + _WARM_SLABS + slabs_held(config, resources))
        known = resources.decoder = BatchDecoder(threads, ring, check_crc(config.dataset))
    measured = resources.measurements
    if known.counts is not measured.images.made:
        known.counts, known.stamps = measured.images.made, measured.stamps
        known.cache = _cache(config, resources)
    return known
