"""The governor: threads and batches ahead, adjusted while the loop runs (``num_workers="auto"``).

It measures windows of a few batches: the speed of the loop, how long the consumer waited, how busy
the threads were. It tries one change at a time, and keeps it only if it helps:

waiting    The consumer waits for data. It tries twice the threads and, if threads do not help,
           twice the batches ahead. A change that makes the loop less than 5 % faster is reverted
           and not tried again.
idling     The consumer hardly waits, and the threads have little to do. It tries as many threads
           as the work needs. A change that makes the consumer wait is reverted and not tried again.

So it settles, as every reverted change lowers a ceiling or raises a floor for good. It starts over
only if the loop itself changes (its speed by at least 30 %, for several windows).
"""

from __future__ import annotations

import dataclasses
import logging
import math
import statistics

from .._base.machine import cpu, memory
from .._base.trace import Snapshot, Stamps
from .config import PREFETCH, LoaderConfig
from .measurements import Measurements
from .route import EngineRoute, Route

_log = logging.getLogger("fastload")

_WAITS = 0.05  # above this share of waiting, the consumer needs data faster
_IDLES = 0.02  # below this share, it does not
_GAIN = 1.05  # speed-up that more workers or batches must bring
_LOSS = 0.97  # speed that fewer workers must keep
_SPARE = 1.25  # threads to keep for each busy thread
_CHANGED = 1.3  # a loop that is faster or slower by this factor has changed
_PATIENCE = 4  # windows that a change of the loop must last
_EPOCH_BATCHES = 4  # shorter epochs are not judged
_WINDOW_BATCHES, _WINDOW_S = 8, 0.1  # a window of an engine has at least so many, and is so long
# Stages that an engine's threads do.
_WORK = ("read", "check", "decode", "resize", "augment", "pillow")

WORKER_NBYTES = 80 << 20
"""Memory of a worker process, without the pages that it shares with its parent; measured with
torch imported and a dataset that keeps nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What the governor controls: ``workers`` (threads, or processes) and ``prefetch`` (batches
    ahead).
    """

    workers: int
    prefetch: int

    def __str__(self) -> str:
        return f"{self.workers} workers, {self.prefetch} batches ahead"


class Governor:
    """Chooses workers and batches ahead from measurements of the loop.

    It begins with ``setting``. A trial lasts ``windows`` windows; ``settle`` are ignored after a
    change.
    """

    def __init__(
        self,
        setting: Setting,
        *,
        most_workers: int,
        most_prefetch: int,
        windows: int = 2,
        settle: int = 1,
    ) -> None:
        self.setting = setting
        self.decisions: list[str] = []
        """What was decided and why, in sentences for the user."""
        self.most = Setting(workers=most_workers, prefetch=most_prefetch)
        self.affordable = most_workers
        """As many workers as fit into memory now."""
        self._windows = windows
        self._settle = settle
        self._ignored = settle
        self._before: tuple[Setting, float] | None = None  # the setting and rate before a trial
        self._seen: list[tuple[float, float]] = []  # (rate, share of waiting)
        self._start_over()

    def _start_over(self) -> None:
        self._ceiling = self.most
        self._floor = 1
        self._settled: float | None = None
        self._strange = 0

    def window(self, *, rate: float, waiting: float, busy: float) -> Setting:
        """The setting after one more window.

        Args:
            rate: images/s of the loop in this window.
            waiting: share of the time that the consumer waited for batches, 0 to 1.
            busy: average number of busy threads.
        """
        if self._ignored:
            self._ignored -= 1
            return self.setting
        self._seen.append((rate, waiting))
        if len(self._seen) < self._windows:
            return self.setting
        rate, waiting = map(statistics.median, zip(*self._seen, strict=True))
        self._seen.clear()
        if self._before is not None:
            self._judge(rate, waiting)
        elif not self._is_another(rate):
            self._consider(rate, waiting, busy)
        return self.setting

    def _judge(self, rate: float, waiting: float) -> None:
        """Keep the setting that was tried, or revert it."""
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
            self._log_decision(f"kept {new}: {change} images/s, waiting {waiting:.0%}")
            self._settled = rate
        else:
            self._log_decision(
                f"back to {old}: {new} gave {change} images/s, waiting {waiting:.0%}"
            )
            self._set(old)

    def _is_another(self, rate: float) -> bool:
        """Whether the loop itself has changed; if it lasts, everything is tried again."""
        if self._settled is None:
            self._settled = rate
        if 1 / _CHANGED < rate / self._settled < _CHANGED:
            self._strange = 0
            return False
        self._strange += 1
        if self._strange >= _PATIENCE:
            self._log_decision(
                f"the loop changed from {self._settled:,.0f} to {rate:,.0f} images/s"
            )
            self._start_over()
        return True

    def _consider(self, rate: float, waiting: float, busy: float) -> None:
        """Start a trial, if there is a reason to."""
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
        elif waiting < _IDLES:
            needed = max(self._floor, math.ceil(_SPARE * busy), 1)
            if needed < now.workers:
                tried = dataclasses.replace(now, workers=needed)
        if tried != now:
            self._before = (now, rate)
            self._log_decision(f"trying {tried}: waiting {waiting:.0%}, {busy:.1f} workers busy")
            self._set(tried)

    def restart(self) -> None:
        """Start an epoch: its first window is not like the others."""
        self._seen.clear()
        self._ignored = max(self._ignored, self._settle)

    def _set(self, setting: Setting) -> None:
        self.setting = setting
        self._ignored = self._settle

    def _log_decision(self, what: str) -> None:
        self.decisions.append(what)
        _log.info("%s", what)


class Pace:
    """Divides the batches of one epoch into windows and reports each to the governor."""

    def __init__(self, governor: Governor, stamps: Stamps) -> None:
        self._governor = governor
        self._stamps = stamps
        self._last = stamps.snapshot()
        governor.restart()

    def batch(self) -> Setting:
        """Count one more batch that the consumer got; return the current setting."""
        now, last = self._stamps.snapshot(), self._last
        elapsed_s = now.elapsed_s - last.elapsed_s
        if now.batches - last.batches >= _WINDOW_BATCHES and elapsed_s >= _WINDOW_S:
            self._last = now
            self._governor.window(
                rate=(now.images - last.images) / elapsed_s,
                waiting=(now.wait_s - last.wait_s) / elapsed_s,
                busy=(_work_s(now) - _work_s(last)) / elapsed_s,
            )
        return self._governor.setting


def _work_s(figures: Snapshot) -> float:
    """Seconds of work of the engine's threads."""
    return sum(seconds for name, seconds in figures.stages_s.items() if name in _WORK)


def for_loader(route: Route, config: LoaderConfig) -> Governor | None:
    """The governor of a loader; None for an IterableDataset, which each worker would read whole.

    An engine starts with a thread for each CPU and, as torch, two batches ahead. There may be four
    threads for each CPU, in case they wait for a disk. Batches ahead take at most a tenth of the
    memory that is available.
    """
    cpus, free_nbytes = cpu.available(device=config.accelerated), memory.available()
    if not isinstance(route, EngineRoute):
        return None if config.iterable else for_processes(cpus=cpus, memory_nbytes=free_nbytes)
    nbytes, most = route.source.plan.nbytes, PREFETCH
    if nbytes:
        most = min(8, free_nbytes // 10 // (nbytes * (config.batch_size or 1)))
    return Governor(
        Setting(workers=cpus, prefetch=PREFETCH),
        most_workers=4 * cpus,
        most_prefetch=max(PREFETCH, most),
    )


def workers(governor: Governor, last: Measurements) -> int:
    """The number of threads or processes for the next epoch, given the last one."""
    if last.native:
        return governor.setting.workers
    figures = last.stamps.snapshot()
    return after_epoch(governor, figures, memory_nbytes=memory.available()).workers


def for_processes(*, cpus: int, memory_nbytes: int) -> Governor:
    """The governor of worker processes. A window is an epoch, as they change only between epochs.

    It starts with a process for each CPU, and never has more than fit into half of the memory.
    """
    most = max(1, min(4 * cpus, memory_nbytes // 2 // WORKER_NBYTES))
    return Governor(
        Setting(workers=min(cpus, most), prefetch=PREFETCH),
        most_workers=most,
        most_prefetch=PREFETCH,
        windows=1,
        settle=0,
    )


def after_epoch(governor: Governor, figures: Snapshot, *, memory_nbytes: int) -> Setting:
    """The setting after an epoch with worker processes, whose own work is not measured.

    ``memory_nbytes`` is available now, in addition to what the workers use.
    """
    governor.affordable = governor.setting.workers + memory_nbytes // 2 // WORKER_NBYTES
    if figures.batches < _EPOCH_BATCHES or not figures.elapsed_s:
        return governor.setting
    return governor.window(
        rate=figures.images / figures.elapsed_s,
        waiting=figures.wait_s / figures.elapsed_s,
        busy=governor.setting.workers / 2 / _SPARE,  # so that it tries half of them
    )
