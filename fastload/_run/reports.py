"""What a FastLoader says of itself: ``explain``, ``stats``, ``replay``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from .._base.trace import batch_length
from ..errors import UsageError
from ..hints import Stats


class Reports:
    """The part of FastLoader that reports."""

    _replayed = 0.0  # images/s of the loop on one batch again and again

    def explain(self) -> str:
        """Which engine runs and why, what is fused, what would be faster, in plain words."""
        from . import explain as _explain

        return _explain.explain(self)

    def stats(self) -> Stats:
        """Figures of the epoch that runs, or of the last one.

        Returns:
            A dict of counts, rates, times, errors, and what the loop waits for:
            ``fastload.hints.Stats`` describes each entry, with its unit.
        """
        from . import explain as _explain

        return _explain.figures(self)

    def replay(self, batch: Any, steps: int) -> Iterator[Any]:
        """One batch, ``steps`` times: the loop as it would be if data were free.

        After it, ``stats()["headroom"]`` says how much faster the loop could be.

        Example:
            >>> for batch in loader: train_step(batch)
            >>> for batch in loader.replay(batch, 50): train_step(batch)
            >>> loader.stats()["headroom"]

        Args:
            batch: such as the loop had last.
            steps: at least 2; the first one is not counted.

        Raises:
            UsageError: fewer than 2 steps.
        """
        if steps < 2:
            raise UsageError(f"replay: expected at least 2 steps, got {steps}")
        return self._replay(batch, steps)

    def _replay(self, batch: Any, steps: int) -> Iterator[Any]:
        yield batch
        begin = time.perf_counter()
        for _ in range(steps - 1):
            yield batch
        elapsed = time.perf_counter() - begin
        self._replayed = (steps - 1) * batch_length(batch) / max(elapsed, 1e-9)
