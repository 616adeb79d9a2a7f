"""EpochCursor: which epoch a loader is at, which one comes next, and who says so.

The epoch is told in several ways: by ``set_epoch`` of the loader, or of its sampler, which is all
that some trainers know; by a state that is loaded; by accelerate. Whoever told it last decides, up
to the first batch. Where nobody tells it, every iteration is the next epoch.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Protocol, cast

import torch

from .._sources.packed import PackedDataset
from .._sources.source import nested
from .config import LoaderConfig
from .order import SEQUENTIAL, EpochSampler, SeededSampler
from .progress import Position, Progress
from .shard import Shard


class Stateful(Protocol):
    """Has a state of its own: a sampler of torchdata, for example."""

    def state_dict(self) -> Any:
        """The state."""

    def load_state_dict(self, state: Any) -> None:
        """Resume from ``state``."""


class EpochCursor:
    """Where one loader stands among its epochs.

    Attributes:
        next_epoch: the epoch of the next iteration, unless a sampler was told another one.
        told: whether ``set_epoch`` chose it since an epoch last began.
        sampler_epoch: the epoch that the user's sampler had been told when an epoch last began.
        base_seed: that worker processes which persist were seeded with, and augmentation.
        progress: of the newest iteration, or None.
        resume: a state that was loaded for the next iteration, or None.
    """

    def __init__(self) -> None:
        self.next_epoch = 0
        self.told = False
        self.sampler_epoch: int | None = 0
        self.base_seed: int | None = None
        self.progress: Progress | None = None
        self.resume: Progress | None = None

    def set_epoch(self, config: LoaderConfig, epoch: int) -> None:
        """Choose the epoch of the next iteration, and tell samplers and datasets that keep one."""
        self.next_epoch, self.told = epoch, True
        for part in (config.batch_sampler, config.epoch_sampler, *nested(config.dataset)):
            tell = getattr(part, "set_epoch", None)
            if tell is not None:
                tell(epoch)

    def begin(self, config: LoaderConfig) -> int:
        """Begin an epoch; return its number."""
        sampler, epoch = config.epoch_sampler, self.coming(config)
        if isinstance(sampler, EpochSampler):
            sampler.begin(epoch)
        else:
            now = epoch_told(config)
            if now is not None:
                self.sampler_epoch = now
        if config.seed is not None and isinstance(config.dataset, PackedDataset):
            config.dataset.set_epoch(epoch)
        self.next_epoch, self.told = epoch + 1, False
        return epoch

    def coming(self, config: LoaderConfig) -> int:
        """The epoch that ``begin`` would begin."""
        if config.prepared:
            return self.next_epoch
        if isinstance(config.epoch_sampler, EpochSampler):
            return config.epoch_sampler.coming(self.next_epoch)
        now = epoch_told(config)
        return self.next_epoch if now is None or now == self.sampler_epoch else now

    def another(self, config: LoaderConfig, begun: Progress) -> bool:
        """Whether another epoch than ``begun`` was chosen since it began.

        A state that was loaded since is another one, even of the same epoch. Of two iterations
        the one that began last is told.
        """
        if self.progress is not begun:
            return False
        if self.resume is not None:
            return True
        epoch = self.next_epoch if self.told else begun.epoch
        if config.prepared:
            return epoch != begun.epoch
        if isinstance(config.epoch_sampler, EpochSampler):
            return config.epoch_sampler.coming(epoch) != begun.epoch
        return epoch != begun.epoch or epoch_told(config) != begun.sampler_epoch

    def settle(self, config: LoaderConfig, begun: Progress) -> None:
        """``begun`` has its first batch: that its own epoch was told says nothing of the next."""
        if self.progress is begun:
            self.next_epoch, self.told = begun.epoch + 1, False
            if isinstance(config.epoch_sampler, EpochSampler):
                config.epoch_sampler.forget()

    def load(self, config: LoaderConfig, resume: Progress) -> None:
        """Let the next iteration resume ``resume``."""
        self.resume = resume
        self.next_epoch, self.told = resume.epoch, False
        self.base_seed = resume.base_seed
        if isinstance(config.epoch_sampler, EpochSampler):
            config.epoch_sampler.forget()  # what it was told before
        # A trainer may ask for the order of this epoch before it says which one it is.
        sampler = _with_epoch(config)
        if sampler is not None and resume.sampler_epoch is not None:
            sampler.set_epoch(resume.sampler_epoch)
            self.sampler_epoch = resume.sampler_epoch

    def under_way(self) -> Progress | None:
        """How far the newest iteration has come; None before its first batch and after its end."""
        progress = self.progress
        if self.resume is not None or progress is None or progress.ended:
            return None
        return progress if progress.since or progress.unordered else None

    def standing(self, config: LoaderConfig) -> Progress:
        """What ``state_dict`` saves: how far the newest iteration has come."""
        if self.resume is not None:
            return self.resume
        progress = self.progress
        passed_over = self.under_way() is None and progress and self.another(config, progress)
        if progress is None or progress.ended or passed_over:
            blank = self.blank(config, self.coming(config), config.part())
            return dataclasses.replace(blank, begun=False)
        return progress

    def blank(self, config: LoaderConfig, epoch: int, shard: Shard | None) -> Progress:
        """The progress of an epoch of which nothing was consumed."""
        sampler = config.sampler
        # With a batch_sampler of the user's there is no batch_size, and nobody asks the sampler.
        ours = type(sampler) in (SeededSampler, *SEQUENTIAL) and (
            config.batch_sampler is None or config.batch_size is not None
        )
        total = len(sampler) if ours else None  # type: ignore[arg-type]
        stateful = stateful_sampler(config)
        return Progress(
            epoch=epoch,
            length=total,
            total=total,
            batch_size=config.batch_size,
            world_size=shard.world_size if shard else replicas(config),
            seed=config.seed,
            generators=[generator.get_state() for generator in generators(config)],
            sampler=None if stateful is None else copy.deepcopy(stateful.state_dict()),
            sampler_epoch=epoch_told(config),
            base_seed=self.base_seed if config.persistent else None,
            before=self._outlived(config),
        )

    def _outlived(self, config: LoaderConfig) -> list[Position]:
        """Where the datasets stood when the last epoch ended, if the next one finds them there.

        Those of workers that do not persist end with their epoch.
        """
        last, count = self.progress, config.num_workers
        if last is None or (count and not config.persistent_workers):
            return []
        known = last.workers if last.ended else last.before
        stateful = len(known) == max(count, 1) and any(position.state for position in known)
        return list(known) if stateful else []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "progress": None, "base_seed": None}


def generators(config: LoaderConfig) -> tuple[torch.Generator, ...]:
    """torch's generators that the order may be drawn from: the loader's and the sampler's."""
    of_loader = config.generator or torch.default_generator
    sampler = getattr(config.epoch_sampler, "generator", None) or torch.default_generator
    return (of_loader,) if sampler is of_loader else (of_loader, sampler)


def stateful_sampler(config: LoaderConfig) -> Stateful | None:
    """The user's sampler, where it has a state; None for the others and for torch's."""
    if config.iterable:
        return None
    for part in (config.batch_sampler, config.sampler):
        if hasattr(part, "state_dict") and hasattr(part, "load_state_dict"):
            return cast(Stateful, part)
    return None


def replicas(config: LoaderConfig) -> int:
    """Ranks that the user's sampler divides the epoch among, itself or inside a batch sampler."""
    for part in (config.batch_sampler, config.epoch_sampler):
        if hasattr(part, "num_replicas"):
            return int(part.num_replicas)
    return 1


def epoch_told(config: LoaderConfig) -> int | None:
    """The epoch that the user's sampler was told; None where it keeps none."""
    epoch: int | None = getattr(_with_epoch(config), "epoch", None)
    return epoch


def _with_epoch(config: LoaderConfig) -> Any:
    """The user's sampler that keeps an epoch; None for ours, which is told each time."""
    for part in (config.batch_sampler, config.epoch_sampler):
        known = isinstance(getattr(part, "epoch", None), int) and hasattr(part, "set_epoch")
        if known and not isinstance(part, EpochSampler):
            return part
    return None
