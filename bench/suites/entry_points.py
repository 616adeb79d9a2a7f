"""entry-points: the CPU time of decoding JPEGs from remembered rows, and from their first byte."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

from bench.loaders._torchvision import transforms_v1
from bench.report import Row, row
from bench.suites.base import Options, Suite, Variant, imagenet, large, small
from bench.workload import Workload
from fastload import FastLoader, _native
from fastload._engine import native
from fastload.storage.base import Store

_KINDS = ("with", "without")


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
        later = {name: _loader(work, decode) for name in _KINDS}
        for name, loader in later.items():
            _cpu_us(loader, 0, name)
        warmup_s = time.perf_counter() - begin
        first: dict[str, list[float]] = {name: [] for name in _KINDS}
        spent: dict[str, list[float]] = {name: [] for name in _KINDS}
        for number in range(options.rounds):
            for name in random.sample(_KINDS, 2):
                first[name].append(_cpu_us(_loader(work, decode), 0, name))
                spent[name].append(_cpu_us(later[name], number + 1, name))
            options.say(f"round {number + 1} of {options.rounds} done")
        samples, _ = work.samples()
        known = later["with"].stats()["entry_points_nbytes"]
        cost = [
            remembering / without
            for remembering, without in zip(first["with"], first["without"], strict=True)
        ]
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
            [
                without / remembering
                for remembering, without in zip(spent["with"], spent["without"], strict=True)
            ],
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
                    "first_epoch": round(statistics.median(cost), 3),
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


def _cpu_us(loader: FastLoader[Any], epoch: int, name: str) -> float:
    """CPU microseconds for each image of ``epoch``, "with" entry points or "without"."""
    loader.set_epoch(epoch)
    with _no_entry_points() if name == "without" else nullcontext():
        begin = time.process_time()
        images = sum(len(batch) for batch, _ in loader)
        return (time.process_time() - begin) / images * 1e6


@contextmanager
def _no_entry_points() -> Iterator[None]:
    """The engine that a loader makes in its first epoch has a table without memory."""
    core = _native.load()
    if core is None:
        raise _native.missing()

    def empty(store: Store) -> Any:
        return core.EntryTable(len(store), 0)

    with mock.patch.object(native, "table_of", empty):
        yield
