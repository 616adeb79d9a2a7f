"""How a loader's batches reach the caller: the device, what is done there, ``batch_transform``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..._base.trace import Observed
from ..._sources.collate import images_of, with_images
from ..._sources.source import Source
from ..._transforms.pixels.erasing import Drawn
from ..._transforms.plan import Plan
from .. import decode_device
from ..config import LoaderConfig
from ..cursor import EpochCursor
from ..epoch import EpochPlan
from ..progress import Progress
from ..resources import Resources, mover_of
from ..route import EngineRoute, Route
from ..stream import BatchStream
from ..workers import randomness

if TYPE_CHECKING:  # what batches in host memory do not need
    from ..._base.devices.mover import Mover
    from ..._engine.device_stage import DeviceStage
    from ..decode_device import Choice


@dataclasses.dataclass(frozen=True)
class Levels:
    """A batch of an engine whose images the device stage has yet to finish.

    Attributes:
        batch: as ``collate`` makes it, with images in uint8.
        drawn: the rectangles of these images, or None.
    """

    batch: Any
    drawn: Drawn | None


def rest(config: LoaderConfig, choice: Choice | None, source: Source) -> Plan | None:
    """The plan of which an engine leaves the end to the device; None where it does all.

    A ``collate_fn`` of the user's is given finished images, and DALI's are on the device already.
    """
    plan = source.plan
    if not config.accelerated or config.collates or source.tensors:
        return None
    if not isinstance(plan, Plan) or plan.channels != 3:
        return None
    if decode_device.decoding(config, choice, source).engine == "dali":
        return None
    return plan if plan.lut is not None or plan.erasing else None


def deliver(
    config: LoaderConfig,
    resources: Resources,
    cursor: EpochCursor,
    plan: EpochPlan,
    inner: BatchStream,
) -> BatchStream:
    """``inner``, with its batches moved to the device and transformed as ``config`` says."""
    mover = mover_of(config, resources)
    if mover is None and config.batch_transform is None:
        return inner
    from .transfer import Delivery

    stage = None
    source = plan.route.source if isinstance(plan.route, EngineRoute) else None
    left = None if source is None else rest(config, resources.choice, source)
    if mover is not None and left is not None:
        stage = _stage(config, left, mover)
    if mover is not None:
        made = () if resources.engine is None else resources.engine[1].rings
        rings = (*made, resources.ring, resources.warm)
        mover.rings = tuple(ring for ring in rings if ring is not None)
    transform = _in_place(config, plan.route) or config.batch_transform
    finisher = _Finisher(config, cursor, plan.progress, inner, mover, stage, transform)
    return Delivery(inner, mover, finisher, plan.stamps)


def _in_place(config: LoaderConfig, route: Route) -> Callable[[Any], Any] | None:
    """``batch_transform`` in the memory of batches that nobody else has; None: it makes new ones.

    Rows of a TensorDataset and what a ``collate_fn`` of the user's returns may be kept by others.
    """
    if config.accelerated or not isinstance(route, EngineRoute) or not route.decodes:
        return None
    if config.batch_transform is None or config.collates:
        return None
    from ..._transforms.pixels import mixing

    changed: Callable[[Any], Any] | None = mixing.in_place(config.batch_transform)
    return changed


def _stage(config: LoaderConfig, plan: Plan, mover: Mover) -> DeviceStage:
    """The device stage of ``plan``, kept from epoch to epoch."""
    from ..._engine.device_stage import DeviceStage

    known: tuple[Plan, DeviceStage] | None = mover.kept
    if known is None or not known[0].same_as(plan):
        with mover.accelerator.side():  # where its table is made and used
            known = plan, DeviceStage(plan, mover.accelerator.device, config.memory_format)
        mover.kept = known
    return known[1]


class _Finisher:
    """What is done with each batch of one epoch; see ``Finisher``."""

    def __init__(
        self,
        config: LoaderConfig,
        cursor: EpochCursor,
        progress: Progress,
        inner: BatchStream,
        mover: Mover | None,
        stage: DeviceStage | None,
        transform: Callable[[Any], Any] | None,
    ) -> None:
        self._cursor = cursor
        self._progress = progress
        self._shown: Progress | None = progress
        self._accelerator = None if mover is None else mover.accelerator
        self._stage = stage
        self._transform = transform
        self._left_out = config.left_out
        self._seed = config.seed
        if self._seed is None and self._transform is not None:
            # Drawn once an epoch, as torch draws what its workers are seeded with.
            drawn = getattr(inner, "_base_seed", None)
            self._seed = cursor.base_seed if drawn is None else drawn
        # DataPipes and batches out of order are counted by nobody else.
        self._counts, self._uncounted = isinstance(inner, Observed), 0

    def to_move(self, item: Any) -> Any:
        if not isinstance(item, Levels):
            return item
        columns = None if item.drawn is None else item.drawn.columns()
        return item.batch, columns

    def finish(self, item: Any, moved: Any, number: int) -> Any:
        batch = moved
        if isinstance(item, Levels):
            assert self._stage is not None
            batch, columns = moved
            batch = with_images(batch, self._stage(images_of(batch), item.drawn, columns))
        if self._transform is None:
            return batch
        seed = randomness.transform_seed(int(self._seed or 0), self._progress.epoch, number)
        with randomness.seeded(seed, self._accelerator):
            return self._transform(batch)

    def note(self) -> tuple[int, Progress]:
        self._uncounted += 1
        number = self._uncounted if self._counts else self._progress.batches
        note = dataclasses.replace(self._progress, workers=list(self._progress.workers))
        return self._left_out + number - 1, note

    def returned(self, note: Progress) -> None:
        # Unless another epoch has begun meanwhile.
        if self._cursor.progress is self._shown:
            self._cursor.progress = self._shown = note


def split(config: LoaderConfig, choice: Choice | None, source: Source, plan: Plan) -> str:
    """Where the parts of ``plan`` run, in words."""
    if rest(config, choice, source) is None:
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
    if torch.device(config.device).type != "cuda":
        return "copied when a batch is asked for"
    if isinstance(route, EngineRoute):
        origin = "the engine fills"
    elif config.num_workers:
        origin = "workers collate into"
    else:
        origin = "each batch is copied into"
    return (
        f"copied on a stream of its own, {config.prefetch_device} batches ahead, out of slabs that "
        f"{origin} and that are pinned once; pin_memory has nothing to do here"
    )
