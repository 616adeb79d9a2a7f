"""Maker: makes the batches of one epoch, whoever does it; Outcome: what it makes of one.

A maker makes; it does not count. ``Epoch`` (``epoch_iterator.py``) alone counts what it gives.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from .._base.trace import batch_length
from ..errors import UsageError

if TYPE_CHECKING:
    from .._base.trace import Clock
    from .bad_samples.policy import BadSample
    from .measurements import Report
    from .progress import Position

_Ticket = TypeVar("_Ticket")
_E = TypeVar("_E", bound=BaseException)


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


class Maker(Iterator[Outcome], Protocol):
    """Iterates over the outcomes of one epoch, in order.

    An error that takes the place of a batch is in its outcome. What ``next`` raises takes the place
    of none: after a timeout, or where a worker died, the same index batch is the next one still.

    Attributes:
        base_seed: what the workers are seeded with, as torch draws it; None: nobody drew one.
    """

    base_seed: int | None = None

    @property
    def torch(self) -> Any:
        """What has the attributes and the length of torch's iterator."""
        return self

    def settle(self) -> None:
        """Called before each ``next``; what it waits for is not data."""
        return

    def ready(self) -> bool:
        """Whether ``next`` would not wait. True if the batch is made in the call itself."""
        return True

    def close(self) -> None:
        """Make nothing more. May be called again."""
        return


class Remaker(Protocol[_Ticket]):
    """Makes one more batch, which is none of the order."""

    def ask(self, indices: list[Any], repeats: list[int] | None) -> _Ticket:
        """Ask for the batch of these indices, of which each came before so often."""

    def answer(self, ticket: _Ticket, /) -> Outcome:
        """The outcome. If this raises, it may be called again."""


class Stage(Maker):
    """A maker that changes the outcomes of another one."""

    def __init__(self, maker: Maker) -> None:
        self._maker = maker
        self.base_seed = maker.base_seed

    @property
    def torch(self) -> Any:
        return self._maker.torch

    def ready(self) -> bool:
        return self._maker.ready()

    def close(self) -> None:
        self._maker.close()


class NoMaker(Maker):
    """Makes nothing: the epoch was closed."""

    def __next__(self) -> Outcome:
        raise StopIteration

    def __len__(self) -> int:
        return 0


class TorchMaker(Maker):
    """torch's own iterator, whose batches may come in any order."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator
        self.base_seed = getattr(iterator, "_base_seed", None)  # it may be another package's

    @property
    def torch(self) -> Any:
        return self._iterator

    def __next__(self) -> Outcome:
        try:
            batch = next(self._iterator)
        except StopIteration:
            raise
        except Exception as error:  # noqa: BLE001 - raised at this batch
            return Outcome(error=error)
        return Outcome(batch, batch_length(batch))

    def close(self) -> None:
        self._iterator = NoMaker()


def check_process(made_in: int) -> None:
    """Raise UsageError in a forked child that asks for a batch of an iterator of its parent.

    ``made_in`` is the id of the process that made the iterator.
    """
    if os.getpid() != made_in:
        raise UsageError("this iterator was made before the fork: make one in this process")


def below(error: _E) -> _E:
    """``error``, without the frame that caught it in its traceback."""
    trace = error.__traceback__
    return error.with_traceback(None if trace is None else trace.tb_next)


class PersistentWorkers:
    """Worker processes that live on after an epoch.

    They belong to one iterator, as in torch, and end when nothing refers to it any more.

    ``holder`` keeps them: torch's loader of outcomes, or torch's own iterator; None: there are
    none.
    """

    holder: object | None = None
