"""FastLoader and DataLoader over the same dataset, compared and then measured in turn."""

from __future__ import annotations

import gc
import hashlib
import math
import multiprocessing
import os
import random
import resource
import statistics
import time
import warnings
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader

from bench.datasets import Given
from bench.report import TIMES, Row
from bench.suites.base import Figures, Options
from fastload import FastLoader

# Pairs of measurements, and Student's t for the 95 % interval of so many.
_PAIRS, _T = 12, 2.2

# If the interval reaches below 1, so many times the pairs are measured: else the smallest of many
# ratios would be the noisiest one.
_AGAIN = 2


def compare(
    given: Given,
    options: Options,
    *,
    loader: str,
    batch: int,
    workers: int,
    persistent: bool = True,
    **facts: Any,
) -> Row:
    """The row of how many times DataLoader's speed FastLoader has; batches are compared before.

    ``persistent``: worker processes outlive an epoch, which is not to be one of starting them.
    ``loader``: its name in the row. ``facts``: further fields of that.
    """
    if options.toy:
        batch, workers = min(batch, 8), min(workers, 2)
    arguments = {
        "num_workers": workers,
        "persistent_workers": persistent and workers > 0,
        **given.arguments,
    }
    if "batch_sampler" not in arguments:
        arguments["batch_size"] = batch
    seconds = options.seconds / 4
    facts |= {"threads": max(1, workers), "batch": batch}
    figures = Figures(options, warmup_s=seconds, round_s=seconds, **facts)
    with warnings.catch_warnings():
        # More workers than CPUs are part of what is measured, and so are arguments for a GPU.
        warnings.filterwarnings("ignore", "This DataLoader will create")
        warnings.filterwarnings("ignore", "'pin_memory' argument is set as true")
        loaders: dict[str, Any] = {
            "ours": FastLoader(given.dataset, **arguments, **given.ours),
            "theirs": DataLoader(given.theirs, **arguments),
        }
        checked = _checked(loaders["theirs"], loaders["ours"])

        def spent(name: str) -> tuple[float, float]:
            return _spent(loaders[name], batch, seconds)

        found: dict[str, list[tuple[float, float]]] = {name: [] for name in loaders}
        for _ in range(1 if options.toy else _AGAIN):
            pairs = 2 if options.toy else max(_PAIRS, options.rounds)
            for name, more in figures.in_turn(loaders, spent, pairs).items():
                found[name] += more
            rates, cpu_s = (
                [[each[at] for each in found[name]] for name in loaders] for at in (0, 1)
            )
            ratios = quotients(*rates)
            mean, low, high = interval(ratios)
            if low >= 1:
                break
    setting = {
        "mean": mean,
        "interval_95": [low, high],
        "engine": loaders["ours"].stats()["engine"],
        "samples_per_s": [round(statistics.median(rate), 1) for rate in rates],
        "cpu": round(1 / statistics.median(quotients(*cpu_s)), 2),
        "checked": checked,
        "workers": workers,
    }
    figures.add(loader, ratios, TIMES, "x", setting=setting)
    options.say(
        f"{loader}, {workers} workers: {mean} times DataLoader ({low} to {high}), "
        f"{setting['cpu']} times less CPU time; {checked}; {setting['engine']}"
    )
    loaders.clear()
    gc.collect()  # processes that persist are of the loaders
    return figures.rows[0]


# --- what is measured -----------------------------------------------------------------------------


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
        samples += sum(len(images) for images, *_ in loader)
        elapsed = time.perf_counter() - begin
        if elapsed >= seconds:
            return samples / elapsed


def _spent(loader: Any, batch: int, seconds: float) -> tuple[float, float]:
    """Samples a second, and CPU seconds a sample, over whole epochs of at least ``seconds``.

    Batches of any structure are taken to have ``batch`` samples.
    """
    samples, begin, before = 0, time.perf_counter(), _cpu_s()
    while True:
        for _ in loader:
            samples += batch
        elapsed = time.perf_counter() - begin
        if elapsed >= seconds:
            return samples / elapsed, max(1e-9, _cpu_s() - before) / samples


def _cpu_s() -> float:
    """CPU seconds that this process and its workers, those that ended too, have spent."""
    workers = multiprocessing.active_children()  # it also waits for those that ended
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    spent = sum(each.ru_utime + each.ru_stime for each in both)
    for child in workers:
        fields = Path(f"/proc/{child.pid}/stat").read_text().rsplit(")", 1)[1].split()
        spent += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return spent


# --- what is compared -----------------------------------------------------------------------------


def _checked(theirs: Any, ours: Any) -> str:
    """Compare an epoch of both from the same seed, and say what is equal.

    Raises AssertionError if they differ in what FastLoader promises.
    """
    epochs = _epoch(theirs), _epoch(ours)
    native, equal = ours.stats()["engine"] == "native", True
    for number, (one, other) in enumerate(zip_longest(*epochs)):
        for expected, got in zip(one, other, strict=True):
            if expected != got:
                # An engine that knows the transform draws its own random numbers.
                drawn = isinstance(got, _Array) and got[:-1] == expected[:-1]
                assert native and drawn and len(got.shape) > 2, (
                    f"batch {number} differs: {got!r} instead of {expected!r}"
                )
                equal = False
    return "equal batches" if equal else "the same samples, its own random numbers"


def _epoch(loader: Any) -> list[list[Any]]:
    """What is in each batch of an epoch from a known seed: a digest of each array, or the value."""
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    transform: Any = getattr(loader.dataset, "transform", None)
    if hasattr(transform, "set_random_seed"):  # Albumentations, which has its own generators
        transform.set_random_seed(1)
    return [[_described(leaf) for leaf in _leaves(batch)] for batch in loader]


class _Array(NamedTuple):
    kind: type
    shape: tuple[int, ...]
    dtype: torch.dtype
    digest: str


def _described(leaf: Any) -> Any:
    kind, array = type(leaf), leaf
    if isinstance(leaf, np.ndarray):
        array = torch.from_numpy(leaf)
    if not isinstance(array, torch.Tensor):
        return leaf
    values = array.detach().reshape(-1).view(torch.uint8).numpy()
    return _Array(kind, tuple(array.shape), array.dtype, hashlib.sha256(values.data).hexdigest())


def _leaves(batch: Any) -> list[Any]:
    if isinstance(batch, dict):
        return [leaf for part in batch.values() for leaf in _leaves(part)]
    if isinstance(batch, list | tuple):
        return [leaf for part in batch for leaf in _leaves(part)]
    if isinstance(batch, torch.Tensor | np.ndarray | np.generic) or not hasattr(batch, "__dict__"):
        return [batch]
    return [leaf for part in vars(batch).values() for leaf in _leaves(part)]
