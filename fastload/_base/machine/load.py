"""How much of the CPUs other programs take meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from . import cpu

STAT = Path("/proc/stat")


def own_s() -> float:
    """CPU seconds of this process and of its children that have ended."""
    return sum(os.times()[:4])


class Others:
    """Watches the machine from now on.

    Args:
        stat: the system's counters.
        own: CPU seconds of this program until now.
        clock: seconds.
    """

    def __init__(
        self,
        stat: Path = STAT,
        own: Callable[[], float] = own_s,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stat, self._own, self._clock = stat, own, clock
        self._begun = self._look()

    def share(self) -> float:
        """What share of the CPUs that this process may use others took since the beginning.

        0.0 where the system does not tell. CPUs beyond those that this process may use are the
        first that others are taken to run on.

        Source: proc(5), ``/proc/stat``: all but idle and iowait are busy, also what a hypervisor
        took (steal).
        """
        if self._begun is None or (now := self._look()) is None:
            return 0.0
        busy, own, elapsed = (a - b for a, b in zip(now[:3], self._begun[:3], strict=True))
        if elapsed <= 0:
            return 0.0
        others, cpus = max(0.0, busy - own) / elapsed, cpu.available()
        return min(1.0, max(0.0, others - max(0, now[3] - cpus)) / cpus)

    def _look(self) -> tuple[float, float, float, int] | None:
        """CPU seconds of all, of this program, the time, and how many CPUs there are."""
        try:
            lines = self._stat.read_text(encoding="ascii").splitlines()
            fields = [int(field) for field in lines[0].split()[1:9]]
            busy = sum(fields) - fields[3] - fields[4]
        except (OSError, ValueError, IndexError):
            return None  # another system
        cpus = sum(line.startswith("cpu") for line in lines) - 1
        return busy / os.sysconf("SC_CLK_TCK"), self._own(), self._clock(), max(1, cpus)
