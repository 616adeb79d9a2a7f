"""Resources: what a loader keeps from one epoch to the next."""

from __future__ import annotations

import copy
import dataclasses
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from .._base.derived import derived
from .._base.machine import cpu
from .._base.per_process import PerProcess
from .._base.value_class import value_class
from ..errors import InternalError
from .config import LoaderConfig
from .measurements import Measurements

if TYPE_CHECKING:  # not every loader needs these
    from .._base.devices.mover import Mover
    from .._base.shared_slabs import SharedRing
    from .._base.slabs import SlabRing
    from .._engine.base import BatchEngine
    from .._engine.cache.cache import Cache
    from .._engine.device_stage import DeviceStage
    from .._engine.registry import EngineKind
    from .._sources.deferred.ahead import Ahead
    from .._sources.deferred.batch import BatchDecoder
    from .._transforms.plan import Plan
    from ..storage.base import Store
    from .governor import Governor
    from .workers.choice import Choice
    from .workers.deferral import Deferral
    from .workers.fetch import Fetcher


AHEAD_ON_DEVICE = 2
"""Batches on the device ahead of the caller's, where ``prefetch_factor`` is not given."""


# Loaders whose free slabs are kept: more than train on one machine at once. A program may keep one
# for each fold or client, and a slab takes its memory, in shared memory also two descriptors.
_RECENT = 4

_recent: list[weakref.ref[Resources]] = []  # the last one first


class EngineKey(NamedTuple):
    """What an engine was made for. It is reused by epochs with the same key.

    Attributes:
        process: id of the process that made it; after a fork, its threads are the parent's.
        parts: the stores that it reads.
        engine, on_ray, device: which engine, and where it decodes.
    """

    process: int
    parts: tuple[Store, ...]
    engine: EngineKind
    on_ray: bool
    device: torch.device


@value_class(frozen=False)
class Resources:
    """What one loader keeps. Only plain data is pickled.

    Attributes:
        native: whether an engine makes the first epoch's batches, as far as is known.
        measurements: of the running epoch, or the last one.
        governor: adjusts the workers if ``num_workers="auto"``, else None.
        waiting: measures how long the dataset's code waits.
        engine: the engine, and what it was made for.
        looked_at: stores, the sample of their records that was examined, and those of the sample
            that Pillow decodes.
        ring: slabs of shared memory for batches from worker processes.
        choice: whether it is cheaper to defer the images of a user's Dataset.
        fetcher: makes its samples in this process, as that config says.
        deferral: runs it over deferred images in this process.
        decoder: makes the images that it opened.
        ahead: makes pixels before its code asks for them.
        warm: slabs for large batches that are collated in this process.
        device: the device as it was given, and with its index.
        stage: finishes images on the device; with its mover and its plan.
        replayed: images/s of the loop in ``replay``; 0 if it was not called.
    """

    native: bool = False

    cache: Cache | None = None
    governor: Governor | None = None
    engine: tuple[EngineKey, BatchEngine] | None = None
    looked_at: tuple[tuple[Store, ...], np.ndarray, np.ndarray] | None = None
    ring: SharedRing | None = None
    warm: SlabRing | None = None
    choice: Choice | None = None
    fetcher: tuple[LoaderConfig, Fetcher] | None = None
    deferral: Deferral | None = None
    decoder: BatchDecoder | None = None
    ahead: Ahead | None = None
    stage: tuple[Mover, Plan, DeviceStage] | None = None
    replayed: float = 0.0

    @derived
    def measurements(self) -> Measurements:
        return Measurements(native=self.native)

    @derived
    def waiting(self) -> cpu.Waiting:
        return cpu.Waiting()

    @derived
    def device(self) -> PerProcess[tuple[object, torch.device]]:
        return PerProcess()

    @derived
    def mover(self) -> PerProcess[Mover]:
        return PerProcess()

    def resolved(self, config: LoaderConfig, *, begin: bool = False) -> LoaderConfig:
        """``config``, with the index that ``device="cuda"`` had when the first epoch began.

        Otherwise a later ``torch.cuda.set_device`` would divide a loader between two devices.
        Before the first epoch begins, the index is left open, because asking for it would start
        CUDA here.
        """
        kept = self.device.get()
        if kept is None or kept[0] != config.device:
            device = config.cuda if begin else None
            if device is None:
                return config
            kept = self.device.put((config.device, device))
        return dataclasses.replace(config, device=kept[1])

    def begin(self) -> None:
        """An epoch begins: free slabs are kept for the loaders that began one last."""
        global _recent  # replaced, never changed: loaders in other threads begin, too
        others = [ref for ref in _recent if (it := ref()) is not None and it is not self]
        _recent = [weakref.ref(self), *others[: _RECENT - 1]]
        for ref in others[_RECENT - 1 :]:
            resources = ref()
            if resources is not None:
                resources.give_back()

    def give_back(self) -> None:
        """Give back free slabs, unless they are pinned for a device: to unpin them takes long."""
        if self.mover.get() is not None:
            return
        made = () if self.engine is None else self.engine[1].rings
        for ring in (*made, self.ring, self.warm):
            if ring is not None:
                ring.give_back()

    def __copy__(self) -> Resources:
        """Those of a copy of the loader: only the cache is shared."""
        return Resources(
            self.measurements.native,
            cache=self.cache,
            governor=copy.deepcopy(self.governor),
        )

    def __getstate__(self) -> dict[str, Any]:
        # Threads, processes, shared memory and streams cannot be pickled; the copy makes its own.
        here = ("engine", "looked_at", "ring", "warm", "fetcher", "deferral", "decoder", "ahead")
        return {**self.__dict__, **dict.fromkeys(here), "stage": None}


def mover_of(config: LoaderConfig, resources: Resources) -> Mover | None:
    """What moves a loader's batches to CUDA in this process; None where they do not go there.

    Raises UsageError where the device is not there.
    """
    if config.device is None or not config.overlapped:
        return None
    from .._base.devices import accelerator
    from .._base.devices.mover import Mover

    mover = resources.mover.get()
    if mover is None:
        target = accelerator.make(torch.device(config.device))
        assert target is not None, "only CUDA needs a mover"
        mover = resources.mover.put(Mover(target, config.prefetch_factor or AHEAD_ON_DEVICE))
    return mover


def slabs_held(config: LoaderConfig, resources: Resources) -> int:
    """Slabs that copies in flight hold, beside those that the stream before has in use."""
    mover = mover_of(config, resources) if config.overlapped else None
    return 0 if mover is None else mover.ahead + 2


class Inspection:
    """What ``resources`` hold, as they describe it. Every part is None until an epoch needs it.

    Any release may change these. ``shared`` are the slabs that worker processes collate into.
    """

    def __init__(self, resources: Resources) -> None:
        self._engine = None if resources.engine is None else resources.engine[1]
        self.cache = resources.cache
        self.governor = resources.governor
        self.decoder = resources.decoder
        self.shared = resources.ring
        self.warm = resources.warm
        self.mover = resources.mover.get()
        self.stage = None if resources.stage is None else resources.stage[2]
        self.stamps = resources.measurements.stamps

    @property
    def engine(self) -> BatchEngine:
        """What fills batches. Raises InternalError if no engine did."""
        if self._engine is None:
            raise InternalError("no engine has filled a batch of this loader")
        return self._engine
