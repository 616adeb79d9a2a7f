"""How a loader's batches reach the caller: the device, what is done there, ``batch_transform``."""

from __future__ import annotations

import dataclasses
import os
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from ..._base.trace import Observed
from ..._sources.collate import collate, images_of, with_images
from ..._sources.source import Source
from ..._transforms.pixels.erasing import Drawn
from ..._transforms.plan import Plan
from .. import decode_device
from ..epoch import Epoch
from ..progress import Progress
from ..workers import randomness

if TYPE_CHECKING:  # what batches in host memory do not need
    from ..._engine.device_stage import DeviceStage
    from .mover import Mover


@dataclasses.dataclass(frozen=True)
class Levels:
    """A batch of an engine whose images the device stage has yet to finish.

    Attributes:
        batch: as ``collate`` makes it, with images in uint8.
        drawn: the rectangles of these images, or None.
    """

    batch: Any
    drawn: Drawn | None


def accelerated(loader: Any) -> bool:
    """Whether the batches of ``loader``, a FastLoader, go to another device than the CPU."""
    return loader.device is not None and torch.device(loader.device).type != "cpu"


def rest(loader: Any, source: Source) -> Plan | None:
    """The plan that an engine leaves at levels, as the device does what comes then; or None.

    A ``collate_fn`` of the user's is given finished images, and those of DALI
    are on the device already.
    """
    plan = source.plan
    if not accelerated(loader) or loader._collate is not collate or source.tensors:
        return None
    if not isinstance(plan, Plan) or plan.channels != 3:
        return None
    if decode_device.decoding(loader, source).engine.on_device:
        return None
    return plan if plan.lut is not None or plan.erasing else None


def prepare(loader: Any) -> Mover | None:
    """What moves the batches of ``loader`` in this process, kept for its life; None: nothing does.

    Raises UsageError where the device is not there.
    """
    if not accelerated(loader):
        return None
    from ..._base.devices import accelerator
    from .mover import Mover

    if loader._mover is None or loader._mover[0] != os.getpid():
        target = accelerator.make(torch.device(loader.device))
        assert target is not None
        loader._mover = os.getpid(), Mover(target, loader.prefetch_device)
    mover: Mover = loader._mover[1]
    return mover


def slabs_held(loader: Any) -> int:
    """Slabs that flights hold on to, beside those that the iterator behind has in use."""
    mover = prepare(loader)
    return 0 if mover is None else mover.ahead + 2


def deliver(loader: Any, source: Source | str, epoch: Epoch, inner: Iterator[Any]) -> Iterator[Any]:
    """``inner``, whose batches are moved and transformed as ``loader`` says."""
    mover = prepare(loader)
    if mover is None and loader.batch_transform is None:
        return inner
    from .transfer import Delivery

    stage = None
    plan = None if isinstance(source, str) else rest(loader, source)
    if mover is not None and plan is not None:
        stage = _stage(loader, plan, mover)
    if mover is not None:
        made = () if loader._made is None else loader._made[1].rings
        rings = (*made, loader._ring, loader._warm)
        mover.rings = tuple(ring for ring in rings if ring is not None)
    transform = _in_place(loader, source) or loader.batch_transform
    finisher = _Finisher(loader, epoch.progress, inner, mover, stage, transform)
    return Delivery(inner, mover, finisher, loader._stamps)


def _in_place(loader: Any, source: Source | str) -> Callable[[Any], Any] | None:
    """``batch_transform`` for batches that nobody else has; None: as it is.

    Rows of a TensorDataset and what a ``collate_fn`` of the user's returns may be kept by others.
    """
    if accelerated(loader) or isinstance(source, str) or source.tensors:
        return None
    if loader.batch_transform is None or loader._collate is not collate:
        return None
    from ..._transforms.pixels import mixing

    changed: Callable[[Any], Any] | None = mixing.in_place(loader.batch_transform)
    return changed


def _stage(loader: Any, plan: Plan, mover: Mover) -> DeviceStage:
    """The device stage of ``plan``, kept from epoch to epoch."""
    from ..._engine.device_stage import DeviceStage

    known: tuple[Plan, DeviceStage] | None = mover.kept
    if known is None or not known[0].same_as(plan):
        with mover.accelerator.side():  # where its table is made and used
            known = plan, DeviceStage(plan, mover.accelerator.device, loader.memory_format)
        mover.kept = known
    return known[1]


class _Finisher:
    """What is done with each batch of one epoch; see ``Finisher``."""

    def __init__(
        self,
        loader: Any,
        progress: Progress,
        inner: Iterator[Any],
        mover: Mover | None,
        stage: DeviceStage | None,
        transform: Callable[[Any], Any] | None,
    ) -> None:
        self._loader = weakref.ref(loader)  # which may keep the iterator
        self._progress = progress
        self._shown: Progress | None = progress
        self._accelerator = None if mover is None else mover.accelerator
        self._stage = stage
        self._transform = transform
        self._left_out = loader._left_out
        self._seed = loader.seed
        if self._seed is None and self._transform is not None:
            # Drawn once an epoch, as torch draws what its workers are seeded with.
            drawn = getattr(inner, "_base_seed", None)
            self._seed = loader._base_seed if drawn is None else drawn
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
        loader = self._loader()
        if loader is not None and loader._progress is self._shown:
            loader._progress = self._shown = note


def split(loader: Any, source: Source, plan: Plan) -> str:
    """Where the parts of ``plan`` run, in words."""
    if rest(loader, source) is None:
        return plan.split
    whole, engine = plan.split.split(", "), plan.levels().split.split(", ")
    device = ", ".join(part for part in whole if part not in engine)
    return f"{', '.join(engine).removeprefix('all ')}; on the device, batch by batch: {device}"


def explain(loader: Any, source: Source | str) -> list[str]:
    """Lines of ``FastLoader.explain()``."""
    lines = []
    if accelerated(loader):
        lines.append(f"device: {loader.device}, {_how(loader, source)}")
    elif loader.device is not None:
        lines.append("device: cpu, so batches stay in host memory")
    if loader.batch_transform is not None:
        where = f"on {loader.device}" if accelerated(loader) else "in host memory"
        if _in_place(loader, source) is not None:
            where = "in the batch's own memory"
        name = getattr(loader.batch_transform, "__name__", type(loader.batch_transform).__name__)
        lines.append(f"batch_transform: {name}, {where}, once a batch")
    return lines


def _how(loader: Any, source: Source | str) -> str:
    if torch.device(loader.device).type != "cuda":
        return "copied when a batch is asked for"
    if not isinstance(source, str):
        origin = "the engine fills"
    elif loader.num_workers:
        origin = "workers collate into"
    else:
        origin = "each batch is copied into"
    return (
        f"copied on a stream of its own, {loader.prefetch_device} batches ahead, out of slabs that "
        f"{origin} and that are pinned once; pin_memory has nothing to do here"
    )
