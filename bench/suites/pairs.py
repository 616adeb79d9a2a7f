"""FastLoader and DataLoader over the same dataset, measured in turn."""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from torch.utils.data import DataLoader

from bench.report import Row, row
from bench.suites.base import Options
from fastload import FastLoader

T = TypeVar("T")

# Pairs of measurements, and Student's t for the 95 % interval of so many.
_PAIRS, _T = 12, 2.2

# If the interval reaches below 1, so many times the pairs are measured: else the smallest of many
# ratios would be the noisiest one.
_AGAIN = 2


def compare(
    dataset: Any,
    arguments: dict[str, Any],
    options: Options,
    *,
    theirs: Any,
    ours: dict[str, Any],
    **facts: Any,
) -> Row:
    """The row of how many times DataLoader's speed FastLoader has, with ``arguments`` of both.

    ``theirs``: DataLoader's dataset. ``ours``: further arguments of FastLoader. ``facts``: further
    fields of the row.
    """
    workers = arguments["num_workers"]
    with warnings.catch_warnings():
        # More workers than CPUs are part of what is measured.
        warnings.filterwarnings("ignore", "This DataLoader will create")
        torchs: Any = DataLoader(theirs, **arguments)
        fastloads: Any = FastLoader(dataset, **arguments, **ours)
        rates = _rates(torchs, fastloads, options)
    ratios = quotients(*rates)
    mean, low, high = interval(ratios)
    compared = row(
        metric="times DataLoader",
        unit="x",
        values=ratios,
        setting={
            "mean": mean,
            "interval_95": [low, high],
            "engine": fastloads.stats()["engine"],
            "samples_per_s": [round(statistics.median(rate), 1) for rate in rates],
            "workers": workers,
        },
        warmup_s=options.seconds / 4,
        round_s=options.seconds / 4,
        threads=max(1, workers),
        **facts,
        **options.machine,
    )
    del torchs, fastloads
    gc.collect()  # processes that persist are of the loaders
    return compared


def _rates(theirs: Any, ours: Any, options: Options) -> tuple[list[float], list[float]]:
    """Samples a second of FastLoader and of DataLoader, in pairs."""
    rates: tuple[list[float], list[float]] = ([], [])
    loaders = (ours, theirs)
    for loader in loaders:
        rate_of(loader)
    pairs = 2 if options.toy else max(_PAIRS, options.rounds)
    for _ in range(1 if options.toy else _AGAIN):
        measures = [partial(rate_of, loader, options.seconds / 4) for loader in loaders]
        for all_rates, more in zip(rates, in_turn(measures, pairs), strict=True):
            all_rates += more
        if interval(quotients(*rates))[1] >= 1:
            break
    return rates


def in_turn(
    measures: Sequence[Callable[[], T]], rounds: int, say: Callable[[str], None] | None = None
) -> list[list[T]]:
    """What each of them gives, by round; each round has an order of its own.

    A machine that gets slower or faster treats all alike; ratios are of neighbours in time.
    """
    found: list[list[T]] = [[] for _ in measures]
    for number in range(rounds):
        for which in random.sample(range(len(measures)), len(measures)):
            found[which].append(measures[which]())
        if say is not None:
            say(f"round {number + 1} of {rounds} done")
    return found


def quotients(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Round by round."""
    return [value / other for value, other in zip(values, others, strict=True)]


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """The geometric mean of ``ratios``, and its 95 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    mean, half = statistics.mean(logs), _T * statistics.stdev(logs) / len(logs) ** 0.5
    low, middle, high = (round(math.exp(value), 3) for value in (mean - half, mean, mean + half))
    return middle, low, high


def rate_of(loader: Any, seconds: float = 0) -> float:
    """Samples a second over whole epochs that take at least ``seconds``."""
    samples, begin = 0, time.perf_counter()
    while True:
        for batch in loader:
            samples += _samples(batch)
        elapsed = time.perf_counter() - begin
        if elapsed >= seconds:
            return samples / elapsed


def _samples(batch: Any) -> int:
    """How many samples a batch has: the length of its first tensor."""
    while isinstance(batch, (dict, list, tuple)):
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    return len(batch)
