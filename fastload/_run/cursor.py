"""EpochCursor: which epoch a loader is at, which one comes next, and who chose it.

The epoch can be chosen by ``set_epoch`` of the loader, by ``set_epoch`` of its sampler (some
trainers know only that), by a state that is loaded, or by accelerate. Until the first batch, the
last call decides. Without any, every iteration is the next epoch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol, TypeGuard

import torch

from .._sources.kinds import is_mix_dataset, is_packed, nested
from .config import LoaderConfig
from .order import order_of, set_epoch_of
from .progress import Facts, Position, Positions, Progress, Stateful, is_stateful, state_of
from .shard import Shard


class SamplerWithEpoch(Protocol):
    """A sampler of the user's that keeps the epoch, such as torch's DistributedSampler."""

    epoch: int

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""


class EpochCursor:
    """Where one loader is among its epochs.

    Attributes:
        next_epoch: the epoch of the next iteration, unless a sampler was told another one.
        chosen: ``set_epoch`` was called since an epoch last began.
        sampler_epoch: the epoch of the user's sampler when an epoch last began or was chosen.
        base_seed: what persistent workers, and the engine's augmentation, were seeded with.
        progress: of the newest iteration, or None.
        resume: a state that was loaded for the next iteration, or None.
    """

    def __init__(self) -> None:
        self.next_epoch = 0
        self.chosen = False
        self.sampler_epoch: int | None = 0
        self.base_seed: int | None = None
        self.progress: Progress | None = None
        self.resume: Progress | None = None

    def set_epoch(self, config: LoaderConfig, epoch: int) -> None:
        """Choose the epoch of the next iteration, and tell samplers and datasets that keep one."""
        self.next_epoch, self.chosen = epoch, True
        parts = (config.batch_sampler, config.epoch_sampler, *nested(config.dataset))
        set_epoch_of(parts, epoch)
        self._note_sampler_epoch(config)  # the sampler may be told another one after this

    def _note_sampler_epoch(self, config: LoaderConfig) -> None:
        current = _epoch_of_sampler(config)
        self.sampler_epoch = self.sampler_epoch if current is None else current

    def begin(self, config: LoaderConfig) -> int:
        """Begin an epoch; return its number."""
        order, epoch = config.epochs, self.upcoming(config)
        if order.keeps_epoch:
            order.begin(epoch)
        elif not config.own_order:
            self._note_sampler_epoch(config)
        if config.seed is not None:
            parts = config.dataset.datasets if is_mix_dataset(config.dataset) else ()
            for part in (config.dataset, *parts):
                if is_packed(part):
                    part.set_epoch(epoch)
        self.next_epoch, self.chosen = epoch + 1, False
        return epoch

    def upcoming(self, config: LoaderConfig) -> int:
        """The epoch that ``begin`` would begin."""
        if config.prepared:
            return self.next_epoch
        order = config.epochs
        if order.keeps_epoch:
            return order.upcoming(self.next_epoch)
        current = None if config.own_order else _epoch_of_sampler(config)
        return self.next_epoch if current is None or current == self.sampler_epoch else current

    def changed_since(self, config: LoaderConfig, begun: Progress) -> bool:
        """Whether an epoch other than ``begun`` was chosen after it began.

        Loading a state counts as a change, even a state of the same epoch. If two iterations are
        open, a choice concerns the one that began last.
        """
        if self.progress is not begun:
            return False
        if self.resume is not None:
            return True
        epoch, order = self.next_epoch if self.chosen else begun.epoch, config.epochs
        if config.prepared:
            return epoch != begun.epoch
        if order.keeps_epoch:
            return order.upcoming(epoch) != begun.epoch
        if epoch != begun.epoch or config.own_order:
            return epoch != begun.epoch
        return _epoch_of_sampler(config) != begun.sampler_epoch

    def confirm(self, config: LoaderConfig, begun: Progress) -> None:
        """``begun`` gives its first batch: a choice of its own epoch does not apply to the next."""
        if self.progress is begun:
            self.next_epoch, self.chosen = begun.epoch + 1, False
            config.epochs.clear_choice()

    def load(self, config: LoaderConfig, resume: Progress) -> None:
        """Let the next iteration resume ``resume``."""
        self.resume = resume
        self.next_epoch, self.chosen = resume.epoch, False
        self.base_seed = resume.base_seed
        config.epochs.resume(resume.epoch)
        # A trainer may iterate over the sampler before it sets the epoch.
        sampler = _sampler_with_epoch(config)
        if sampler is not None and resume.sampler_epoch is not None:
            sampler.set_epoch(resume.sampler_epoch)
        self._note_sampler_epoch(config)  # what it was told before this counts less

    def skip(self, config: LoaderConfig, epoch: int, batches: int) -> None:
        """Let ``epoch``, which begins, start after so many batches; a state says more."""
        if self.resume is None:
            start = self.at_start(config, epoch, config.part())
            start.order_drawn = False
            samples = dataclasses.replace(start, since_start=batches).samples()
            start.batches, start.first = batches, min(samples or 0, start.facts.total or 0)
            self.resume = start

    def running(self) -> Progress | None:
        """Progress of the newest iteration; None before its first batch and after its end."""
        progress = self.progress
        if self.resume is not None or progress is None or progress.ended:
            return None
        return progress if progress.since_start or progress.unordered else None

    def snapshot(self, config: LoaderConfig) -> Progress:
        """The progress that ``state_dict`` saves."""
        if self.resume is not None and self.resume.epoch == self.upcoming(config):
            return self.resume
        progress = self.progress
        replaced = self.running() is None and progress and self.changed_since(config, progress)
        if progress is None or progress.ended or replaced:
            start = self.at_start(config, self.upcoming(config), config.part())
            return dataclasses.replace(start, order_drawn=False)
        return progress

    def at_start(
        self,
        config: LoaderConfig,
        epoch: int,
        shard: Shard | None,
        states: Sequence[torch.Tensor] = (),
    ) -> Progress:
        """The progress of an epoch of which nothing was consumed.

        ``states``: of the generators before it; empty: as they are now.
        """
        order = config.order
        facts = Facts(
            seed=config.seed,
            batch_size=config.batch_size,
            world_size=shard.world_size if shard else replicas(config),
        )
        if order.known:
            total, how, groups = order.length(epoch), order.describe(), order.grouping()
            facts = facts._replace(total=total, order=how, grouping=groups)
        stateful = stateful_sampler(config)
        return Progress(
            epoch=epoch,
            facts=facts,
            length=facts.total,
            generators=list(states or [generator.get_state() for generator in generators(config)]),
            sampler=None if stateful is None else state_of(stateful),
            sampler_epoch=None if config.own_order else _epoch_of_sampler(config),
            base_seed=self.base_seed if config.persistent else None,
            positions=Positions(before=self._surviving_positions(config)),
        )

    def _surviving_positions(self, config: LoaderConfig) -> list[Position]:
        """Where the datasets were when the last epoch ended, if the next epoch uses the same ones.

        Workers that do not persist take theirs with them at the end of the epoch.
        """
        last, count = self.progress, config.num_workers
        if last is None or (count and not config.persistent_workers):
            return []
        positions = last.positions.workers if last.ended else last.positions.before
        stateful = len(positions) == max(count, 1) and any(position.state for position in positions)
        return list(positions) if stateful else []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "progress": None, "base_seed": None}


def generators(config: LoaderConfig) -> tuple[torch.Generator, ...]:
    """torch's generators that the order may be drawn from: the loader's and the sampler's."""
    of_loader = config.generator or torch.default_generator
    sampler = getattr(config.epoch_sampler, "generator", None) or torch.default_generator
    return (of_loader,) if sampler is of_loader else (of_loader, sampler)


def stateful_sampler(config: LoaderConfig) -> Stateful | None:
    """The user's sampler if it has a state; torch's samplers have none."""
    if config.iterable or config.own_order:
        return None
    for part in (config.batch_sampler, config.sampler):
        if is_stateful(part):
            return part
    return None


def replicas(config: LoaderConfig) -> int:
    """The number of ranks that the user's sampler divides the epoch among."""
    if config.own_order:
        return 1
    for part in (config.batch_sampler, config.epoch_sampler):  # the latter may lie in the former
        if hasattr(part, "num_replicas"):
            return int(part.num_replicas)  # type: ignore[union-attr]
    return 1


def _epoch_of_sampler(config: LoaderConfig) -> int | None:
    sampler = _sampler_with_epoch(config)
    return None if sampler is None else sampler.epoch


def _sampler_with_epoch(config: LoaderConfig) -> SamplerWithEpoch | None:
    """The user's sampler that keeps an epoch. Not ours, which is told the epoch each time."""
    if config.own_order:
        return None
    for part in (config.batch_sampler, config.epoch_sampler):
        if _keeps_epoch(part) and not order_of(part).keeps_epoch:
            return part
    return None


def _keeps_epoch(sampler: object) -> TypeGuard[SamplerWithEpoch]:
    return isinstance(getattr(sampler, "epoch", None), int) and hasattr(sampler, "set_epoch")
