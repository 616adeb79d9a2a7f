"""Positions: how far each worker has read a dataset that is iterable, or has a state of its own."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from ..errors import UsageError


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


@dataclasses.dataclass
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
                raise UsageError(
                    f"load_state_dict: the state is of {len(positions)} workers, each with its own "
                    f"part of the data or its own state, got num_workers={workers}: resume with "
                    "as many workers"
                )

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        state: dict[str, Any] = {"turn": self.turn if self.workers else 0}
        state["now"] = [tuple(worker) for worker in self.workers]
        # Those of the previous epoch matter only to workers without a state in this one.
        needless = self.workers and all(worker.state for worker in self.workers)
        state["before"] = [] if needless else [tuple(worker) for worker in self.before]
        return state
