"""Setup: what is decided once for an epoch that an engine fills, and printed by ``explain()``.

Note [Pillow's share]
    Most of Pillow's work on a small image is Python, which threads cannot do at the same time. So a
    sample of the records is examined once. If Pillow has to decode enough of them, worker processes
    do it (``_engine/processes.py``). The results are the same.
"""

from __future__ import annotations

import math
import multiprocessing
import os
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from .._engine import registry
from .._engine.image_engine import EngineOptions
from .._engine.registry import EngineKind
from .._sources.source import Source
from .._transforms.plan import Plan, Views
from ..errors import DataError, UsageError
from ..storage._probe import image_format
from ..storage.base import Store
from .config import PREFETCH, LoaderConfig
from .resources import Resources
from .route import EngineRoute

if TYPE_CHECKING:
    from .._engine.processes import Processes

_AHEAD_ON_RAY = 2  # batches for each that is being decoded, as torch has for each worker

# Batches of this size and above are a large part of a loop's memory. Smaller ones gain more speed
# from a second batch ahead than it takes: 5 % for 64 photos, 38 MB.
_LARGE_NBYTES = 64 << 20

# At the end of a batch a thread is idle for half a sample on average: 3 % of so many samples.
_SAMPLES_PER_THREAD = 16

# Size of the sample, which is spread over the dataset.
_LOOKED_AT = 32

# Processes are used if Pillow decodes at least this share; starting one takes some milliseconds.
_SHARE = 1 / 16


class PillowShare(NamedTuple):
    """What Pillow decodes of a sample of the records, and where.

    Attributes:
        looked_at: size of the sample.
        left: int64, the records of the sample that Pillow decodes, at least one.
        threads: why threads must do it; "" if processes can.
    """

    looked_at: int
    left: np.ndarray
    threads: str

    @property
    def processes(self) -> bool:
        """Whether processes run Pillow."""
        return not self.threads and len(self.left) >= _SHARE * self.looked_at

    def explain(self, source: Source, workers: int) -> list[str]:
        """Lines for ``FastLoader.explain()``."""
        share = len(self.left) / self.looked_at
        who = f"{workers or 'the calling'} thread{'s' * (workers != 1)}"
        if self.processes:
            who = f"{workers} worker process{'es' * (workers != 1)}"
        elif self.threads and workers:
            who += f", which take turns, because {self.threads}"
        return [
            f"pillow: decodes {share:.0%} of the {self.looked_at} records sampled"
            f"{_formats(source.store, self.left)}, in {who}",
            "faster: `fastload pack --encode raw` (the same pixels) or `--encode jpeg` (smaller, "
            "not the same) makes records that the core decodes",
        ]


class Setup(NamedTuple):
    """Who decodes, where, how far ahead of the consumer, and what the device does.

    Attributes:
        engine: the engine that fills batches.
        device: where it decodes: a CUDA device or the CPU.
        instead: why the engine on a device that was asked for does not run; "" if it does, or none
            was asked for.
        on_ray: tasks on a Ray cluster run the engine.
        pillow: what Pillow decodes, and where; None: nothing, or no process could help.
        ahead: batches to make ahead of the consumer; 0: each is made in ``next``.
        finished: the plan whose last steps run on the loader's device; None: the engine does all.
    """

    engine: EngineKind
    device: torch.device
    instead: str
    on_ray: bool
    pillow: PillowShare | None
    ahead: int
    finished: Plan | None

    def describe(self) -> str | None:
        """Where an engine on a device decodes, for ``explain()``; None if none was asked for."""
        if self.instead:
            return f"on the CPU, because {self.instead}"
        if not self.engine.on_device:
            return None
        where = self.device if self.device.type != "cpu" else "its CPU back end"
        return f"by {self.engine.describe()} on {where}"


def decide(config: LoaderConfig, resources: Resources, route: EngineRoute) -> Setup:
    """The setup of the next epoch of ``route``.

    Raises:
        UsageError: the engine that was asked for cannot do what its source needs.
        MissingDependencyError: it is not installed.
    """
    source, engine, instead = route.source, route.engine, ""
    device = torch.device("cpu")
    on_device, on_ray = registry.on_device(config.engine), registry.on_ray(config.engine)
    if on_device:
        asked = registry.KINDS[config.engine]
        instead = asked.refusal(source.store, source.plan) or ""
        if not instead:
            engine, device = asked, config.cuda or device
    if on_ray:
        _check_for_ray(source)
    share = None if on_device or on_ray else _pillow_share(config, resources, source)
    return Setup(
        engine=engine,
        device=device,
        instead=instead,
        on_ray=on_ray,
        pillow=share,
        ahead=_ahead(config, resources, source, engine, share, on_ray=on_ray),
        finished=_finished(config, source, engine) if config.overlapped else None,
    )


def _ahead(
    config: LoaderConfig,
    resources: Resources,
    source: Source,
    engine: EngineKind,
    share: PillowShare | None,
    *,
    on_ray: bool,
) -> int:
    """The number of batches to make ahead of the consumer."""
    if not config.num_workers:
        return 0
    if resources.governor is not None:
        return resources.governor.setting.prefetch
    if on_ray:
        return config.num_workers * (config.prefetch_factor or _AHEAD_ON_RAY)
    ahead = config.prefetch_factor or PREFETCH
    if share is not None and share.processes:
        # As many samples as torch's workers would have, so that small batches keep all busy.
        return max(ahead, math.ceil(ahead * config.num_workers / (config.batch_size or 1)))
    # Copies to a device, pinned memory and DALI need batches in flight of their own.
    on_gpu = config.accelerated or (config.pin_memory and torch.cuda.is_available())
    if ahead != PREFETCH or on_gpu or engine.on_device:
        return ahead
    return default_ahead(source.plan.nbytes, config.batch_size, config.num_workers)


def default_ahead(sample_nbytes: int | None, batch_size: int | None, threads: int) -> int:
    """2, as in torch, or 1 where batches are large: then memory holds the batch that the loop
    works on and the one that is being filled. But not where ``threads`` would be idle too long
    between two batches.
    """
    if sample_nbytes is None or batch_size is None:
        return PREFETCH
    large = sample_nbytes * batch_size >= _LARGE_NBYTES
    return 1 if large and batch_size >= _SAMPLES_PER_THREAD * threads else PREFETCH


def _finished(config: LoaderConfig, source: Source, engine: EngineKind) -> Plan | None:
    """The plan whose last steps run on the loader's CUDA device; None: the engine does them all.

    A ``collate_fn`` of the user's must get finished images, and DALI's are on the device already.
    """
    plan = source.plan
    if config.custom_collate or source.tensors or engine.on_device:
        return None
    if not isinstance(plan, Plan) or plan.channels != 3:
        return None
    return plan if plan.lut is not None or plan.erasing else None


def _check_for_ray(source: Source) -> None:
    """Raise UsageError unless other machines can decode what ``source`` has."""
    reason = None
    if source.tensors:
        reason = "the dataset holds tensors, and nothing is decoded"
    elif isinstance(source.plan, Views):
        reason = "the transform gives several views"
    elif source.plan.joint is not None:
        reason = "joint= moves masks and boxes along by what this process draws and reads"
    elif source.store.remote:
        reason = "the store is at a URL: copy it to a folder that all machines share"
    if reason is not None:
        raise UsageError(f"engine='ray' is not possible: {reason}")


def _pillow_share(config: LoaderConfig, resources: Resources, source: Source) -> PillowShare | None:
    """Pillow's share of ``source``; None: it has none, or the source rules it out."""
    if source.tensors or not len(source):
        return None
    if source.store.remote:
        return None  # a sample of its records would be fetched before the first batch
    looked_at = resources.looked_at
    if looked_at is None or looked_at[0] != source.parts:
        from .._engine.native import left_to_pillow

        indices = np.linspace(0, len(source) - 1, min(len(source), _LOOKED_AT), dtype=np.int64)
        records = source.lookup(indices)
        looked_at = resources.looked_at = (
            source.parts,
            records,
            records[left_to_pillow(source.store, records, config.num_workers)],
        )
    _, records, for_pillow = looked_at
    if not len(for_pillow):
        return None
    return PillowShare(len(records), for_pillow, threads=_why_threads(config, resources))


def _why_threads(config: LoaderConfig, resources: Resources) -> str:
    """Why there can be no processes; "" if there can."""
    if not config.num_workers:
        return "num_workers=0 asks for no processes"
    if multiprocessing.current_process().daemon:
        return "this is a worker process, which may not start others"
    if not hasattr(os, "memfd_create"):
        return "the system has no memory files (memfd_create)"  # Linux has them, and fork
    if resources.cache is None:
        return ""
    if _context(config).get_start_method() != "fork":
        return "a cache can only be shared with forked processes"
    return ""


def _context(config: LoaderConfig) -> BaseContext:
    """The user's start method for this loader, else the user's default, else fork.

    Others import the user's script again, which some scripts do not expect. Forking is
    safe here because the child touches nothing that another thread may have held at that time.
    """
    given = config.multiprocessing_context
    if isinstance(given, BaseContext):
        return given
    default = multiprocessing.get_start_method(allow_none=True)
    return multiprocessing.get_context(given or default or "fork")


def pillow_processes(config: LoaderConfig, store: Store, plan: Plan | Views) -> Processes:
    """The processes that decode ``store`` for ``plan``, not yet started."""
    from .._engine.native import NativeEngine
    from .._engine.processes import Processes

    options = EngineOptions(
        threads=0, ring=None, channels_last=config.channels_last, check_crc="never"
    )
    engines = [NativeEngine(store, one, options) for one in plan.each]
    return Processes(engines, _context(config), persistent=config.persistent_workers)


def _formats(store: Store, records: np.ndarray) -> str:
    """The image formats of these records, as far as their first bytes show."""
    try:
        names = sorted({image_format(data) for data in store.read(records)} - {"other"})
    except DataError:
        return ""  # raised again for the batch
    return f" ({', '.join(name.upper() for name in names)})" if names else ""
