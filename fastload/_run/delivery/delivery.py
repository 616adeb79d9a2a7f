"""How batches reach the caller: move them to the device, finish them there, ``batch_transform``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..._base import nested, randomness
from ..._base.shared_slabs import SharedRing
from ..._base.slabs import SlabRing
from ..._sources.collate import images_of, with_images
from ..._transforms.pixels.erasing import ErasedBoxes
from ..._transforms.plan import Plan
from ..config import LoaderConfig
from ..cursor import EpochCursor
from ..epoch_plan import EpochPlan
from ..maker import Maker
from ..resources import AHEAD_ON_DEVICE, Resources, mover_of
from ..route import EngineRoute, Route
from ..setup import Setup
from .transfer import Delivery

if TYPE_CHECKING:  # batches in host memory do not need these
    from ..._base.devices.accelerator import Accelerator
    from ..._base.devices.mover import Mover
    from ..._engine.device_stage import DeviceStage


@dataclasses.dataclass(frozen=True)
class UnfinishedBatch:
    """A batch with uint8 images, which the device stage finishes; ``drawn`` is to be erased."""

    batch: Any
    drawn: ErasedBoxes | None


def deliver(
    plan: EpochPlan, resources: Resources, cursor: EpochCursor, setup: Setup | None, maker: Maker
) -> Maker:
    """The batches of ``maker``, moved to a device, or transformed, as the loader's arguments say.

    ``setup``: of the engine that fills them; None if none does.
    """
    config = plan.config
    mover = mover_of(config, resources)
    other_device = config.device if config.accelerated and mover is None else None
    stage = None
    if mover is not None and setup is not None and setup.finished is not None:
        stage = _stage(config, resources, setup.finished, mover)
    if mover is not None:
        made = () if resources.engine is None else resources.engine[1].rings
        filled = None if resources.decoder is None else resources.decoder.memory
        rings = (*made, resources.ring, resources.warm, filled)
        mover.rings = tuple(ring for ring in rings if isinstance(ring, (SlabRing, SharedRing)))
    # The seed that was drawn for the workers or the augmentation, as torch does each epoch.
    drawn = cursor.base_seed if maker.base_seed is None else maker.base_seed
    finisher = Finisher(
        other_device=other_device,
        stage=stage,
        transform=_in_place(config, plan.route) or config.batch_transform,
        seed=int((drawn if config.seed is None else config.seed) or 0),
        epoch=plan.progress.epoch,
        accelerator=None if mover is None else mover.accelerator,
    )
    first = config.left_out + plan.progress.batches
    return Delivery(maker, mover, finisher, plan.measurements.stamps, first)


def _in_place(config: LoaderConfig, route: Route) -> Callable[[Any], Any] | None:
    """``batch_transform`` as a function that works in place; None if that is not possible.

    Only for batches that nothing else can refer to: the user may have kept the rows of a
    TensorDataset, or what a ``collate_fn`` returned.
    """
    if config.accelerated or not isinstance(route, EngineRoute) or route.source.tensors:
        return None
    if config.batch_transform is None or config.custom_collate:
        return None
    from ..._transforms.pixels import mixing

    changed: Callable[[Any], Any] | None = mixing.in_place(config.batch_transform)
    return changed


def _stage(config: LoaderConfig, resources: Resources, plan: Plan, mover: Mover) -> DeviceStage:
    """The device stage of ``plan``, kept from epoch to epoch."""
    from ..._engine.device_stage import DeviceStage

    kept = resources.stage
    if kept is None or kept[0] is not mover or not kept[1].same_as(plan):
        with mover.accelerator.side():  # its table is made in the stream that uses it
            made = DeviceStage(plan, mover.accelerator.device, config.memory_format)
        kept = resources.stage = mover, plan, made
    return kept[2]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finisher:
    """What is done to each batch of one epoch, beside moving it."""

    other_device: str | int | torch.device | None
    stage: DeviceStage | None
    transform: Callable[[Any], Any] | None
    seed: int
    epoch: int
    accelerator: Accelerator | None

    def to_move(self, item: Any) -> Any:
        """The part of ``item`` to move to the device."""
        if not isinstance(item, UnfinishedBatch):
            return item
        columns = None if item.drawn is None else item.drawn.columns()
        return item.batch, columns

    def finish(self, item: Any, moved: Any, number: int) -> Any:
        """The caller's batch, made in the side stream; ``number`` counts the epoch's batches."""
        batch, device = moved, self.other_device
        if device is not None:  # Apple's or Intel's: what torch's own ``to`` does
            batch = nested.rebuilt(batch, lambda t: t.to(device), lambda each: each.to(device))
        if isinstance(item, UnfinishedBatch):
            assert self.stage is not None
            batch, columns = moved
            batch = with_images(batch, self.stage(images_of(batch), item.drawn, columns))
        if self.transform is None:
            return batch
        seed = randomness.transform_seed(self.seed, self.epoch, number)
        with randomness.seeded(seed, self.accelerator):
            return self.transform(batch)


def split(setup: Setup, plan: Plan) -> str:
    """Where the parts of ``plan`` run."""
    if setup.finished is None:
        return plan.split
    whole, engine = plan.split.split(", "), plan.levels().split.split(", ")
    device = ", ".join(part for part in whole if part not in engine)
    return f"{', '.join(engine).removeprefix('all ')}; on the device, batch by batch: {device}"


def explain(config: LoaderConfig, route: Route) -> list[str]:
    """Lines of ``FastLoader.explain()``."""
    lines = []
    if config.accelerated:
        lines.append(f"device: {config.device}, {_how(config, route)}")
    elif config.device is not None:
        lines.append("device: cpu, so batches stay in host memory")
    transform = config.batch_transform
    if transform is not None:
        where = f"on {config.device}" if config.accelerated else "in host memory"
        if _in_place(config, route) is not None:
            where = "in the batch's own memory"
        name = getattr(transform, "__name__", type(transform).__name__)
        lines.append(f"batch_transform: {name}, {where}, once a batch")
    return lines


def _how(config: LoaderConfig, route: Route) -> str:
    assert config.device is not None
    if not config.overlapped:
        return "copied when a batch is asked for"
    if isinstance(route, EngineRoute):
        origin = "the engine fills"
    elif config.num_workers:
        origin = "workers collate into"
    else:
        origin = "each batch is copied into"
    return (
        f"copied on a side stream, {config.prefetch_factor or AHEAD_ON_DEVICE} batches ahead, "
        f"{_pinned(origin)}; pin_memory has no effect"
    )


def _pinned(origin: str) -> str:
    """What memory the copies come from; ``origin``: who fills the slabs."""
    from ..._base.devices.cuda import refusal

    refused = refusal()
    if refused is not None:
        return (
            f"from slabs that {origin}, by way of pinned memory of torch's for those that CUDA "
            f"refused to pin in this process ({refused})"
        )
    return f"from pinned slabs that {origin}"
