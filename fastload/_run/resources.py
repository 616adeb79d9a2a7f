"""What a loader keeps from one epoch to the next: engines, memory, workers, measurements."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from .._base.machine import cpu
from .._engine.cache.cache import Cache
from .._engine.decoder import Decoder
from ..storage.base import Store
from .config import LoaderConfig
from .measured import Measured

if TYPE_CHECKING:  # what not every loader needs
    from .._base.devices.mover import Mover
    from .._base.shared_slabs import SharedRing
    from .._base.slabs import SlabRing
    from .decode_device import Choice
    from .governor import Governor


class EngineKey(NamedTuple):
    """What an engine was made for: it serves the epochs that want the same.

    Attributes:
        process: that made it; after a fork its threads are the parent's.
        parts: the stores that it reads.
        engine, device: which engine, and where it decodes.
    """

    process: int
    parts: tuple[Store, ...]
    engine: str
    device: torch.device


@dataclasses.dataclass
class Resources:
    """What one loader keeps; of it only what is plain data is pickled.

    Attributes:
        cache: of records or images, or None.
        governor: adjusts the workers where ``num_workers="auto"``, else None.
        choice: where ``decode_device="auto"`` found decoding faster, or None so far.
        waiting: measures how long the dataset's code waits.
        engine: what the engine was made for, and the engine.
        looked_at: the stores, the records that were looked at, and those that Pillow decodes.
        ring: slabs of shared memory for batches from worker processes.
        warm: slabs for large batches that are collated in this process.
        mover: moves batches to the device; with the process that it belongs to.
        turn: lock for the threads of ``prefetch_thread``; with the process that it belongs to.
        inner: what keeps the worker processes of a user's Dataset, where they persist.
        torchs: torch's own iterator whose worker processes persist.
        measured: of the epoch that runs, or of the last one.
        replayed: images/s of the loop on one batch again and again; 0 where it was not tried.
    """

    measured: Measured

    cache: Cache | None = None
    governor: Governor | None = None
    choice: Choice | None = None
    waiting: cpu.Waiting = dataclasses.field(default_factory=cpu.Waiting)
    engine: tuple[EngineKey, Decoder] | None = None
    looked_at: tuple[tuple[Store, ...], np.ndarray, np.ndarray] | None = None
    ring: SharedRing | None = None
    warm: SlabRing | None = None
    mover: tuple[int, Mover] | None = None
    turn: tuple[int, threading.Lock] | None = None
    inner: object | None = None
    torchs: Iterator[Any] | None = None
    replayed: float = 0.0

    def end_workers(self) -> None:
        """Let go of worker processes that persist; the next epoch starts others."""
        self.inner = self.torchs = None

    def mover_to(self, device: torch.device, ahead: int) -> Mover:
        """What moves batches to ``device`` in this process, up to ``ahead`` in advance.

        Raises UsageError where the device is not there.
        """
        from .._base.devices import accelerator
        from .._base.devices.mover import Mover

        if self.mover is None or self.mover[0] != os.getpid():
            target = accelerator.make(device)
            assert target is not None, "the CPU needs no mover"
            self.mover = os.getpid(), Mover(target, ahead)
        return self.mover[1]

    def lock(self) -> threading.Lock:
        """The lock of this process's threads; a forked child gets another one."""
        if self.turn is None or self.turn[0] != os.getpid():
            self.turn = os.getpid(), threading.Lock()
        return self.turn[1]

    def __getstate__(self) -> dict[str, Any]:
        # Threads, processes, shared memory, streams: another process makes its own.
        alive = ("engine", "looked_at", "ring", "warm", "mover", "turn", "inner", "torchs")
        return {**self.__dict__, **dict.fromkeys(alive)}


def mover_of(config: LoaderConfig, resources: Resources) -> Mover | None:
    """What moves a loader's batches to its device in this process; None where they stay."""
    if config.device is None or not config.accelerated:
        return None
    return resources.mover_to(torch.device(config.device), config.prefetch_device)


def slabs_held(config: LoaderConfig, resources: Resources) -> int:
    """Slabs that copies in flight hold, beside those that the stream before has in use."""
    mover = mover_of(config, resources)
    return 0 if mover is None else mover.ahead + 2
