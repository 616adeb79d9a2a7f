"""cold: epochs whose data is not in the page cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bench import coldness
from bench.process import Process, Refused
from bench.report import SEQUENTIAL, Row
from bench.suites.base import Figures, Options, Suite, Variant

# An epoch is cold only if at most the first share of the data is in the page cache when it begins,
# and at least the second share has been read from the disk when it ends.
_RESIDENT = 0.05
_READ = 0.5

_METRICS = (("throughput", "images/s", "images_per_s"), ("first batch", "s", "first_batch_s"))


class Cold(Suite):
    name = "cold"
    summary = "imagenet-train, the data dropped from the page cache before each epoch"
    variants = {"float32": Variant()}

    def run(self, variant: str, options: Options) -> list[Row]:
        work = self.work(variant, options)
        figures = Figures(work, options)
        samples = work.samples()[0]
        nbytes = sum(Path(path).stat().st_size for path, _ in samples)
        plain = _plain_file(options.cache, nbytes)
        disk: list[float] = []
        measured: dict[str, list[dict[str, Any]]] = {}
        for name in options.loaders:
            disk.append(coldness.sequential_rate(plain))
            # One process at a time: pages that another process maps cannot be dropped.
            with figures.process(name) as process:
                process.call("make", work=work.to_json())
                process.call("prepare")
                options.say(f"{name}: reading")
                measured[name] = _epochs(process, options)
        for metric, unit, key in _METRICS:
            for name, epochs in measured.items():
                figures.add(
                    name,
                    metric,
                    unit,
                    [epoch[key] for epoch in epochs],
                    epochs[0]["setting"],
                    resident=max(epoch["resident"] for epoch in epochs),
                    read_mb=[round(epoch["nbytes_read"] / 1e6, 1) for epoch in epochs],
                )
            if metric == "throughput":
                rates = [rate * len(samples) / nbytes for rate in disk]
                setting = {"MB/s": round(float(np.median(disk)) / 1e6)}
                figures.add(SEQUENTIAL, metric, unit, rates, setting)
        return figures.rows


def _epochs(process: Process, options: Options) -> list[dict[str, Any]]:
    epochs = []
    for _ in range(options.rounds):
        epoch = process.call("cold_epoch", tuned=options.tuned.get(process.name))
        epochs.append(epoch)
        if options.toy:  # may be in a file system without a disk
            continue
        if epoch["resident"] > _RESIDENT:
            share = f"{epoch['resident']:.0%}"
            raise Refused(f"{share} of its data stays in the page cache: no cold epoch")
        if epoch["nbytes_read"] < _READ * epoch["nbytes"]:
            share = f"{epoch['nbytes_read'] / epoch['nbytes']:.0%}"
            raise Refused(f"it read {share} of its data from the disk: no cold epoch")
    return epochs


def _plain_file(cache: Path, nbytes: int) -> Path:
    """A file as large as all images, for a reader that does nothing but read."""
    path = cache / f"plain-{nbytes}"
    if not path.exists():
        partial = path.with_suffix(".partial")
        with open(partial, "wb") as file:
            random = np.random.default_rng(0)
            for at in range(0, nbytes, 1 << 20):
                file.write(random.bytes(min(1 << 20, nbytes - at)))
        partial.rename(path)
    return path
