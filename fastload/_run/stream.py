"""BatchStream: the batches of one epoch, independent of what makes them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Protocol

from ..errors import UsageError


class BatchStream(Iterator[Any], Protocol):
    """Iterates over the batches of one epoch, in order.

    If a batch could not be made, its ``next`` raises; the batches after it can still be taken.
    After the last batch, and after ``close``, ``next`` raises StopIteration.
    """

    def __len__(self) -> int:
        """Batches of the epoch. Raises TypeError if the sampler has no length, as in torch."""

    def ready(self) -> bool:
        """Whether ``next`` would not wait. True if the batch is made in the call itself."""

    def close(self) -> None:
        """End the epoch now: no thread fills another batch. May be called again."""


class ClosedStream(BatchStream):
    """The stream of an epoch that was closed: it has no more batches."""

    def __next__(self) -> Any:
        raise StopIteration

    def __len__(self) -> int:
        return 0

    def ready(self) -> bool:
        return True

    def close(self) -> None:
        pass


def check_process(made_in: int) -> None:
    """Raise UsageError in a forked child that asks for a batch of an iterator of its parent.

    ``made_in`` is the id of the process that made the iterator.
    """
    if os.getpid() != made_in:
        raise UsageError("this iterator was made before the fork: make one in this process")
