"""Samples the script's running threads and its workers' memory, 20 times a second."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

_EVERY_S = 0.05
_STARTING = 0.25  # share of the batches during which a worker still imports, opens and copies
_ENOUGH = 32  # batches after that; with fewer, growth cannot be told from noise
_STEADY = 0.5  # steady growth is at the end at least this share of its maximum


class Sampler(threading.Thread):
    """Samples running threads of this process and its children, and the children's memory.

    ``batches`` returns the number of batches that all children have made.
    """

    def __init__(self, batches: Callable[[], float]) -> None:
        super().__init__(name="fastload-doctor", daemon=True)
        self._stopped = threading.Event()
        self._running: list[int] = []
        self._batches = batches
        self.held: dict[str, list[tuple[float, int]]] = {}
        """For each child, its samples: (batches of all children so far, its private bytes)."""

    def run(self) -> None:
        """Sample until ``stop``."""
        while not self._stopped.wait(_EVERY_S):
            children = _children()
            self._running.append(sum(map(_running, [str(os.getpid()), *children])))
            if len(self._running) % 4 == 0:
                for child in children:
                    self.held.setdefault(child, []).append((self._batches(), _private(child)))

    def stop(self) -> float:
        """Stop; returns the mean number of running threads."""
        self._stopped.set()
        self.join()
        # One of them is this thread, which always runs when it samples.
        return max(0.0, sum(self._running) / len(self._running) - 1) if self._running else 0.0

    def growth(self) -> float:
        """Growth of all children per batch in bytes, without their start."""
        return sum(map(growth, self.held.values()))


def growth(looks: Sequence[tuple[float, int]]) -> float:
    """Growth of one process per batch of all, in bytes; 0.0 if there is no steady growth.

    ``looks``: (batches of all processes so far, private bytes of this one). A starting process
    grows too: it imports, allocates, and copies pages that it shared. That ends soon. Growth counts
    only if it is positive in each third of the run after the start, and at the end about as fast as
    before.
    """
    if not looks:
        return 0.0
    first = looks[0][0] + _STARTING * (looks[-1][0] - looks[0][0])
    later = [look for look in looks if look[0] >= first]
    batches = later[-1][0] - later[0][0]
    if batches < _ENOUGH or len(later) < 4:
        return 0.0
    at = [later[round(part * (len(later) - 1) / 3)] for part in range(4)]
    rates = [
        (after[1] - before[1]) / max(1.0, after[0] - before[0])
        for before, after in itertools.pairwise(at)
    ]
    if min(rates) <= 0 or rates[-1] < _STEADY * max(rates):
        return 0.0
    return (later[-1][1] - later[0][1]) / batches


def _children() -> list[str]:
    children: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        try:
            children += (task / "children").read_text().split()
        except OSError:
            continue
    return children


def _running(pid: str) -> int:
    count = 0
    try:
        for task in (Path("/proc") / pid / "task").iterdir():
            count += (task / "stat").read_text().rpartition(")")[2].split()[0] == "R"
    except OSError:
        pass  # the process has ended
    return count


def _private(pid: str) -> int:
    try:
        text = (Path("/proc") / pid / "smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(
        int(line.split()[1]) * 1024
        for line in text.splitlines()
        if line.startswith("Private_Dirty")
    )
