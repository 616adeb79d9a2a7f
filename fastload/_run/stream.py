"""BatchStream: the batches of one epoch, independent of what makes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol


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
