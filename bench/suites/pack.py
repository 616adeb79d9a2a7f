"""pack: how fast each packed form is written, and how large it is.

fastload does not return before what it wrote is on the disk (fsync); FFCV's, WebDataset's,
LitData's and MosaicML's writers leave that to the system. Two rates are therefore given: until the
writer returns, and until its files are on the disk, for which the suite syncs the files of all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import loaders
from bench.report import Row
from bench.suites.base import Figures, Options, Suite, Variant
from bench.workload import Workload


class Pack(Suite):
    name = "pack"
    summary = "writing each packed form: images/s, and bytes on disk against the JPEGs"
    variants = {"photos": Variant(), "small": Variant()}

    def run(self, variant: str, options: Options) -> list[Row]:
        work = self.work(variant, options, images=variant)
        options.cache.mkdir(parents=True, exist_ok=True)
        figures = Figures(work, options)
        names = self._one_per_store(options.loaders)
        samples = work.samples()[0]
        count = len(samples)
        source = sum(Path(path).stat().st_size for path, _ in samples)
        for name, packed in _rounds(names, work, options, figures).items():
            for metric, key in (("pack", "seconds"), ("pack, on the disk", "durable_seconds")):
                figures.add(name, metric, "images/s", [count / each[key] for each in packed])
            figures.add(name, "size", "of the JPEGs", [each["nbytes"] / source for each in packed])
        return figures.rows

    def _one_per_store(self, names: Sequence[str]) -> list[str]:
        by_store: dict[str, str] = {}
        for name in names:
            with contextlib.suppress(ImportError):
                store = loaders.make(name).store
                if store is not None:
                    by_store.setdefault(store, name)
        return list(by_store.values())


def _rounds(
    names: Sequence[str], work: Workload, options: Options, figures: Figures
) -> dict[str, list[dict[str, float]]]:
    """The seconds of every round, writers in turn; the disk is idle before each."""
    packed: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for number in range(options.rounds):
        for name in list(packed):
            os.sync()
            with tempfile.TemporaryDirectory(prefix="pack-", dir=options.cache) as stores:
                here = dataclasses.replace(work, stores=stores)
                with figures.process(name, "pack") as process:
                    process.call("make", work=here.to_json())
                    packed[name].append(process.call("prepare"))
            if len(packed[name]) == number:  # it refused or failed
                del packed[name]
        options.say(f"round {number + 1} of {options.rounds} done")
    return packed
