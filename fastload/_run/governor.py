"""The governor: threads and batches ahead, adjusted while the loop runs (``num_workers="auto"``).

It looks at windows of some batches: how fast the loop was, how long the consumer waited, how busy
the threads were. One change at a time is tried and kept only if it helps:

waiting    the consumer waits for data: twice the threads are tried, and where threads do not help,
           twice the batches ahead. What does not make the loop at least 5 % faster is taken back
           and not tried again.
idling     the consumer hardly waits, and the threads have little to do: as many as the work needs
           are tried. What makes the consumer wait is taken back, and not tried again.

So it settles: every refusal lowers a ceiling or raises a floor for good. Only a loop that changed
by itself (its speed by 30 % and more, for several windows) is examined anew.
"""

from __future__ import annotations

import dataclasses
import logging
import math

from .._base.machine import cpu, memory
from .._base.trace import Snapshot, Stamps
from .config import LoaderConfig
from .measured import Measured
from .route import EngineRoute, Route

_log = logging.getLogger("fastload")

_WAITS = 0.05  # share of the time from which on the consumer waits for data
_IDLES = 0.02  # and below which it does not
_GAIN = 1.05  # what a change for more must bring
_LOSS = 0.97  # what a change for less may cost
_SPARE = 1.25  # threads per busy thread that are kept
_CHANGED = 1.3  # a loop so much faster or slower is another one
_PATIENCE = 4  # windows
_EPOCH_BATCHES = 4  # a shorter epoch says nothing
# Stages that threads of an engine do.
_WORK = ("read", "check", "decode", "resize", "augment", "pillow")

WORKER_NBYTES = 80 << 20
"""A worker process beside its parent, whose pages it shares: what it takes for itself, measured
with torch imported and a dataset that keeps nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What the governor sets.

    Attributes:
        workers: threads, or processes.
        prefetch: batches ahead.
    """

    workers: int
    prefetch: int

    def __str__(self) -> str:
        return f"{self.workers} workers, {self.prefetch} batches ahead"


class Governor:
    """Decides on workers and batches ahead from what a loop shows.

    Args:
        setting: to begin with.
        most_workers, most_prefetch: upper ends.
        windows: how many windows a trial lasts.
        settle: windows after a change that say nothing yet.
        shrinks: whether it takes workers away.
    """

    def __init__(
        self,
        setting: Setting,
        *,
        most_workers: int,
        most_prefetch: int,
        windows: int = 2,
        settle: int = 1,
        shrinks: bool = True,
    ) -> None:
        self.setting = setting
        self.decisions: list[str] = []
        """What was decided and why, for the user."""
        self.most = Setting(workers=most_workers, prefetch=most_prefetch)
        self.affordable = most_workers
        """As many workers as memory has room for now."""
        self._windows = windows
        self._settle = settle
        self._shrinks = shrinks
        self._ignored = settle
        self._before: tuple[Setting, float] | None = None  # while something is tried
        self._seen: list[tuple[float, float]] = []  # (rate, share of waiting)
        self._forget()

    def _forget(self) -> None:
        self._ceiling = self.most
        self._floor = 1
        self._settled: float | None = None
        self._strange = 0

    def window(self, *, rate: float, waiting: float, busy: float) -> Setting:
        """What to do after one more window.

        Args:
            rate: images/s of the loop in this window.
            waiting: share of the time the consumer waited for batches, 0 to 1.
            busy: threads at work on average.
        """
        if self._ignored:
            self._ignored -= 1
            return self.setting
        self._seen.append((rate, waiting))
        if len(self._seen) < self._windows:
            return self.setting
        rate, waiting = (_median(list(each)) for each in zip(*self._seen, strict=True))
        self._seen.clear()
        if self._before is not None:
            self._judge(rate, waiting)
        elif not self._is_another(rate):
            self._consider(rate, waiting, busy)
        return self.setting

    def _judge(self, rate: float, waiting: float) -> None:
        """Keep what was tried, or take it back."""
        assert self._before is not None
        (old, rate_before), self._before = self._before, None
        new = self.setting
        if new.workers < old.workers:
            kept = rate >= _LOSS * rate_before and waiting < _WAITS
            if not kept:
                self._floor = old.workers
        else:
            kept = rate >= _GAIN * rate_before
            if not kept:
                self._ceiling = Setting(
                    workers=old.workers if new.workers > old.workers else self._ceiling.workers,
                    prefetch=old.prefetch
                    if new.prefetch > old.prefetch
                    else self._ceiling.prefetch,
                )
        change = f"{rate / rate_before - 1:+.0%}"
        if kept:
            self._say(f"kept {new}: {change} images/s, waiting {waiting:.0%}")
            self._settled = rate
        else:
            self._say(f"back to {old}: {new} gave {change} images/s, waiting {waiting:.0%}")
            self._set(old)

    def _is_another(self, rate: float) -> bool:
        """Whether the loop has changed by itself, so that all has to be found out again."""
        if self._settled is None:
            self._settled = rate
        if 1 / _CHANGED < rate / self._settled < _CHANGED:
            self._strange = 0
            return False
        self._strange += 1
        if self._strange >= _PATIENCE:
            self._say(f"the loop changed from {self._settled:,.0f} to {rate:,.0f} images/s")
            self._forget()
        return True

    def _consider(self, rate: float, waiting: float, busy: float) -> None:
        """Begin to try something else, if there is reason to."""
        now = self.setting
        tried = now
        if waiting > _WAITS:
            most = min(self._ceiling.workers, self.affordable)
            if now.workers < most:
                workers = min(2 * now.workers, most)
                tried = dataclasses.replace(now, workers=workers)
            elif now.prefetch < self._ceiling.prefetch:
                prefetch = min(2 * now.prefetch, self._ceiling.prefetch)
                tried = dataclasses.replace(now, prefetch=prefetch)
        elif waiting < _IDLES and self._shrinks:
            needed = max(self._floor, math.ceil(_SPARE * busy), 1)
            if needed < now.workers:
                tried = dataclasses.replace(now, workers=needed)
        if tried != now:
            self._before = (now, rate)
            self._say(f"trying {tried}: waiting {waiting:.0%}, {busy:.1f} workers busy")
            self._set(tried)

    def restart(self) -> None:
        """A new epoch begins: its first window is not like the others."""
        self._seen.clear()
        self._ignored = max(self._ignored, self._settle)

    def _set(self, setting: Setting) -> None:
        self.setting = setting
        self._ignored = self._settle

    def _say(self, what: str) -> None:
        self.decisions.append(what)
        _log.info("%s", what)


class Pace:
    """Cuts the batches of one epoch into windows, and tells the governor about each.

    Args:
        governor: decides.
        stamps: of this epoch.
        batches, seconds: a window has at least so many, and lasts at least so long.
    """

    def __init__(
        self, governor: Governor, stamps: Stamps, *, batches: int = 8, seconds: float = 0.1
    ) -> None:
        self._governor = governor
        self._stamps = stamps
        self._batches = batches
        self._seconds = seconds
        self._last = stamps.snapshot()
        governor.restart()

    def batch(self) -> Setting:
        """One more batch was handed over. Returns the setting from now on."""
        now, last = self._stamps.snapshot(), self._last
        elapsed_s = now.elapsed_s - last.elapsed_s
        if now.batches - last.batches >= self._batches and elapsed_s >= self._seconds:
            self._last = now
            self._governor.window(
                rate=(now.images - last.images) / elapsed_s,
                waiting=(now.wait_s - last.wait_s) / elapsed_s,
                busy=(_work_s(now) - _work_s(last)) / elapsed_s,
            )
        return self._governor.setting


def _work_s(figures: Snapshot) -> float:
    """Seconds that threads of the engine were at work."""
    return sum(seconds for name, seconds in figures.stages_s.items() if name in _WORK)


def for_loader(route: Route, config: LoaderConfig) -> Governor | None:
    """The governor of a loader; None for an IterableDataset, which each worker would repeat."""
    if isinstance(route, EngineRoute):
        nbytes = route.source.plan.nbytes
        return for_engine(
            cpus=cpu.available(),
            batch_nbytes=None if nbytes is None else nbytes * (config.batch_size or 1),
            memory_nbytes=memory.available(),
        )
    if config.iterable:
        return None
    return for_processes(cpus=cpu.available(), memory_nbytes=memory.available())


def workers(governor: Governor, last: Measured) -> int:
    """With how many threads or processes the next epoch begins, after what the last one showed."""
    if last.native:
        return governor.setting.workers
    figures = last.stamps.snapshot()
    return after_epoch(governor, figures, memory_nbytes=memory.available()).workers


def for_engine(*, cpus: int, batch_nbytes: int | None, memory_nbytes: int) -> Governor:
    """The governor of an engine's threads.

    It begins with a thread for each CPU and torch's two batches ahead. Threads that wait for a disk
    may be four times as many; batches ahead take at most a tenth of the memory.

    Args:
        cpus: that this process has.
        batch_nbytes: of a batch, or None where its size is not known.
        memory_nbytes: available.
    """
    most = 2 if batch_nbytes is None else min(8, memory_nbytes // 10 // max(1, batch_nbytes))
    return Governor(
        Setting(workers=cpus, prefetch=2), most_workers=4 * cpus, most_prefetch=max(2, most)
    )


def for_processes(*, cpus: int, memory_nbytes: int) -> Governor:
    """The governor of worker processes; its windows are epochs, between which alone they change.

    It begins with a process for each CPU, and never has more than fit into half of the memory.
    """
    most = max(1, min(4 * cpus, memory_nbytes // 2 // WORKER_NBYTES))
    return Governor(
        Setting(workers=min(cpus, most), prefetch=2),
        most_workers=most,
        most_prefetch=2,
        windows=1,
        settle=0,
    )


def _median(values: list[float]) -> float:
    """The middle of ``values``. NumPy's and ``statistics`` would be imported for this alone."""
    values.sort()
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2


def after_epoch(governor: Governor, figures: Snapshot, *, memory_nbytes: int) -> Setting:
    """What to do after an epoch with worker processes, whose own work is not seen.

    Args:
        governor: decides.
        figures: of the epoch.
        memory_nbytes: available now, beside the workers there are.
    """
    governor.affordable = governor.setting.workers + memory_nbytes // 2 // WORKER_NBYTES
    if figures.batches < _EPOCH_BATCHES or not figures.elapsed_s:
        return governor.setting
    return governor.window(
        rate=figures.images / figures.elapsed_s,
        waiting=figures.wait_s / figures.elapsed_s,
        busy=governor.setting.workers / 2 / _SPARE,  # half of them are tried
    )
