"""entry-points: the CPU time of decoding JPEGs from remembered rows, and from their first byte."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from bench.loaders._torchvision import transforms_v1
from bench.report import Row, row
from bench.suites.base import Options, Suite, Variant, imagenet, large, small
from bench.workload import Workload
from fastload import FastLoader, _native
from fastload._engine import native
from fastload.storage.base import Store


class EntryPoints(Suite):
    name = "entry-points"
    summary = "CPU time of later epochs with entry points of JPEGs and without, in turn, one thread"
    variants = {
        "train": Variant(),
        "eval": Variant(),
        "large": Variant(),
        "large-scaled": Variant(),
        "small": Variant(),
    }

    def run(self, variant: str, options: Options) -> list[Row]:
        work, given = self._work(variant, options)
        decode = "scaled" if variant == "large-scaled" else "exact"
        begin = time.perf_counter()
        remembers = _loader(work, decode)
        first_with = _cpu_us(remembers, 0)
        with _no_entry_points():
            forgets = _loader(work, decode)
            first_without = _cpu_us(forgets, 0)
        loaders = {"with": remembers, "without": forgets}
        warmup_s = time.perf_counter() - begin
        spent: dict[str, list[float]] = {name: [] for name in loaders}
        for number in range(options.rounds):
            for name in random.sample(list(loaders), 2):
                spent[name].append(_cpu_us(loaders[name], number + 1))
            options.say(f"round {number + 1} of {options.rounds} done")
        samples, _ = work.samples()
        known = remembers.stats()["entry_points_nbytes"]
        assert not forgets.stats()["entry_points_nbytes"]
        facts = {
            **self.facts(work, options),
            "data": "given" if given else "made",
            "threads": 1,
            "warmup_s": warmup_s,
            "round_s": sum(map(sum, spent.values())) * len(samples) / 1e6 / options.rounds / 2,
        }
        figures = {
            f"CPU time, {name} entry points": ("us an image", values)
            for name, values in spent.items()
        }
        figures["gain of entry points"] = (
            "x",
            [without / mine for mine, without in zip(*spent.values(), strict=True)],
        )
        return [
            row(
                suite=self.name,
                variant=variant,
                loader="fastload-folder",
                metric=metric,
                unit=unit,
                values=values,
                setting={
                    "first_epoch": round(first_with / first_without, 3),
                    "bytes_an_image": known // len(samples),
                },
                **facts,
            )
            for metric, (unit, values) in figures.items()
        ]

    def _work(self, variant: str, options: Options) -> tuple[Workload, bool]:
        """The workload, and whether its images are the user's."""
        if variant.startswith("large"):
            return large(self.name, variant, options), False
        spec, given = self.variants[variant], options.data is not None
        if variant == "small":
            return small(self.name, variant, spec, options), given
        return imagenet(self.name, variant, variant, spec, options, count=300), given


def _loader(work: Workload, decode: Any) -> FastLoader[Any]:
    """A loader over a dataset of its own: entry points belong to the dataset."""
    from torchvision.datasets import ImageFolder

    dataset = ImageFolder(work.images, transform=transforms_v1(work))
    return FastLoader(
        dataset,
        batch_size=work.batch,
        shuffle=work.shuffled,
        seed=0,
        num_workers=0,
        decode=decode,
        engine="native",
    )


def _cpu_us(loader: FastLoader[Any], epoch: int) -> float:
    """CPU microseconds for each image of ``epoch``."""
    loader.set_epoch(epoch)
    begin = time.process_time()
    images = sum(len(batch) for batch, _ in loader)
    return (time.process_time() - begin) / images * 1e6


@contextmanager
def _no_entry_points() -> Iterator[None]:
    """Engines that are made meanwhile have tables without memory."""
    core = _native.load()
    if core is None:
        raise _native.missing()

    def empty(store: Store) -> Any:
        return core.EntryTable(len(store), 0)

    with mock.patch.object(native, "table_of", empty):
        yield
