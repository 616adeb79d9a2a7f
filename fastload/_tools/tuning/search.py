"""The search: a coarse grid, then successive halving with the neighbours of the best settings.

Each round visits the remaining settings in random order, so that changes of the machine's speed do
not favour one of them. A visit is short, and the median over all blocks counts. The next round has
the fastest settings of all so far: one that only seemed slow comes back when others turn out
slower, and the best of the table is the one that was measured best. Settings that are predicted to
need too much memory, or more time than is left, are left out.
"""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from ..._base.keywords import names_nearest
from ..._base.machine.cpu import available as cpus
from ..._base.machine.load import BUSY, Others
from ..._run.tuned_file import Point, fingerprint, machine
from ...errors import UsageError
from ...storage.base import ENCODED, RAW
from .grid import BATCH_SIZE, Grid
from .meter import Meter, Trial
from .result import TIED, Tried, Tuning
from .target import Target, target_of

_GRID, _REFINE, _FINAL = 0.4, 0.73, 1.0  # of the search: when each part ends
_BESIDE = 0.25, 0.5  # of the budget: least and most that the comparison with torch may take
_ROUNDS = 5  # of the comparison with torch, in turn; fewer if time is short
_SHORTEST_S = 0.1  # duration of a visit
_FINALISTS = 4
_FILLING = 0.03  # share of the budget: a dataset that can be read in this time may be cached
_COMPUTE = 0.95  # share of the step's own rate from which the loop is bound by the step


@names_nearest
def autotune(
    source: object,
    *,
    transform: Callable[[Any], object] | None = None,
    step: Callable[[Any], object] | None = None,
    batch_size: int | None = None,
    fix_batch_size: int | None = None,
    budget_s: float = 60.0,
    memory_limit: int | None = None,
    approximate: bool = False,
    progress: Callable[[float, float, str], None] | None = None,
) -> Tuning:
    """Find the fastest workers, batch size, prefetch and cache for ``source`` on this machine.

    Example:
        >>> tuning = fastload.autotune("imgs.lmdb", transform=train_tf, step=train_step)
        >>> tuning.save("fastload.tune.json")
        >>> loader = FastLoader("imgs.lmdb", batch_size=256, tuned="fastload.tune.json")

    Args:
        source: path of a store or of a folder of class folders; a Dataset; a DataLoader; or a
            function without arguments that returns one of them.
        transform: for a path; None: the usual augmentation (ImageNet's, or CIFAR's if the images
            are small).
        step: called with each batch; then the loop over batches and steps is measured.
        batch_size: the batch size in use, for which settings are chosen; None: that of a
            DataLoader, else 64. Others are tried too, to show their speed; but another batch size
            trains differently, and the learning rate usually must be adapted.
        fix_batch_size: as ``batch_size``, and no other batch size is tried.
        budget_s: seconds that the search may take.
        memory_limit: bytes that a setting may use; None: half of the available memory.
        approximate: also try decode="scaled", whose pixels differ slightly (docs/performance.md).
        progress: called with (seconds spent, budget, the setting being measured).

    Returns:
        The chosen setting and everything that was measured. ``save`` writes the file for
        ``FastLoader(tuned=...)``.

    Raises:
        UsageError: there is nothing to load, or no setting fits into memory.
    """
    if batch_size is not None and fix_batch_size is not None:
        raise UsageError("batch_size and fix_batch_size: expected at most one of them, got both")
    if not isinstance(budget_s, (int, float)) or not 0 < budget_s < math.inf:
        raise UsageError(f"budget_s: expected seconds above 0, got {budget_s!r}")
    if memory_limit is not None and not isinstance(memory_limit, int):
        raise UsageError(f"memory_limit: expected a number of bytes, got {memory_limit!r}")
    for name, value in (("transform", transform), ("step", step)):
        if value is not None and not callable(value):
            raise UsageError(f"{name}: expected a callable, got {value!r}")
    begun = time.perf_counter()
    target = target_of(source, transform)
    meter = Meter(target, step, memory_limit)
    search = _Search(meter, begun, budget_s, progress or (lambda spent, budget, what: None))
    used = fix_batch_size or batch_size or target.batch_size or BATCH_SIZE
    used = min(used, len(target))
    return search.run(used, fixed=fix_batch_size is not None, approximate=approximate)


class _Search:
    def __init__(
        self,
        meter: Meter,
        begun: float,
        budget_s: float,
        progress: Callable[[float, float, str], None],
    ) -> None:
        self._meter = meter
        self._begun = self._from = begun
        self._budget_s = budget_s
        self._progress = progress
        self._plain_s = self._busy = 0.0
        self._others = Others()
        self._batch_size = 0
        self._kinds = meter.target.kinds()
        self._random = random.Random(0)

    def run(self, batch_size: int, *, fixed: bool, approximate: bool) -> Tuning:
        target = self._meter.target
        self._batch_size = batch_size
        grid = Grid(
            cpus=cpus(),
            batch_size=batch_size,
            fixed=fixed,
            samples=len(target),
            caches=(),
            pinning=torch.cuda.is_available(),
            scaling=approximate and self._meter.native and bool(self._kinds - {RAW}),
        )
        points = [point for point in grid.coarse() if self._meter.fits(point)]
        if not self._own(points):
            smallest = self._meter.trials[min(self._own(list(self._meter.trials)))]
            raise UsageError(f"no setting fits: {smallest.point}: {smallest.reason}")
        self._plain_s, self._busy = self._meter.sample_s()
        self._round(points, self._end(_GRID))
        if self._others.share() > BUSY:  # perhaps they have ended
            self._begin_again()
            self._round(points, self._end(_GRID))
        left = self._fastest(max(_FINALISTS, len(points) // 3))
        grid = dataclasses.replace(grid, caches=self._caches(left))
        begin = {left[0], *self._own(left)[:2]}
        near = {point for start in begin for point in grid.near(start) if self._meter.fits(point)}
        for number in (0.5, 1.0):
            self._round(sorted({*left, *near}), self._end(_GRID + number * (_REFINE - _GRID)))
        for number in (1, 2, 3):
            end = self._end(_REFINE + number / 3 * (_FINAL - _REFINE))
            self._round(self._fastest(_FINALISTS), end)
        return self._outcome()

    def _begin_again(self) -> None:
        """Forget what was measured; the rest of the budget is left."""
        self._progress(self._spent(), self._budget_s, "other programs are busy: measuring again")
        self._from = time.perf_counter()
        self._others = Others()
        for trial in self._meter.trials.values():
            trial.rates.clear()
            trial.filling.clear()

    def _end(self, share: float) -> float:
        """When this share of the search is over. The rest of the budget is the comparison's."""
        least, most = (part * self._budget_s for part in _BESIDE)
        beside_s = max(least, self._pair_s()) if self._pair_s() < most else 0.0
        return self._from + share * (self._begun + self._budget_s - beside_s - self._from)

    def _pair_s(self) -> float:
        """Seconds that a round of the comparison should take at least: torch makes two batches."""
        return 3 * self._batch_size * self._plain_s

    def _round(self, points: list[Point], end: float) -> None:
        """Visit ``points``, those with the batch size in use first, as far as there is time."""
        order = list(points)
        self._random.shuffle(order)
        order.sort(key=lambda point: point.batch_size != self._batch_size)
        for place, point in enumerate(order):
            known = self._meter.trials.setdefault(point, Trial(point))
            left = end - time.perf_counter()
            if self._meter.least_s(point) + _SHORTEST_S > left and self._measured():
                if not known.rates:
                    known.reason = known.reason or "not tried: there was no time left for it"
                continue
            # Half of a visit is spent on starting the workers and on the first prefetch.
            seconds = max(_SHORTEST_S, left / (len(order) - place) / 2)
            self._progress(self._spent(), self._budget_s, str(point))
            self._meter.visit(point, seconds)
        if not self._measured():
            first = self._own(points)[0]
            raise UsageError(
                f"no setting worked; the first one, {first}: {self._meter.trials[first].reason}"
            )

    def _measured(self) -> list[Point]:
        """The settings with the batch size in use that were measured, the fastest first."""
        return self._own(self._fastest())

    def _fastest(self, keep: int | None = None) -> list[Point]:
        """The settings that were measured, or the best ``keep`` of them, the fastest first.

        At least half of these have the batch size in use, if there are enough.
        """
        trials = self._meter.trials
        measured = [point for point, trial in trials.items() if trial.rates]
        measured.sort(key=lambda point: -trials[point].rate)
        if keep is None:
            return measured
        own = self._own(measured)[: -(-keep // 2)]
        rest = [point for point in measured if point not in own][: keep - len(own)]
        return [point for point in measured if point in own or point in rest]

    def _own(self, points: list[Point]) -> list[Point]:
        return [point for point in points if point.batch_size == self._batch_size]

    def _caches(self, left: list[Point]) -> tuple[str, ...]:
        """Those that an engine fills within their share of the budget, and that change anything."""
        rate = self._meter.trials[self._own(left)[0]].rate
        filled = len(self._meter.target) / rate < _FILLING * self._budget_s
        if not (self._meter.native and filled and self._kinds):
            return ()
        return ("dct", "decoded") if ENCODED in self._kinds else ("decoded",)

    def _spent(self) -> float:
        return time.perf_counter() - self._begun

    def _outcome(self) -> Tuning:
        meter, trials = self._meter, self._meter.trials
        fastest, own = self._fastest(), self._measured()
        best = own[0]
        rate = trials[best].rate
        step_rate = loader_rate = None
        if meter.step is not None:
            self._progress(self._spent(), self._budget_s, "the step alone, the loader alone")
            seconds = self._left_s() / (2 * _ROUNDS + 4)
            step_rate = meter.step_rate(best.batch_size, seconds)
            loader_rate = meter.loader_rate(best, seconds)
        bound, why = self._bound(best, rate, step_rate)
        uncached = next((point for point in own if _as_torch(point)), best)
        pairs = self._beside_torch(uncached)
        ours, torchs = (
            zip(*pairs, strict=True) if pairs else ([trials[uncached].rate], [1 / self._plain_s])
        )
        smallest = min(point for point in own if trials[point].rate >= (1 - TIED) * rate)
        return Tuning(
            source=meter.target.name,
            batch_size=self._batch_size,
            best=best,
            fastest=fastest[0],
            fastest_images_per_s=trials[fastest[0]].rate,
            smallest=smallest,
            chosen=smallest if bound == "compute" else best,
            images_per_s=rate,
            uncached=uncached,
            uncached_images_per_s=statistics.median(ours),
            torch_images_per_s=statistics.median(torchs),
            ratios=tuple(ours / torchs for ours, torchs in pairs),
            step_images_per_s=step_rate,
            loader_images_per_s=loader_rate,
            bound=bound,
            why=why,
            tried=tuple(_tried(trials[point]) for point in sorted(trials)),
            machine=machine(),
            dataset=fingerprint(meter.target.dataset),
            others=self._others.share(),
            seconds=self._spent(),
        )

    def _left_s(self) -> float:
        return max(0.0, self._budget_s - self._spent())

    def _beside_torch(self, point: Point) -> list[tuple[float, float]]:
        """Images/s of a setting and of torch's defaults, measured in turn while there is time."""
        seconds = max(_SHORTEST_S, 0.8 * self._left_s() / (2 * _ROUNDS))
        pairs: list[tuple[float, float]] = []
        took_s = self._pair_s()
        while len(pairs) < _ROUNDS and took_s < self._left_s():
            self._progress(self._spent(), self._budget_s, "comparing with torch's defaults")
            begin, first = time.perf_counter(), len(pairs) % 2 == 0
            pairs.append(self._meter.beside_torch(point, seconds, torch_first=first))
            took_s = time.perf_counter() - begin
        return pairs

    def _bound(self, best: Point, rate: float, step_rate: float | None) -> tuple[str, str]:
        """What limits the loop, and the figures that show it."""
        if step_rate is not None and rate >= _COMPUTE * step_rate:
            return "compute", (
                f"the loop runs at {rate:,.0f} images/s, {rate / step_rate:.0%} of the step alone"
            )
        if self._meter.native:
            return _engine_bound(self._meter.target, best)
        if self._busy < 0.5:
            return "reading", f"the dataset's code waits {1 - self._busy:.0%} of its time"
        return "python", f"the dataset's code computes {self._busy:.0%} of its time"


def _engine_bound(target: Target, point: Point) -> tuple[str, str]:
    """Whether reading or decoding takes most of the engine's time at this setting."""
    loader = target.loader(point)
    iterator = iter(loader)
    for _ in range(3 + point.prefetch_factor):
        next(iterator)
    stages = loader.stats()["stages_s"]
    iterator.close()  # type: ignore[attr-defined]
    reading = stages.get("read", 0.0) + stages.get("check", 0.0)
    share = reading / (sum(stages.values()) or 1.0)
    if share > 0.5:
        return "reading", f"the engine spends {share:.0%} of its time on reading"
    return "decoding", f"the engine spends {1 - share:.0%} of its time on decoding and transforms"


def _as_torch(point: Point) -> bool:
    """Whether a setting has no cache and gives the pixels of torch's loader."""
    return not point.cache and point.decode == "exact"


def _tried(trial: Trial) -> Tried:
    return Tried(
        point=trial.point,
        images_per_s=trial.rate,
        error=trial.error if len(trial.rates) > 1 else None,
        filling_images_per_s=statistics.median(trial.filling) if trial.filling else None,
        reason=trial.reason,
    )
