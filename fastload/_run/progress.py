"""How far a loader's iteration has come: what ``state_dict`` saves and ``load_state_dict`` reads.

What is saved is small and made without copying: numbers that are counted anyway, and the states of
torch's generators from before the epoch drew from them. From those the order is drawn again, and
what was consumed is left out. Iterable datasets add the position of each worker, as it was when the
newest batch that was handed out was made: what is prefetched has not happened. So do map-style
datasets with a state of their own.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from ..errors import UsageError


class Position(NamedTuple):
    """Where the dataset of one worker stands.

    Attributes:
        batches: that it gave; of a map-style dataset they are not counted here.
        state: of the "dataset" and of its "iterator", where these have one.
        ended: it has no more.
        failed: batches that raised instead; they are not among ``batches``.
        since: batches that it gave since ``state`` was taken.
    """

    batches: int = 0
    state: dict[str, Any] | None = None
    ended: bool = False
    failed: int = 0
    since: int = 0

    def news(self) -> Position:
        """The same without a state that was in the position before."""
        return self._replace(state=None) if self.since else self

    def after(self, last: Position) -> Position:
        """The whole of what is ``news`` after ``last``."""
        return self._replace(state=last.state) if self.since else self


@dataclasses.dataclass(frozen=True)
class Positions:
    """Where the datasets of an iteration resume.

    Attributes:
        epoch: that it is of.
        workers: one a worker process, or one for this process; none where they are at its
            beginning.
        before: where they stood at the end of the epoch before, if they outlived it.
    """

    epoch: int
    workers: tuple[Position, ...]
    before: tuple[Position, ...]

    def of(self, worker: int) -> tuple[Position, Position]:
        """Where one of them resumes, and where it stood at the end of the epoch before."""
        now, before = (
            known[worker] if known else Position() for known in (self.workers, self.before)
        )
        return now, before


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
        workers: of a dataset that is iterable or has a state of its own, one a worker.
        before: the same at the end of the epoch before, where the datasets outlived it.
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
    before: list[Position] = dataclasses.field(default_factory=list)
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
        """What resumes this iteration; beside the user's states, of what JSON has."""
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
                "generators": [_written(state) for state in self.generators],
                "sampler": self.sampler,
                "sampler_epoch": self.sampler_epoch,
                "base_seed": self.base_seed,
                "workers": [],
                "before": [],
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
            state["workers"] = [tuple(worker) for worker in self.workers]
        # What was before matters to a dataset that has given no state since.
        if self.before and not (self.workers and all(worker.state for worker in self.workers)):
            state["before"] = [tuple(worker) for worker in self.before]
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
        generators=[_generator(saved) for saved in state["generators"]],
        sampler=state["sampler"],
        sampler_epoch=state.get("sampler_epoch"),
        base_seed=state["base_seed"],
        workers=[_position(*worker) for worker in state["workers"]],
        before=[_position(*worker) for worker in state.get("before", ())],
        turn=int(state["turn"]),
        begun=bool(state["begun"]),
    )


def _written(generator: torch.Tensor) -> str:
    return base64.b64encode(generator.numpy().tobytes()).decode()


def _generator(saved: str | torch.Tensor) -> torch.Tensor:
    """The state of a generator; version 1 had it as a tensor for a while."""
    if isinstance(saved, torch.Tensor):
        return saved
    return torch.frombuffer(bytearray(base64.b64decode(saved)), dtype=torch.uint8)


def _position(batches: int, state: Any, ended: bool, failed: int = 0, since: int = 0) -> Position:
    """What was saved; version 1 did without the last two, and with one state, for a while."""
    if state is not None and not isinstance(state, dict):
        state = dict([state])
    return Position(int(batches), state, bool(ended), int(failed), int(since))


def positions(progress: Progress | None, workers: int) -> Positions | None:
    """Where datasets resume in ``workers`` processes (0: in this one).

    Raises UsageError where they cannot: each worker has its part of the data, or its own state.
    """
    if progress is None or not (progress.workers or progress.before):
        return None
    for known in (progress.workers, progress.before):
        if known and len(known) != max(workers, 1):
            raise UsageError(
                f"the state is of a dataset with {len(known)} workers, each with its own part of "
                f"the data or its own state; resume it with as many, not with num_workers={workers}"
            )
    return Positions(progress.epoch, tuple(progress.workers), tuple(progress.before))
