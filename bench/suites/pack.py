"""pack: how fast each packed form is written, and how large it is.

fastload does not return before what it wrote is on the disk (fsync); FFCV's, WebDataset's,
LitData's and MosaicML's writers leave that to the system. Two rates are therefore given: until the
writer returns, and until its files are on the disk, for which the suite syncs the files of all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import loaders
from bench.process import Failed, Process, Refused
from bench.report import Row, row
from bench.suites.base import Absent, Options, Suite, Variant, imagenet, small
from bench.workload import Workload


class Pack(Suite):
    name = "pack"
    summary = "writing each packed form: images/s, and bytes on disk against the JPEGs"
    variants = {"photos": Variant(), "small": Variant()}

    def run(self, variant: str, options: Options) -> list[Row]:
        spec = self.variants[variant]
        if variant == "small":
            work = small(self.name, variant, spec, options)
        else:
            work = imagenet(self.name, "train", variant, spec, options)
        facts = self.facts(work, options)
        options.cache.mkdir(parents=True, exist_ok=True)
        absent = Absent(work, options, **facts)
        found = _rounds(self._one_per_store(self.loaders(variant, options)), work, options, absent)
        images = len(work.samples()[0])
        source = sum(Path(path).stat().st_size for path, _ in work.samples()[0])
        rows = list(absent.rows)
        for name, packed in found.items():
            for metric, unit, values in (
                ("pack", "images/s", [images / one["seconds"] for one in packed]),
                (
                    "pack, on the disk",
                    "images/s",
                    [images / one["durable_seconds"] for one in packed],
                ),
                ("size", "of the JPEGs", [one["nbytes"] / source for one in packed]),
            ):
                rows.append(
                    row(
                        suite=self.name,
                        variant=variant,
                        loader=name,
                        metric=metric,
                        unit=unit,
                        values=values,
                        setting={},
                        **facts,
                    )
                )
        return rows

    def _one_per_store(self, names: list[str]) -> list[str]:
        found: dict[str, str] = {}
        for name in names:
            with contextlib.suppress(ImportError):
                store = loaders.make(name).store
                if store is not None:
                    found.setdefault(store, name)
        return list(found.values())


def _rounds(
    names: Sequence[str], work: Workload, options: Options, absent: Absent
) -> dict[str, list[dict[str, float]]]:
    """The seconds of every round, writers in turn; the disk is idle before each."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for number in range(options.rounds):
        for name in list(found):
            stores = tempfile.mkdtemp(prefix="pack-", dir=options.cache)
            here = dataclasses.replace(work, stores=stores)
            os.sync()
            with Process(name) as process:
                try:
                    process.call("make", work=here.to_json())
                    found[name].append(process.call("prepare", fresh=True))
                except (Refused, Failed) as error:
                    absent.note(name, error, process, metric="pack", unit="images/s")
                    del found[name]
                finally:
                    shutil.rmtree(stores, ignore_errors=True)
        options.say(f"round {number + 1} of {options.rounds} done")
    return found
