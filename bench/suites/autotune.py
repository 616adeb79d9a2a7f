"""autotune: the settings that it chooses, against all settings.

All settings of a grid are measured, autotune runs ten times in a sixth of that time, and then each
of its choices and the grid's best are measured again, side by side.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from pathlib import Path

from bench import data
from bench.report import Row, row
from bench.suites.base import Options, Suite, Variant
from fastload import autotune, pack
from fastload._run.point import Point
from fastload._tools.tuning.meter import rates_of
from fastload._tools.tuning.target import Target, target_of

_WORKERS = (0, 1, 2, 3, 4, 8)
_BATCHES = (16, 32, 64, 128, 256, 512)
_PREFETCH = (2, 4)
_VISITS_S = {"photos": 0.5, "small": 0.15}  # a batch takes 16 ms, and one of small images 1 ms


class Autotune(Suite):
    name = "autotune"
    summary = "ten runs of autotune against the best of an exhaustive sweep, measured side by side"
    variants = {"photos": Variant(), "small": Variant()}

    def run(self, variant: str, options: Options) -> list[Row]:
        target = target_of(str(_packed(variant, options)))
        visit_s = 0.02 if options.toy else _VISITS_S[variant]
        begun = time.perf_counter()
        best = _best(target, _grid(options), visit_s)
        sweep_s = time.perf_counter() - begun
        choices: list[Point] = []
        spent: list[float] = []
        for number in range(1 if options.toy else 10):
            result = autotune(target.name, budget_s=1 if options.toy else sweep_s / 6)
            # Of those that keep nothing between epochs, as the sweep's settings.
            tried = [one for one in result.tried if not one.point.cache]
            choices.append(max(tried, key=lambda one: one.images_per_s).point)
            spent.append(result.seconds)
            options.say(f"autotune {number + 1}: {choices[-1]} in {result.seconds:.1f} s")
        ratios = {
            choice: statistics.mean(_pairs(target, choice, best, options.rounds, visit_s))
            for choice in set(choices)
        }
        facts = {
            "suite": self.name,
            "variant": variant,
            "loader": "fastload-lmdb",
            "threads": options.threads,
            "images": len(target),
            "data": "given" if options.data else "made",
            "warmup_s": visit_s,
            "round_s": visit_s,
            **options.machine,
        }
        return [
            row(
                metric="choice",
                unit="of the sweep's best",
                values=[ratios[choice] for choice in choices],
                setting={"best": str(best), "chosen": [str(choice) for choice in choices]},
                **facts,
            ),
            row(
                metric="time",
                unit="of the sweep's",
                values=[seconds / sweep_s for seconds in spent],
                setting={"sweep_s": round(sweep_s, 1)},
                **facts,
            ),
        ]


def _grid(options: Options) -> list[Point]:
    """Every setting of the sweep."""
    if options.toy:
        return [Point(num_workers=w, batch_size=16) for w in (0, 2)]
    return [
        Point(num_workers=w, batch_size=b, prefetch_factor=p)
        for w, b, p in itertools.product(_WORKERS, _BATCHES, _PREFETCH)
        if w or p == _PREFETCH[0]
    ]


def _best(target: Target, points: list[Point], visit_s: float) -> Point:
    """The fastest of ``points``, each visited twice in random order, the first eighth once more."""
    rates: dict[Point, list[float]] = {point: [] for point in points}
    for round_ in range(3):
        order = sorted(points, key=lambda point: -statistics.median(rates[point] or [0.0]))
        if round_ == 2:
            order = order[: max(2, len(order) // 8)]
        random.shuffle(order)
        for point in order:
            rates[point] += rates_of(target.loader(point), None, point, visit_s)
    return max(points, key=lambda point: statistics.median(rates[point]))


def _pairs(target: Target, one: Point, other: Point, rounds: int, visit_s: float) -> list[float]:
    """Ratios of the two settings' rates, measured alternately."""
    if one == other:
        return [1.0]
    ratios = []
    for _ in range(max(2, 2 * rounds)):
        rates = {}
        for point in random.sample((one, other), 2):
            rates[point] = statistics.median(rates_of(target.loader(point), None, point, visit_s))
        ratios.append(rates[one] / rates[other])
    return ratios


def _packed(variant: str, options: Options) -> Path:
    """The images, packed as they are."""
    small = variant == "small"
    count = (200 if small else 48) if options.toy else (10_000 if small else 1200)
    given = None if small else options.data
    images = data.jpegs(options.cache, data=given, count=count, small=small, say=options.say)
    path = options.cache / "stores" / f"tuning-{images.name}.lmdb"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        pack(images, path)
    return path
