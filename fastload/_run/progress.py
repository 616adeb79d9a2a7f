"""Progress: how far an iteration has come. ``state_dict`` saves it, ``load_state_dict`` reads it.

The state is small: numbers that are counted anyway, and the states of torch's generators from
before the epoch drew from them. Resuming draws the order again from those and skips the samples
that were consumed. For datasets that are iterable or have a state of their own, the position of
each worker is saved too, as of the newest batch that was handed out: prefetched batches are not
counted.
"""

from __future__ import annotations

import base64
import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, SupportsIndex

import torch

from .._sources.augmentation_checks import epoch_number
from ..errors import UsageError
from .outcome import Outcome


class Position(NamedTuple):
    """How far one worker has read its dataset.

    Attributes:
        batches: batches made so far; not counted for a map-style dataset.
        state: states of the "dataset" and its "iterator", as far as these have one.
        ended: there are no more batches.
        failed: batches that raised; not included in ``batches``.
        since_state: batches made since ``state`` was taken.
    """

    batches: int = 0
    state: dict[str, Any] | None = None
    ended: bool = False
    failed: int = 0
    since_state: int = 0

    def delta(self) -> Position:
        """This position without a state that an earlier position already had."""
        return self._replace(state=None) if self.since_state else self

    def applied_to(self, last: Position) -> Position:
        """The full position that this delta describes, given the one before it."""
        if not self.since_state or self.state is last.state:
            return self
        return self._replace(state=last.state)


@dataclasses.dataclass(frozen=True)
class Positions:
    """Where the datasets of an iteration resume.

    Attributes:
        epoch: the epoch of these positions.
        workers: one for each worker process, or one for this process; empty at the epoch's start.
        before: positions at the end of the previous epoch, if the datasets outlived it.
    """

    epoch: int
    workers: tuple[Position, ...]
    before: tuple[Position, ...]

    def of(self, worker: int) -> tuple[Position, Position]:
        """Where ``worker`` resumes, and where it was at the end of the previous epoch."""
        now, before = (
            known[worker] if known else Position() for known in (self.workers, self.before)
        )
        return now, before


_VERSION = 1


@dataclasses.dataclass
class Progress:
    """How far the consumer has come in one iteration.

    Attributes:
        epoch: its epoch.
        batches: index batches consumed since the epoch began, including those of the runs that this
            one resumes; for an iterable dataset, batches.
        first: samples of the epoch's order, over all ranks, consumed before this iteration began.
        since_start: index batches consumed by this iteration.
        refilled: samples taken from the end of the order to refill batches.
        length: samples of this rank from ``first`` on; None if the order is not a function of seed
            and epoch.
        total: samples of the whole order, over all ranks.
        batch_size, world_size, seed: of this iteration.
        order: how the order is made, in words; None: by the user's sampler.
        generators: states of torch's generators before the epoch drew from them.
        sampler: state of the user's sampler at that time, if it has one.
        sampler_epoch: epoch of the user's sampler, such as a DistributedSampler.
        base_seed: what persistent workers were seeded with, or None.
        workers: positions of a dataset that is iterable or stateful, one for each worker.
        before: the same at the end of the previous epoch, if the datasets outlived it.
        next_worker: the worker whose batch comes next.
        order_drawn: the order has been drawn from the generators.
        ended: the epoch is over.
        unordered: batches do not come in the order of their samples, so there is no state.
        grouping: what the batches of ``batch_by`` are made by; None without it. With it, ``first``,
            ``length`` and ``total`` count batches.
    """

    epoch: int
    batches: int = 0
    first: int = 0
    since_start: int = 0
    refilled: int = 0
    length: int | None = None
    total: int | None = None
    batch_size: int | None = None
    world_size: int = 1
    seed: int | None = None
    order: str | None = None
    generators: list[torch.Tensor] = dataclasses.field(default_factory=list)
    sampler: Any = None
    sampler_epoch: int | None = None
    base_seed: int | None = None
    workers: list[Position] = dataclasses.field(default_factory=list)
    before: list[Position] = dataclasses.field(default_factory=list)
    next_worker: int = 0
    order_drawn: bool = True
    ended: bool = False
    unordered: bool = False
    grouping: dict[str, Any] | None = None
    _fixed: dict[str, Any] | None = None  # the entries of the state that stay the same all epoch

    def mark_drawn(self) -> None:
        """Note that the order has been drawn."""
        self.order_drawn, self._fixed = True, None

    def count(self, outcome: Outcome) -> None:
        """Count an outcome that the consumer gets."""
        self.batches += outcome.taken
        self.since_start += outcome.taken
        if outcome.refilled:
            self.refilled = outcome.refilled
        workers, worker = self.workers, outcome.worker
        if workers:
            self.next_worker = (worker + 1) % len(workers)
            if outcome.position is not None:
                workers[worker] = outcome.position.applied_to(workers[worker])

    def samples(self) -> int | None:
        """Samples of the order that all ranks have consumed; None for a user's order.

        With ``batch_by``, batches.
        """
        if self.length is None:
            return None
        mine = min(self.since_start * (self.batch_size or 1), self.length)
        return self.first + mine * self.world_size

    def state(self) -> dict[str, Any]:
        """The checkpoint. Everything but the states of user objects can be written as JSON."""
        # Called between batches, when CPU caches are cold, so it touches as little as possible.
        if self._fixed is None:
            self._fixed = {
                "version": _VERSION,
                "epoch": self.epoch,
                "batches": 0,
                "samples": None,
                "refilled": 0,
                "total": self.total,
                "batch_size": self.batch_size,
                "world_size": self.world_size,
                "seed": None if self.seed is None else int(self.seed),  # of numpy: no JSON
                "order": self.order,
                "generators": [_encoded(state) for state in self.generators],
                "sampler": self.sampler,
                "sampler_epoch": self.sampler_epoch,
                "base_seed": self.base_seed,
                "workers": [],
                "before": [],
                "turn": 0,
                "begun": self.order_drawn,
                "decode": None,
            }
            if self.grouping is not None:
                self._fixed["grouping"] = self.grouping
        state = self._fixed.copy()
        state["batches"] = self.batches
        if self.length is not None:
            state["samples"] = self.samples()
        if self.refilled:
            state["refilled"] = self.refilled
        if self.workers:
            state["turn"] = self.next_worker
            state["workers"] = [tuple(worker) for worker in self.workers]
        # Positions of the previous epoch matter only to workers without a state in this one.
        if self.before and not (self.workers and all(worker.state for worker in self.workers)):
            state["before"] = [tuple(worker) for worker in self.before]
        return state


def read(state: Mapping[str, Any]) -> Progress:
    """The progress saved in ``state``. Raises UsageError if it is not a FastLoader's state."""
    version = state.get("version") if isinstance(state, Mapping) else None
    if type(version) is not int or version != _VERSION:
        found = f"version {version!r}" if version is not None else f"a {type(state).__name__}"
        if version is None and isinstance(state, Mapping):
            found += f" with the keys {list(state)}"
        raise UsageError(
            f"load_state_dict: expected what FastLoader.state_dict() of version {_VERSION} "
            f"returned, got {found}"
        )
    try:
        return _read(state)
    except (KeyError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise UsageError(
            f"load_state_dict: the state is damaged ({type(error).__name__}: {error}): use another "
            "checkpoint"
        ) from error


def _read(state: Mapping[str, Any]) -> Progress:
    samples = state["samples"]
    return Progress(
        epoch=epoch_number(state["epoch"]),
        batches=_count(state["batches"]),
        first=_count(samples or 0),
        refilled=_count(state["refilled"]),
        length=None if samples is None else 0,
        total=None if state["total"] is None else _count(state["total"]),
        batch_size=None if state["batch_size"] is None else _count(state["batch_size"]),
        world_size=_count(state["world_size"]),
        seed=None if state["seed"] is None else operator.index(state["seed"]),
        order=state["order"],
        generators=[_generator(saved) for saved in state["generators"]],
        sampler=state["sampler"],
        sampler_epoch=state["sampler_epoch"],
        base_seed=None if state["base_seed"] is None else _seed(state["base_seed"]),
        workers=[_position(worker) for worker in state["workers"]],
        before=[_position(worker) for worker in state["before"]],
        next_worker=_count(state["turn"]),
        order_drawn=bool(state["begun"]),
        grouping=_grouping(state.get("grouping")),
    )


def _seed(saved: SupportsIndex) -> int:
    return torch.Generator().manual_seed(operator.index(saved)).initial_seed()


def _position(saved: Sequence[Any]) -> Position:
    batches, state, ended, failed, since_state = saved
    if not (state is None or isinstance(state, dict)) or not isinstance(ended, bool):
        raise ValueError("the position of a worker is none")
    return Position(_count(batches), state, ended, _count(failed), _count(since_state))


def _grouping(saved: Any) -> dict[str, Any] | None:
    known = (int, str, bool, type(None))  # what ``==`` compares to a bool
    if saved is not None and not all(isinstance(value, known) for value in dict(saved).values()):
        raise ValueError("the groups are none")
    return None if saved is None else dict(saved)


def _count(saved: SupportsIndex) -> int:
    number = operator.index(saved)
    if not 0 <= number < 1 << 62:
        raise ValueError(f"a count of {number}")
    return number


def mix_of(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a Mix saved in ``state``. Raises UsageError if it was saved without one."""
    if not isinstance(state.get("mix"), Mapping):
        raise UsageError(
            "load_state_dict: expected the state of a loader over a Mix, got one without: resume "
            "with the same dataset"
        )
    saved: Mapping[str, Any] = state["mix"]
    return saved


def _encoded(generator: torch.Tensor) -> str:
    return base64.b64encode(generator.numpy().tobytes()).decode()


def _generator(saved: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(saved, validate=True)), dtype=torch.uint8)


def positions(progress: Progress | None, workers: int) -> Positions | None:
    """Where the datasets in ``workers`` processes (0: in this one) resume; None: at the start.

    Raises UsageError if the state is of another number of workers.
    """
    if progress is None or not (progress.workers or progress.before):
        return None
    for known in (progress.workers, progress.before):
        if known and len(known) != max(workers, 1):
            raise UsageError(
                f"load_state_dict: the state is of {len(known)} workers, each with its own part of "
                f"the data or its own state, got num_workers={workers}: resume with as many workers"
            )
    return Positions(progress.epoch, tuple(progress.workers), tuple(progress.before))
