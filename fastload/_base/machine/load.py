"""How much CPU time other programs take."""

from __future__ import annotations

import os
import time
from pathlib import Path

from . import cpu

STAT = Path("/proc/stat")

BUSY = 0.15
"""Share of the CPUs: if other programs take more, what was measured meanwhile cannot be trusted."""


def own_s() -> float:
    """CPU seconds of this process and its finished children."""
    return sum(os.times()[:4])


class Others:
    """Measures the CPU time of other programs from now on."""

    def __init__(self) -> None:
        self._begun = self._look()

    def share(self) -> float:
        """The share of the CPUs this process may use that others took since the start.

        0.0 if the system does not report it. Others are assumed to run first on the CPUs that this
        process may not use.

        Source: proc(5), ``/proc/stat``: all but idle and iowait is busy, including the time that a
        hypervisor took (steal).
        """
        if self._begun is None or (reading := self._look()) is None:
            return 0.0
        busy, own, elapsed = (a - b for a, b in zip(reading[:3], self._begun[:3], strict=True))
        if elapsed <= 0:
            return 0.0
        others, cpus = max(0.0, busy - own) / elapsed, cpu.available()
        return min(1.0, max(0.0, others - max(0, reading[3] - cpus)) / cpus)

    @staticmethod
    def _look() -> tuple[float, float, float, int] | None:
        """CPU seconds of all programs, of this one, the time, and the number of CPUs."""
        try:
            lines = STAT.read_text(encoding="ascii").splitlines()
            fields = [int(field) for field in lines[0].split()[1:9]]
            busy = sum(fields) - fields[3] - fields[4]
        except (OSError, ValueError, IndexError):
            return None  # not Linux
        cpus = sum(line.startswith("cpu") for line in lines) - 1
        return busy / os.sysconf("SC_CLK_TCK"), own_s(), time.monotonic(), max(1, cpus)
