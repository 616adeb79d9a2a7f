"""Progress: how far an iteration has come. ``state_dict`` saves it, ``load_state_dict`` reads it.

The state is small: numbers that are counted anyway, and the states of torch's generators from
before the epoch drew from them. Resuming draws the order again from those and skips the samples
that were consumed. For datasets that are iterable or have a state of their own, the position of
each worker is saved too, as of the newest batch that was handed out: prefetched batches are not
counted.
"""

from __future__ import annotations

import base64
import copy
import dataclasses
import inspect
import operator
import pickle
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, SupportsIndex, TypeGuard

import torch
from torch.utils.data import get_worker_info

from .._base.value_class import value_class
from .._sources.augmentation_checks import epoch_number
from ..errors import UsageError

if TYPE_CHECKING:
    from .maker import Outcome

_VERSION = 2


class Stateful(Protocol):
    """The interface that torchdata's samplers and datasets have."""

    def state_dict(self) -> Any:
        """The state; any object that can be pickled."""

    def load_state_dict(self, state: Any) -> None:
        """Resume from ``state``."""


class Unsaved(NamedTuple):
    """Is in the place of a state whose ``state_dict`` raised ``error``, a text.

    torch's loader never calls it, so it is no reason to end a loop: who saves a checkpoint is told.
    """

    error: str


def is_stateful(value: object) -> TypeGuard[Stateful]:
    """Whether ``value`` has both methods, and they can be called as in ``Stateful``.

    LitData's and MosaicML's datasets have methods of these names that their own loaders call, with
    arguments that no other loader knows. Those of a dataset that is a module are about its weights.
    """
    if getattr(type(value), "state_dict", None) is torch.nn.Module.state_dict:
        return False
    save, load = getattr(value, "state_dict", None), getattr(value, "load_state_dict", None)
    return callable(save) and callable(load) and _takes(save, 0) and _takes(load, 1)


def state_of(value: Stateful) -> Any:
    """A copy of its state, which may refer to objects that ``value`` changes; or ``Unsaved``."""
    try:
        state = value.state_dict()
        if get_worker_info() is None:
            return copy.deepcopy(state)
        # What cannot be sent would be waited for.
        return pickle.loads(pickle.dumps(state))  # noqa: S301 - made here
    except Exception as error:  # noqa: BLE001 - raised again where the state is asked for
        return Unsaved(f"{type(value).__name__}.state_dict: {type(error).__name__}: {error}")


def _check_saved(state: object) -> None:
    if isinstance(state, Unsaved):
        raise UsageError(f"state_dict: there is no state to save: {state.error}")


def _takes(method: Any, count: int) -> bool:
    try:
        inspect.signature(method).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # a built-in method that does not say what it takes
        return True
    return True


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


@value_class(frozen=False)
class Positions:
    """Where the datasets of an iteration are.

    Attributes:
        workers: one for each worker process, or one for this process; empty where they have none.
        before: positions at the end of the previous epoch, if the datasets outlived it.
        turn: the worker whose batch comes next.
    """

    workers: list[Position] = dataclasses.field(default_factory=list)
    before: list[Position] = dataclasses.field(default_factory=list)
    turn: int = 0

    def copied(self) -> Positions:
        """The same, which does not change any more."""
        return Positions(list(self.workers), list(self.before), self.turn)

    def of(self, worker: int) -> tuple[Position, Position]:
        """Where ``worker`` is, and where it was at the end of the previous epoch."""
        now, before = (
            positions[worker] if positions else Position()
            for positions in (self.workers, self.before)
        )
        return now, before

    def check(self, workers: int) -> None:
        """Raise UsageError unless they are of so many processes (0: of this one)."""
        for positions in (self.workers, self.before):
            if positions and len(positions) != max(workers, 1):
                # One position is that of this process or of one worker: they read the same.
                same = len(positions) if len(positions) > 1 else "0 or 1"
                raise UsageError(
                    f"load_state_dict: the state is of num_workers={same}, where each process has "
                    f"its own part of the data or its own state, got num_workers={workers}: resume "
                    f"with num_workers={same}"
                )

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps. Raises UsageError if a state could not be taken."""
        for worker in (*self.workers, *self.before):
            for part in (worker.state or {}).values():
                _check_saved(part)
        state: dict[str, Any] = {"turn": self.turn if self.workers else 0}
        state["now"] = [tuple(worker) for worker in self.workers]
        # Those of the previous epoch matter only to workers without a state in this one.
        needless = self.workers and all(worker.state for worker in self.workers)
        state["before"] = [] if needless else [tuple(worker) for worker in self.before]
        return state


class Facts(NamedTuple):
    """What makes the order of an epoch, which a state is resumed with.

    Attributes:
        total: positions of the whole order, over all ranks; None: nobody knows.
        order: ``Order.describe()``.
        grouping: what the batches of ``batch_by`` are made by; None without it.
        batch_size, world_size: how it is divided.
    """

    total: int | None = None
    seed: int | None = None
    order: str | None = None
    grouping: dict[str, Any] | None = None
    batch_size: int | None = None
    world_size: int = 1

    def check(self, now: Facts, *, divided: bool) -> None:
        """Raise UsageError if an iteration of ``now`` cannot resume one of these.

        ``divided``: whether only the sampler knows its order, so that batches are counted.
        """
        facts: dict[str, tuple[object, object]] = {
            "batch_by, batch_size or set of images": (self.grouping, now.grouping),
            "seed": (self.seed, now.seed),
            "number of samples": (self.total, now.total),
        }
        if self.order is not None:
            facts["order"] = self.order, now.order
        if divided:
            facts["batch_size"] = self.batch_size, now.batch_size
            facts["world_size"] = self.world_size, now.world_size
        for name, (then, here) in facts.items():
            if then != here:
                raise UsageError(
                    f"the state was saved with another {name}: expected {then}, got {here}; make "
                    "the loader with the same arguments, or restart the epoch with set_epoch"
                )


@value_class(frozen=False)
class Progress:
    """How far the consumer has come in one iteration.

    Attributes:
        epoch: its epoch.
        facts: what makes its order; with groups, its total, ``first`` and ``length`` are batches.
        batches: index batches consumed since the epoch began, including those of the runs that this
            one resumes; for an iterable dataset, batches.
        first: samples of the epoch's order, over all ranks, consumed before this iteration began.
        since_start: index batches consumed by this iteration.
        refilled: samples taken from the end of the order to refill batches.
        length: samples of this rank from ``first`` on; None if the order is not a function of seed
            and epoch.
        generators: states of torch's generators before the epoch drew from them.
        sampler: state of the user's sampler at that time, if it has one.
        sampler_epoch: epoch of the user's sampler, such as a DistributedSampler.
        base_seed: what persistent workers were seeded with, or None.
        positions: of a dataset that is iterable or stateful.
        order_drawn: the order has been drawn from the generators.
        ended: the epoch is over.
        unordered: batches do not come in the order of their samples, so there is no state.
    """

    epoch: int
    facts: Facts = dataclasses.field(default_factory=Facts)
    batches: int = 0
    first: int = 0
    since_start: int = 0
    refilled: int = 0
    length: int | None = None
    generators: list[torch.Tensor] = dataclasses.field(default_factory=list)
    sampler: Any = None
    sampler_epoch: int | None = None
    base_seed: int | None = None
    positions: Positions = dataclasses.field(default_factory=Positions)
    order_drawn: bool = True
    ended: bool = False
    unordered: bool = False
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
        workers, worker = self.positions.workers, outcome.worker
        if workers:
            self.positions.turn = (worker + 1) % len(workers)
            if outcome.position is not None:
                workers[worker] = outcome.position.applied_to(workers[worker])

    def samples(self) -> int | None:
        """Samples of the order that all ranks have consumed; None for a user's order.

        With ``batch_by``, batches.
        """
        if self.length is None:
            return None
        facts = self.facts
        mine = min(self.since_start * (facts.batch_size or 1), self.length)
        return self.first + mine * facts.world_size

    def state(self) -> dict[str, Any]:
        """The checkpoint. Everything but the states of user objects can be written as JSON."""
        # Called between batches, when CPU caches are cold, so it touches as little as possible.
        if self._fixed is None:
            _check_saved(self.sampler)
            order = copy.deepcopy(self.facts._asdict())
            if self.facts.seed is not None:
                order["seed"] = int(self.facts.seed)  # of numpy: no JSON
            self._fixed = {
                "version": _VERSION,
                "epoch": self.epoch,
                "order": order,
                "batches": 0,
                "samples": None,
                "refilled": 0,
                "generators": [_encoded(state) for state in self.generators],
                "begun": self.order_drawn,
                "sampler": {"state": self.sampler, "epoch": self.sampler_epoch},
                "base_seed": self.base_seed,
                "workers": Positions().state(),
            }
        state = self._fixed.copy()
        state["batches"] = self.batches
        if self.length is not None:
            state["samples"] = self.samples()
        if self.refilled:
            state["refilled"] = self.refilled
        if self.positions.workers or self.positions.before:
            state["workers"] = self.positions.state()
        return state


def without(error: UsageError) -> dict[str, Any]:
    """What a checkpoint keeps of a loader that has no state, as ``error`` says."""
    return {"version": _VERSION, "missing": str(error)}


def missing(state: Mapping[str, Any]) -> str:
    """Says of what ``without`` made that there is no state, and why; "": there is one."""
    why = state.get("missing") if _is_ours(state) else None
    if not isinstance(why, str):
        return ""
    return f"load_state_dict: the loader that was saved had no state ({why})"


def _is_ours(state: object) -> bool:
    version = state.get("version") if isinstance(state, Mapping) else None
    return type(version) is int and version == _VERSION


def read(state: Mapping[str, Any]) -> Progress:
    """The progress saved in ``state``. Raises UsageError if it is not a FastLoader's state."""
    if missing(state):
        raise UsageError(missing(state))
    if not _is_ours(state):
        version = state.get("version") if isinstance(state, Mapping) else None
        given = f"version {version!r}" if version is not None else f"a {type(state).__name__}"
        if version is None and isinstance(state, Mapping):
            given += f" with the keys {list(state)}"
        raise UsageError(
            f"load_state_dict: expected what FastLoader.state_dict() of version {_VERSION} "
            f"returned, got {given}"
        )
    try:
        return _read(state)
    except (LookupError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise UsageError(
            f"load_state_dict: the state is damaged ({type(error).__name__}: {error}): use another "
            "checkpoint"
        ) from error


def _read(state: Mapping[str, Any]) -> Progress:
    samples, order, sampler, workers = (
        state[name] for name in ("samples", "order", "sampler", "workers")
    )
    return Progress(
        epoch=epoch_number(state["epoch"]),
        facts=Facts(
            total=_count_or_none(order["total"]),
            seed=None if order["seed"] is None else operator.index(order["seed"]),
            order=order["order"],
            grouping=_grouping(order["grouping"]),
            batch_size=_count_or_none(order["batch_size"]),
            world_size=_count(order["world_size"]),
        ),
        batches=_count(state["batches"]),
        first=_count(samples or 0),
        refilled=_count(state["refilled"]),
        length=None if samples is None else 0,
        generators=[_generator(saved) for saved in state["generators"]],
        sampler=sampler["state"],
        sampler_epoch=sampler["epoch"],
        base_seed=None if state["base_seed"] is None else _seed(state["base_seed"]),
        positions=Positions(
            [_position(worker) for worker in workers["now"]],
            [_position(worker) for worker in workers["before"]],
            _count(workers["turn"]),
        ),
        order_drawn=bool(state["begun"]),
    )


def _seed(saved: SupportsIndex) -> int:
    return torch.Generator().manual_seed(operator.index(saved)).initial_seed()


def _position(saved: Sequence[Any]) -> Position:
    batches, state, ended, failed, since_state = saved
    if not (state is None or isinstance(state, dict)) or not isinstance(ended, bool):
        raise ValueError("the position of a worker is none")
    return Position(_count(batches), state, ended, _count(failed), _count(since_state))


def _grouping(saved: Any) -> dict[str, Any] | None:
    plain = (int, str, bool, type(None))  # what ``==`` compares to a bool
    if saved is not None and not all(isinstance(value, plain) for value in dict(saved).values()):
        raise ValueError("the groups are none")
    return None if saved is None else dict(saved)


def _count(saved: SupportsIndex) -> int:
    number = operator.index(saved)
    if not 0 <= number < 1 << 62:
        raise ValueError(f"a count of {number}")
    return number


def _count_or_none(saved: SupportsIndex | None) -> int | None:
    return None if saved is None else _count(saved)


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
