"""How far a loader's iteration has come: what ``state_dict`` saves and ``load_state_dict`` reads.

What is saved is small and made without copying: numbers that are counted anyway, and the states of
torch's generators from before the epoch drew from them. From those the order is drawn again, and
what was consumed is left out. Iterable datasets add the position of each worker, as it was when the
newest batch that was handed out was made: what is prefetched has not happened.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from .errors import UsageError


class Position(NamedTuple):
    """Where the iterable dataset of one worker stands.

    Attributes:
        batches: that it gave.
        state: of the dataset or its iterator, where they have one.
        ended: it has no more.
        failed: batches that raised instead; they are not among ``batches``.
    """

    batches: int = 0
    state: tuple[str, Any] | None = None
    ended: bool = False
    failed: int = 0

    def apart(self) -> Position:
        """The same, whose state does not change with the iterator that it is of."""
        return self if self.state is None else copy.deepcopy(self)


@dataclasses.dataclass(frozen=True)
class Positions:
    """Where an iteration over an iterable dataset is to go on.

    Attributes:
        epoch: that it is of.
        workers: one a worker process, or one for this process.
        turn: the worker whose batch comes next.
    """

    epoch: int
    workers: tuple[Position, ...]
    turn: int


_VERSION = 1


@dataclasses.dataclass
class Progress:
    """One iteration, as far as the consumer has come.

    Attributes:
        epoch: that it is of.
        batches: index batches consumed since the epoch began, by whichever run; of an iterable
            dataset, batches.
        first: samples of the epoch's order, of all ranks, consumed before this iteration began.
        since: index batches consumed since then.
        refilled: samples taken from the order's end, to fill up batches with.
        length: samples that the order has for this rank from there on; None where the order is not
            a function of seed and epoch.
        total: samples of the whole order, of all ranks.
        batch_size, world_size, seed: of this iteration.
        generators: states of torch's generators before the epoch drew from them.
        sampler: state of the user's sampler then, where it has one.
        sampler_epoch: that the user's sampler had been told, such as a DistributedSampler.
        base_seed: what persistent workers had been seeded with before, or None.
        workers: of an iterable dataset, one a worker.
        turn: whose batch comes next.
        begun: the order has been drawn.
        ended: the epoch has.
        unordered: its batches do not come in the order of their samples, so there is no state.
    """

    epoch: int
    batches: int = 0
    first: int = 0
    since: int = 0
    refilled: int = 0
    length: int | None = None
    total: int | None = None
    batch_size: int | None = None
    world_size: int = 1
    seed: int | None = None
    generators: list[torch.Tensor] = dataclasses.field(default_factory=list)
    sampler: Any = None
    sampler_epoch: int | None = None
    base_seed: int | None = None
    workers: list[Position] = dataclasses.field(default_factory=list)
    turn: int = 0
    begun: bool = True
    ended: bool = False
    unordered: bool = False
    _fixed: dict[str, Any] | None = None  # the part of the state that an epoch does not change

    def begin(self) -> None:
        """The order is drawn."""
        self.begun, self._fixed = True, None

    def batch(self) -> None:
        """One more index batch was consumed."""
        self.batches += 1
        self.since += 1

    def samples(self) -> int | None:
        """Samples of the epoch's order that all ranks have consumed; None where it is not ours."""
        if self.length is None:
            return None
        mine = min(self.since * (self.batch_size or 1), self.length)
        return self.first + mine * self.world_size

    def state(self) -> dict[str, Any]:
        """What resumes this iteration; of numbers, strings, lists, dicts and tensors."""
        # Called between batches, which leave the caches cold: so it touches as little as can be.
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
                "seed": self.seed,
                "generators": self.generators,
                "sampler": self.sampler,
                "sampler_epoch": self.sampler_epoch,
                "base_seed": self.base_seed,
                "workers": [],
                "turn": 0,
                "begun": self.begun,
                "decode": None,
            }
        state = self._fixed.copy()
        state["batches"] = self.batches
        if self.length is not None:
            state["samples"] = self.samples()
        if self.refilled:
            state["refilled"] = self.refilled
        if self.workers:
            state["turn"] = self.turn
        state["workers"] = [tuple(worker) for worker in self.workers] if self.workers else []
        return state


def read(state: Mapping[str, Any]) -> Progress:
    """The progress that ``state`` was made of. Raises UsageError where it is none of ours."""
    version = state.get("version") if isinstance(state, Mapping) else None
    if version != _VERSION:
        found = f"version {version!r}" if version is not None else f"a {type(state).__name__}"
        if version is None and isinstance(state, Mapping):
            found += f" with the keys {list(state)}"
        raise UsageError(
            f"expected what FastLoader.state_dict() of version {_VERSION} returned, got {found}"
        )
    samples = state["samples"]
    return Progress(
        epoch=int(state["epoch"]),
        batches=int(state["batches"]),
        first=int(samples or 0),
        refilled=int(state.get("refilled", 0)),  # version 1 did without for a while
        length=None if samples is None else 0,
        total=state["total"],
        batch_size=state["batch_size"],
        world_size=int(state["world_size"]),
        seed=state["seed"],
        generators=list(state["generators"]),
        sampler=state["sampler"],
        sampler_epoch=state.get("sampler_epoch"),
        base_seed=state["base_seed"],
        workers=[_position(*worker) for worker in state["workers"]],
        turn=int(state["turn"]),
        begun=bool(state["begun"]),
    )


def _position(batches: int, state: Any, ended: bool, failed: int = 0) -> Position:
    """What was saved; version 1 did without ``failed`` for a while."""
    return Position(int(batches), state and tuple(state), bool(ended), int(failed))


def positions(progress: Progress | None, workers: int) -> Positions | None:
    """Where an iterable dataset goes on in ``workers`` processes (0: in this one).

    Raises UsageError where it cannot: each worker has its part of the data.
    """
    if progress is None or not progress.workers:
        return None
    if len(progress.workers) != max(workers, 1):
        raise UsageError(
            f"the state is of an IterableDataset with {len(progress.workers)} workers, each with "
            f"its own part of the data; resume it with as many, not with num_workers={workers}"
        )
    return Positions(progress.epoch, tuple(progress.workers), progress.turn)
