"""When the next batch may begin: how few large slabs an epoch does with.

Two slabs are enough for most loops: the batch in the caller's hands, and the one that is being
filled. The next one begins in the first of them at the moment in which the caller lets go of it.
More would be of use where a loop now waits for batches and now does not, or where threads are so
many that what they lose between two batches counts. So the loss is measured, and where it is too
large a slab more is taken, up to ``prefetch_factor`` + 1.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from .._base.slabs import SlabRing

# Looked at after so many batches: the share of the time that was lost, and which is too much.
_BATCHES = 16
_LOSS = 0.05


class Gate:
    """Says of one epoch's batches when each may begin.

    ``ask`` is for the consumer's thread, all else for the producer's, but for ``close``.

    Args:
        rings: where the batches are allocated.
        told: a C function, called when a slab is let go.
    """

    def __init__(self, rings: Sequence[SlabRing], told: Callable[[Any], Any]) -> None:
        self._rings = rings
        self._asked = self._made = 0  # batches
        self._asked_ns = self._made_ns = time.perf_counter_ns()
        self._begun_ns: list[int] = []  # of the batches that are being filled
        self._passed_ns = self._lost_ns = self._batches = self._waited = self._slowed = 0
        self._told = told
        for ring in rings:
            ring.notify(told)

    def close(self) -> None:
        """Be told of slabs no more. May be called again, and from any thread."""
        for ring in self._rings:
            ring.notify_no_more(self._told)

    def ask(self) -> bool:
        """The consumer wants the next batch; whether it is not there yet."""
        self._asked_ns = time.perf_counter_ns()
        self._asked += 1
        return self._asked > self._made

    def open(self) -> bool:
        """Whether one more batch may begin."""
        if not any(ring.crowded() for ring in self._rings):
            return True
        # Who waits while nothing is being filled keeps what he was given, and will keep on waiting.
        return not self._begun_ns and self._asked > self._made

    def begun(self) -> None:
        """One more batch is being filled."""
        self._begun_ns.append(time.perf_counter_ns())

    def made(self, idle_share: float) -> None:
        """The oldest batch is filled.

        Args:
            idle_share: of the time that it took, in which threads had nothing to do at its end;
                negative where they had begun with it earlier.
        """
        now = time.perf_counter_ns()
        begun, before = self._begun_ns.pop(0), self._made_ns
        self._made_ns = now
        self._made += 1
        passed = now - before
        if self._made > 1 and self._asked >= self._made and not self._begun_ns:
            idle = max(0, max(0, begun - before) + int((now - begun) * idle_share))
            lost = min(idle, now - self._asked_ns)
            self._lost_ns += lost
            self._waited += 1
            self._slowed += lost > _LOSS * passed
        self._passed_ns += passed
        self._batches += 1
        if self._batches == _BATCHES:
            # Of most, not only in all: on a busy machine a thread may wake up late now and then.
            if self._lost_ns > _LOSS * self._passed_ns and 2 * self._slowed > self._waited:
                for ring in self._rings:
                    ring.more()
            self._passed_ns = self._lost_ns = self._batches = self._waited = self._slowed = 0
