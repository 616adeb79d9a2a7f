"""pack: how fast each packed form is written, and how large it is."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import tempfile
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
        rows: list[Row] = []
        options.cache.mkdir(parents=True, exist_ok=True)
        for name in self._one_per_store(self.loaders(variant, options)):
            absent = Absent(work, options, **facts)
            found = _rounds(name, work, options, absent)
            rows += absent.rows
            if found is None:
                continue
            seconds, nbytes = found
            images = len(work.samples()[0])
            source = sum(Path(path).stat().st_size for path, _ in work.samples()[0])
            for metric, unit, values in (
                ("pack", "images/s", [images / value for value in seconds]),
                ("size", "of the JPEGs", [value / source for value in nbytes]),
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
    name: str, work: Workload, options: Options, absent: Absent
) -> tuple[list[float], list[float]] | None:
    seconds, nbytes = [], []
    options.say(f"{name}: packing")
    for _ in range(options.rounds):
        stores = tempfile.mkdtemp(prefix="pack-", dir=options.cache)
        here = dataclasses.replace(work, stores=stores)
        with Process(name) as process:
            try:
                process.call("make", work=here.to_json())
                found = process.call("prepare", fresh=True)
            except (Refused, Failed) as error:
                absent.note(name, error, process, metric="pack", unit="images/s")
                return None
            finally:
                shutil.rmtree(stores, ignore_errors=True)
        seconds.append(found["seconds"])
        nbytes.append(found["nbytes"])
    return seconds, nbytes
