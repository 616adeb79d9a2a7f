"""Measures settings: images/s of a loader or of a training loop, in short visits."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Callable, Generator, Iterable
from typing import Any

import torch

from ..._base.machine import cpu, memory
from ..._base.nested import all_tensors
from ..._base.trace import batch_length
from ..._run.governor import WORKER_NBYTES
from ..._run.tuned_file import Point
from .target import Target

_BLOCKS = 4  # parts of a visit, each with its own rate
_SAMPLES, _SAMPLED_S = 8, 1.0  # samples that tell what the dataset does, and the time for them


@dataclasses.dataclass
class Trial:
    """The measurements of one setting, in images/s."""

    point: Point
    rates: list[float] = dataclasses.field(default_factory=list)  # of blocks of some batches
    # Of epochs that fill the cache, one for each visit; none without a cache.
    filling: list[float] = dataclasses.field(default_factory=list)
    overhead_s: float = 0.0  # of a visit, beside measuring: start, warm-up, filling a cache
    reason: str = ""  # why it was not measured, or how it failed

    @property
    def rate(self) -> float:
        """Images/s; 0 if not measured. The median, because other programs disturb single blocks."""
        return statistics.median(self.rates) if self.rates else 0.0

    @property
    def error(self) -> float:
        """Standard error of the rate, relative to it; infinite with fewer than two blocks."""
        if len(self.rates) < 2 or not self.rate:
            return math.inf
        return statistics.stdev(self.rates) / math.sqrt(len(self.rates)) / self.rate


class Meter:
    """Measures settings of one target.

    ``step`` is called with each batch, as in a training loop; None: the loader alone is measured.
    ``memory_limit``: bytes that a setting may use; None: half of the available memory.
    """

    def __init__(
        self, target: Target, step: Callable[[Any], object] | None, memory_limit: int | None
    ) -> None:
        self.target = target
        self.step = step
        self.memory_limit = memory_limit or memory.available() // 2
        self.trials: dict[Point, Trial] = {}
        self.native = target.native()
        self._sample_nbytes = 0

    def fits(self, point: Point) -> bool:
        """Whether the setting is predicted to fit into memory; if not, its trial gets a reason."""
        wanted = self.nbytes(point)
        if wanted <= self.memory_limit:
            return True
        trial = self.trials.setdefault(point, Trial(point))
        trial.reason = (
            f"not tried: it would need {wanted / 2**20:,.0f} MiB of memory, the limit is "
            f"{self.memory_limit / 2**20:,.0f} MiB"
        )
        return False

    def nbytes(self, point: Point) -> int:
        """Predicted bytes of the batches and processes that the setting keeps in memory."""
        if not self._sample_nbytes:
            loader = self.target.loader(Point(num_workers=0, batch_size=1))
            held = all_tensors(next(iter(loader)))
            self._sample_nbytes = max(1, sum(tensor.nbytes for tensor in held))
        batch = self._sample_nbytes * point.batch_size
        if self.native or not point.num_workers:
            return batch * (point.prefetch_factor + 2)
        return point.num_workers * (batch * (point.prefetch_factor + 1) + WORKER_NBYTES)

    def visit(self, point: Point, seconds: float) -> Trial:
        """Measure a setting for about ``seconds``, without its start and warm-up."""
        trial = self.trials.setdefault(point, Trial(point))
        begin, trial.reason = time.perf_counter(), ""
        loader = self.target.loader(point)
        try:
            if point.cache:  # its rate is that with a full cache
                batches = -(-len(self.target) // point.batch_size)
                trial.filling.append(rate_of_filling(loader, self.step, batches))
            trial.rates += rates_of(loader, self.step, point, seconds)
        except (RuntimeError, MemoryError, OSError) as error:
            # Too many processes or too little shared memory: a property of this setting.
            trial.reason = f"failed: {type(error).__name__}: {str(error).splitlines()[0][:200]}"
        trial.overhead_s = max(trial.overhead_s, time.perf_counter() - begin - seconds)
        return trial

    def least_s(self, point: Point) -> float:
        """Seconds that a visit should take beside the time to measure, from what earlier ones took.

        A larger batch takes longer: at least one is made before the clock starts.
        """
        known = {one: trial.overhead_s for one, trial in self.trials.items() if trial.overhead_s}
        if point in known:
            return known[point]
        plain = [one for one in known if not one.cache]
        alike = [one for one in plain if one.num_workers == point.num_workers] or plain
        rate = max((trial.rate for trial in self.trials.values()), default=0.0)
        filling = len(self.target) / rate if point.cache and rate else 0.0
        starts = (known[one] * max(1.0, point.batch_size / one.batch_size) for one in alike)
        return filling + min(starts, default=0.0)

    def sample_s(self) -> tuple[float, float]:
        """Seconds that torch's loader takes for a sample, and the share of them spent computing."""
        iterator = iter(self.target.torch_loader(1))
        next(iterator, None)  # what is made once
        begin, begin_cpu, count = time.perf_counter(), cpu.wanted(), 0
        while count < _SAMPLES and time.perf_counter() - begin < _SAMPLED_S:
            next(iterator, None)
            count += 1
        seconds = max(time.perf_counter() - begin, 1e-9)
        return seconds / count, (cpu.wanted() - begin_cpu) / seconds

    def beside_torch(
        self, point: Point, seconds: float, *, torch_first: bool
    ) -> tuple[float, float]:
        """Images/s of a setting, and of torch's DataLoader with its defaults, one after the other.

        The batch size, the step and the order are the same for both. The data was read before, so
        both are measured as in a later epoch.
        """
        rates: dict[bool, float] = {}
        for torchs in (torch_first, not torch_first):
            if torchs:
                loader = self.target.torch_loader(point.batch_size)
                defaults = Point(num_workers=0, batch_size=point.batch_size)
                measured = rates_of(loader, self.step, defaults, seconds, most_warm=1)
            else:
                measured = rates_of(self.target.loader(point), self.step, point, seconds)
            rates[torchs] = statistics.median(measured)
        return rates[False], rates[True]

    def step_rate(self, batch_size: int, seconds: float) -> float:
        """Images/s of the step alone, repeated on one batch: the upper limit of the loop."""
        assert self.step is not None
        point = Point(num_workers=0, batch_size=batch_size)
        batch = next(iter(self.target.loader(point)))
        return statistics.median(rates_of([batch], self.step, point, seconds))

    def loader_rate(self, point: Point, seconds: float) -> float:
        """Images/s of the loader alone."""
        return statistics.median(rates_of(self.target.loader(point), None, point, seconds))


def rates_of(
    loader: Iterable[object],
    step: Callable[[Any], object] | None,
    point: Point,
    seconds: float,
    most_warm: int | None = None,
) -> list[float]:
    """Images/s of some blocks that last about ``seconds`` together, after the warm-up.

    The warm-up is the number of prefetched batches, at most ``most_warm``.
    """
    batches = _again_and_again(loader)
    # Prefetched batches were made before the clock started: they must be used up first.
    ahead = point.prefetch_factor * max(1, point.num_workers) if point.num_workers else 0
    warm = min(ahead + 2, most_warm or ahead + 2)
    rates: list[float] = []
    try:
        begun = time.perf_counter()
        for done, batch in enumerate(batches):
            if step is not None:
                step(batch)
            if done + 1 >= warm or time.perf_counter() - begun > 2 * seconds:
                break
        _synchronise()
        begin, images = time.perf_counter(), 0
        end = begin + seconds
        for batch in batches:
            if step is not None:
                step(batch)
            images += batch_length(batch)
            now = time.perf_counter()
            if now - begin >= seconds / _BLOCKS:
                _synchronise()
                now = time.perf_counter()
                rates.append(images / (now - begin))
                begin, images = now, 0
                if now >= end:
                    break
    finally:
        batches.close()
    return rates


def rate_of_filling(
    loader: Iterable[object], step: Callable[[Any], object] | None, batches: int
) -> float:
    """Images/s of a loader's first ``batches`` including its start: an epoch that fills a cache."""
    images, begin = 0, time.perf_counter()
    running = _again_and_again(loader)
    for batch in itertools.islice(running, batches):
        if step is not None:
            step(batch)
        images += batch_length(batch)
    _synchronise()
    seconds = time.perf_counter() - begin
    running.close()
    return images / seconds


def _again_and_again(loader: Iterable[object]) -> Generator[object, None, None]:
    """The batches of one epoch after another; ``close`` ends the current epoch."""
    while True:
        iterator = iter(loader)
        try:
            empty = True
            for batch in iterator:
                empty = False
                yield batch
            if empty:
                return
        finally:
            close = getattr(iterator, "close", None)
            if close is not None:
                close()
            del iterator


def _synchronise() -> None:
    """Wait for the devices, so that only finished work is counted."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
