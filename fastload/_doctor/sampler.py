"""Looks at the script's threads and its workers' memory some times a second."""

from __future__ import annotations

import os
import threading
from pathlib import Path

_EVERY_S = 0.05


class Sampler(threading.Thread):
    """Counts running threads of this process and its children, and what the children hold."""

    def __init__(self) -> None:
        super().__init__(name="fastload-doctor", daemon=True)
        self._stopped = threading.Event()
        self._running: list[int] = []
        self.held: dict[str, list[int]] = {}
        """Private bytes of each child, one value a look."""

    def run(self) -> None:
        """Look until ``stop``."""
        while not self._stopped.wait(_EVERY_S):
            children = _children()
            self._running.append(sum(map(_running, [str(os.getpid()), *children])))
            if len(self._running) % 4 == 0:
                for child in children:
                    self.held.setdefault(child, []).append(_private(child))

    def stop(self) -> float:
        """End; returns the threads that were running on average."""
        self._stopped.set()
        self.join()
        # One of them is this thread, which runs whenever it looks.
        return max(0.0, sum(self._running) / len(self._running) - 1) if self._running else 0.0

    def growth(self, batches: int) -> float:
        """Bytes by which the children together grew with each batch, their start left out."""
        grown = 0
        for values in self.held.values():
            later = values[len(values) // 3 :]
            if len(later) >= 4 and later[-1] > later[len(later) // 2] > later[0]:
                grown += later[-1] - later[0]
        return 1.5 * grown / batches if batches else 0.0


def _children() -> list[str]:
    found: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        try:
            found += (task / "children").read_text().split()
        except OSError:
            continue
    return found


def _running(pid: str) -> int:
    count = 0
    try:
        for task in (Path("/proc") / pid / "task").iterdir():
            count += (task / "stat").read_text().rpartition(")")[2].split()[0] == "R"
    except OSError:
        pass  # it has ended meanwhile
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
