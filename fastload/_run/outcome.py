"""Outcome: what came of one index batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .._base.trace import Clock
    from .bad_samples.policy import BadSample
    from .image_counts import Report
    from .positions import Position


@dataclasses.dataclass(slots=True, eq=False)
class Outcome:
    """What a maker made of an index batch: a batch, an error in its place, or nothing.

    Attributes:
        samples: number of samples in the batch.
        empty: there is neither: all samples were skipped, or there are no more.
        taken: how many index batches are used up: this one, and those before it that got lost in an
            interrupted ``next``; 0 where it is of none.
        bad: samples that could not be made.
        missing: with ``on_error="refill"``, their places in the batch, which is then not made.
        refilled: samples taken from the end of the order so far.
        worker: the process that made it, of those that have positions; 0 in this process.
        position: of a dataset that is iterable or stateful, after this batch.
        clock: when a user's Dataset made it; None without a batch.
        report: what became of its images; None: none were deferred.
    """

    batch: Any = None
    samples: int = 0
    error: BaseException | None = None
    empty: bool = False
    taken: int = 1
    bad: Sequence[BadSample] = ()
    missing: Sequence[int] = ()
    refilled: int = 0
    worker: int = 0
    position: Position | None = None
    clock: Clock | None = None
    report: Report | None = None
