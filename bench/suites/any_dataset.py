"""any-dataset: a user's own Dataset through FastLoader and through DataLoader, in turn."""

from __future__ import annotations

import math
import random
import statistics
import time
from importlib.util import find_spec
from typing import Any

from torch.utils.data import DataLoader

from bench import data
from bench.datasets import MADE, NEEDED, OPENED, Segmented, train_transform, transformed
from bench.report import Row, missing, row
from bench.suites.base import Options, Suite, Variant
from fastload import FastLoader

# By variant: samples of an epoch, and of a batch.
_SIZES = {
    "pil": (384, 64),
    "train": (700, 64),
    "two-views": (384, 64),
    "image-and-mask": (384, 64),
    "numpy": (384, 64),
    "albumentations": (384, 64),
    "cv2": (384, 64),
    "small-jpegs": (4096, 128),
    "huggingface": (384, 64),
    "arrays": (1536, 256),
    "nested": (4096, 128),
    "cifar": (10_000, 256),
    "mnist": (10_000, 256),
    "tensors": (10_000, 256),
}

# Pairs of epochs, and Student's t for the 95 % interval of so many; more pairs have a smaller one.
_PAIRS, _T = 12, 2.2


class AnyDataset(Suite):
    name = "any-dataset"
    summary = "a user's own datasets and datasets in memory: FastLoader against DataLoader"
    variants = {name: Variant() for name in _SIZES}

    def run(self, variant: str, options: Options) -> list[Row]:
        count, batch = (24, 8) if options.toy else _SIZES[variant]
        absent = [name for name in NEEDED.get(variant, ()) if find_spec(name) is None]
        if absent:
            return [
                missing(
                    suite=self.name,
                    variant=variant,
                    loader="fastload",
                    metric="times DataLoader",
                    unit="x",
                    reason=f"{' and '.join(absent)} not installed: pip install albumentations",
                )
            ]
        opens = variant in OPENED or variant == "image-and-mask"
        if opens:
            small = variant == "small-jpegs"
            images = data.jpegs(
                options.cache,
                data=options.data,
                count=48 if options.toy else 4096 if small else 1200,
                small=small,
                say=options.say,
            )
            files = data.files(images)[:count]
            dataset: Any
            if variant == "image-and-mask":
                masks = data.files(data.masks(options.cache, images, say=options.say))
                dataset = Segmented(files, masks[:count])
            else:
                dataset = OPENED[variant](files)
        else:
            dataset = MADE[variant](count)
        rows = []
        for workers in (0, options.threads):
            facts = {
                "threads": max(1, workers),
                "batch": batch,
                "images": len(dataset),
                "data": "given" if options.data and opens else "made",
                "warmup_s": options.seconds,
                "round_s": options.seconds,
                **options.machine,
            }
            rows += _rows(self.name, variant, dataset, batch, workers, options, facts)
            options.say(f"{workers} workers done")
        return rows


def _rows(
    suite: str,
    variant: str,
    dataset: Any,
    batch: int,
    workers: int,
    options: Options,
    facts: dict[str, Any],
) -> list[Row]:
    """The speed of both loaders with ``workers``, and how many times faster ours is."""
    arguments: dict[str, Any] = {
        "batch_size": batch,
        "shuffle": True,
        "num_workers": workers,
        "persistent_workers": workers > 0,
    }
    theirs, more = dataset, {}
    if variant == "huggingface":  # as people write it, and as its documentation says
        theirs, more = dataset.with_transform(transformed), {"transform": train_transform()}
    loaders = {
        "torch": DataLoader(theirs, **arguments),
        "fastload": FastLoader(dataset, **arguments, **more),
    }
    for loader in loaders.values():
        _rate(loader, 0.0)
    pairs = 2 if options.toy else max(_PAIRS, options.rounds)
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    for _ in range(pairs):
        for name in random.sample(list(loaders), 2):
            rates[name].append(_rate(loaders[name], options.seconds / 4))
    ratios = [ours / theirs for ours, theirs in zip(rates["fastload"], rates["torch"], strict=True)]
    logs = [math.log(ratio) for ratio in ratios]
    mean, half = statistics.mean(logs), _T * statistics.stdev(logs) / len(logs) ** 0.5
    setting = {"workers": workers, "engine": loaders["fastload"].stats()["engine"]}
    found = [
        row(
            suite=suite,
            variant=variant,
            loader=name,
            metric="throughput",
            unit="samples/s",
            values=values,
            setting=setting if name == "fastload" else {"workers": workers},
            **facts,
        )
        for name, values in rates.items()
    ]
    interval = [round(math.exp(mean - half), 3), round(math.exp(mean + half), 3)]
    return [
        *found,
        row(
            suite=suite,
            variant=variant,
            loader="fastload",
            metric="times DataLoader",
            unit="x",
            values=ratios,
            setting={**setting, "mean": round(math.exp(mean), 3), "interval_95": interval},
            **facts,
        ),
    ]


def _rate(loader: Any, seconds: float) -> float:
    """Samples a second over whole epochs that take at least ``seconds``."""
    samples, begin = 0, time.perf_counter()
    while True:
        for _ in loader:
            pass
        samples += len(loader.dataset)
        elapsed = time.perf_counter() - begin
        if elapsed >= seconds:
            return samples / elapsed
