"""Maker: makes the batches of one epoch, whoever does it.

A maker makes; it does not count. ``Epoch`` (``epoch.py``) alone counts what it gives.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from .._base.trace import batch_length
from ..errors import UsageError
from .outcome import Outcome

_Ticket = TypeVar("_Ticket")


class Maker(Iterator[Outcome], Protocol):
    """Iterates over the outcomes of one epoch, in order.

    An error that takes the place of a batch is in its outcome. What ``next`` raises takes the place
    of none: after a timeout, or where a worker died, the same index batch is the next one still.

    Attributes:
        base_seed: what the workers are seeded with, as torch draws it; None: nobody drew one.
        settle: is called before each ``next``, and is no part of the wait for data; or None.
    """

    base_seed: int | None = None
    settle: Callable[[], None] | None = None

    @property
    def torch(self) -> Any:
        """What has the attributes and the length of torch's iterator."""
        return self

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
        self.settle = maker.settle

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
        self.base_seed = iterator._base_seed

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
