"""autotune and auto: the settings that fastload chooses, against all settings.

``autotune`` measures all settings of a grid, runs autotune ten times in a sixth of that time, and
then measures each of its choices and the grid's best again, side by side. ``auto`` does the same
with ``num_workers="auto"`` after 200 batches, on loops that wait for different things.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from bench import data
from bench.report import Row, row
from bench.suites.base import Options, Suite, Variant
from fastload import FastLoader, autotune, pack
from fastload._run.point import Point
from fastload._tools.tuning.meter import rates_of
from fastload._tools.tuning.target import Target, target_of

_WORKERS = (0, 1, 2, 3, 4, 8)
_BATCHES = (16, 32, 64, 128, 256, 512)
_PREFETCH = (2, 4)
_VISITS_S = {"photos": 0.5, "small": 0.15}  # a batch takes 16 ms, and one of small images 1 ms
_SETTLED = 200  # batches after which num_workers="auto" has found its setting


class Autotune(Suite):
    name = "autotune"
    summary = "ten runs of autotune against the best of an exhaustive sweep, measured side by side"
    variants = {"photos": Variant(), "small": Variant()}

    def run(self, variant: str, options: Options) -> list[Row]:
        target = target_of(str(packed(variant, options)))
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
        facts = described(target, options, visit_s)
        common = {"suite": self.name, "variant": variant, "loader": "fastload-lmdb"}
        return [
            row(
                **common,
                metric="choice",
                unit="of the sweep's best",
                values=[ratios[choice] for choice in choices],
                setting={"best": str(best), "chosen": [str(choice) for choice in choices]},
                **facts,
            ),
            row(
                **common,
                metric="time",
                unit="of the sweep's",
                values=[seconds / sweep_s for seconds in spent],
                setting={"sweep_s": round(sweep_s, 1)},
                **facts,
            ),
        ]


class Auto(Suite):
    name = "auto"
    summary = 'num_workers="auto" against the best fixed number, on loops that wait differently'
    variants = {
        "slow decode": Variant(),
        "slow disk": Variant(),
        "heavy step": Variant(),
        "little memory": Variant(),
    }

    def run(self, variant: str, options: Options) -> list[Row]:
        target, step, most = self._loop(variant, options)
        visit_s = 0.02 if options.toy else 0.5
        batch = 16 if variant in ("slow disk", "little memory") else 32
        fixed = [Point(num_workers=w, batch_size=batch) for w in _WORKERS if 0 < w <= most]
        best = _best(target, fixed, visit_s, step)
        # Epochs of one length for both: processes are started anew for each.
        order = {**target.options, **_order(target, batch)}
        loader = FastLoader(target.dataset, num_workers="auto", **order)
        constant = FastLoader(target.dataset, **{**order, **best.arguments()})
        governor = loader.inspect().governor
        assert governor is not None
        if most < max(_WORKERS):
            governor.most = dataclasses.replace(governor.most, workers=most)
            governor._start_over()
        _settle(loader, step, 8 if options.toy else _SETTLED)
        decided = len(governor.decisions)
        ratios: list[float] = []
        for _ in range(max(2, options.rounds)):
            for automatic in random.sample((True, False), 2):
                made = loader if automatic else constant
                setting = Point(num_workers=loader.num_workers or 1, batch_size=batch)
                rate = statistics.median(rates_of(made, step, setting, visit_s))
                if automatic:
                    mine = rate
                else:
                    other = rate
            ratios.append(mine / other)
        interval = 1.96 * statistics.stdev(ratios) / len(ratios) ** 0.5
        return [
            row(
                suite=self.name,
                variant=variant,
                loader="fastload",
                metric="automatic",
                unit="of the best fixed number",
                values=ratios,
                setting={
                    "best": str(best),
                    "workers": governor.setting.workers,
                    "mean": round(statistics.mean(ratios), 3),
                    "interval_95": round(interval, 3),
                    "changes_after_200_batches": len(governor.decisions) - decided,
                },
                **described(target, options, visit_s),
            )
        ]

    def _loop(
        self, variant: str, options: Options
    ) -> tuple[Target, Callable[[Any], Any] | None, int]:
        """What is loaded, the step, and the most workers there may be."""
        if variant == "slow disk":
            return target_of(_Waiting(0.005)), None, max(_WORKERS)
        if variant == "little memory":
            return target_of(_Waiting(0.005)), None, 2
        target = target_of(str(packed("photos", options)))
        if variant == "heavy step":
            return target, lambda batch: time.sleep(0.05), max(_WORKERS)
        return target, None, max(_WORKERS)


class _Waiting(Dataset[torch.Tensor]):
    """Each sample waits as for a slow disk."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __len__(self) -> int:
        return 400  # batches of 16: epochs of 25, between which processes change

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._seconds)
        return torch.zeros(3, 32, 32)


def _settle(loader: FastLoader, step: Callable[[Any], Any] | None, batches: int) -> None:
    """Read ``batches`` batches, in as many epochs as that takes."""
    left = batches
    while left > 0:
        for batch in loader:
            if step is not None:
                step(batch)
            left -= 1
            if left <= 0:
                break


def _order(target: Target, batch: int) -> dict[str, Any]:
    """A sampler that makes epochs long for threads, and as long as the dataset for processes."""
    if not target.native():
        return {"batch_size": batch, "shuffle": True}
    sampler = target.loader(Point(num_workers=0, batch_size=1)).sampler
    return {"batch_size": batch, "sampler": sampler}


def _grid(options: Options) -> list[Point]:
    """Every setting of the sweep."""
    if options.toy:
        return [Point(num_workers=w, batch_size=16) for w in (0, 2)]
    return [
        Point(num_workers=w, batch_size=b, prefetch_factor=p)
        for w, b, p in itertools.product(_WORKERS, _BATCHES, _PREFETCH)
        if w or p == _PREFETCH[0]
    ]


def _best(
    target: Target,
    points: list[Point],
    visit_s: float,
    step: Callable[[Any], Any] | None = None,
) -> Point:
    """The fastest of ``points``, each visited twice in random order, the first eighth once more."""
    rates: dict[Point, list[float]] = {point: [] for point in points}
    for round_ in range(3):
        order = sorted(points, key=lambda point: -statistics.median(rates[point] or [0.0]))
        if round_ == 2:
            order = order[: max(2, len(order) // 8)]
        random.shuffle(order)
        for point in order:
            rates[point] += rates_of(target.loader(point), step, point, visit_s)
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


def packed(variant: str, options: Options) -> Path:
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


def described(target: Target, options: Options, visit_s: float) -> dict[str, Any]:
    return {
        "threads": options.threads,
        "images": len(target),
        "data": "given" if options.data else "made",
        "warmup_s": visit_s,
        "round_s": visit_s,
        **options.machine,
    }
