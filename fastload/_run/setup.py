"""Setup: what is decided once for an epoch that an engine fills, and printed by ``explain()``."""

from __future__ import annotations

import dataclasses

import torch

from .._engine import registry
from .._engine.registry import EngineKind
from .._sources.source import Source
from .._transforms.plan import Plan, Views
from ..errors import UsageError
from . import pillow_share
from .config import LoaderConfig
from .engine_maker import default_prefetch
from .pillow_share import PillowShare
from .resources import Resources

_AHEAD_ON_RAY = 2  # batches for each that is being decoded, as torch has for each worker


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup:
    """Who decodes, where, how far ahead of the consumer, and what the device does.

    Attributes:
        engine: the engine that fills batches.
        device: where it decodes: a CUDA device or the CPU.
        instead: why the engine on a device that was asked for does not run; "" if it does, or none
            was asked for.
        on_ray: tasks on a Ray cluster run the engine.
        pillow: what Pillow decodes, and where; None: no process could help.
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


def decide(config: LoaderConfig, resources: Resources, source: Source) -> Setup:
    """The setup of the next epoch of ``source``.

    Raises:
        UsageError: the engine that was asked for cannot do what ``source`` needs.
        MissingDependencyError: it is not installed.
    """
    engine, instead = registry.chosen(config.engine, source.store), ""
    device = torch.device("cpu")
    if registry.on_device(config.engine):
        asked = registry.KINDS[config.engine]
        instead = asked.refusal(source.store, source.plan) or ""
        if not instead:
            engine, device = asked, config.cuda or device
    on_ray = registry.on_ray(config.engine)
    if on_ray:
        _check_for_ray(source)
    share = None if on_ray else pillow_share.pillow_share(config, resources, source)
    return Setup(
        engine=engine,
        device=device,
        instead=instead,
        on_ray=on_ray,
        pillow=share,
        ahead=_ahead(config, resources, source, engine, share),
        finished=_finished(config, source, engine),
    )


def _ahead(
    config: LoaderConfig,
    resources: Resources,
    source: Source,
    engine: EngineKind,
    share: PillowShare | None,
) -> int:
    """The number of batches to make ahead of the consumer."""
    if not config.num_workers:
        return 0
    if resources.governor is not None:
        return resources.governor.setting.prefetch
    if registry.on_ray(config.engine):
        return config.num_workers * (config.prefetch_factor or _AHEAD_ON_RAY)
    ahead = config.prefetch_factor or default_prefetch()
    if share is not None and share.processes:
        return pillow_share.ahead(ahead, config.num_workers, config.batch_size)
    # Copies to a device, pinned memory and DALI need batches in flight of their own.
    on_gpu = config.accelerated or (config.pin_memory and torch.cuda.is_available())
    if ahead != default_prefetch() or on_gpu or engine.on_device:
        return ahead
    return default_prefetch(source.plan.nbytes, config.batch_size, config.num_workers)


def _finished(config: LoaderConfig, source: Source, engine: EngineKind) -> Plan | None:
    """The plan whose last steps run on the loader's device; None if the engine does all of them.

    A ``collate_fn`` of the user's must get finished images, and DALI's are on the device already.
    """
    plan = source.plan
    if not config.overlapped or config.custom_collate or source.tensors or engine.on_device:
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
