"""BatchStream: the batches of one epoch, whoever makes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol


class BatchStream(Iterator[Any], Protocol):
    """Iterates over the batches of one epoch, in order.

    A batch that could not be made raises at its ``next``; the batches after it can still be had.
    After the last one, and after ``close``, ``next`` raises StopIteration.
    """

    def __len__(self) -> int:
        """Batches of the epoch. TypeError where the sampler has no length, as in torch."""

    def ready(self) -> bool:
        """Whether ``next`` would return at once, or makes the batch in the call itself."""

    def close(self) -> None:
        """End the epoch now: no thread fills another batch. May be called again."""
