"""pack, startup, memory and cold: what a loader's whole process takes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench import coldness, loaders, memory
from bench.process import Process, Refused
from bench.report import SEQUENTIAL, Row
from bench.suites.base import Figures, Options, Suite, Variant


class Pack(Suite):
    """How fast each packed form is written, and how large it is.

    fastload does not return before what it wrote is on the disk (fsync); FFCV's, WebDataset's,
    LitData's and MosaicML's writers leave that to the system. Two rates are therefore given: until
    the writer returns, and until its files are on the disk, for which the files of all are synced.
    """

    name = "pack"
    summary = "writing each packed form: images/s, and bytes on disk against the JPEGs"
    variants = {"photos": Variant(), "small": Variant()}

    def run(self, variant: str, options: Options) -> list[Row]:
        work = self.work(variant, options, images=variant)
        options.cache.mkdir(parents=True, exist_ok=True)
        samples = work.samples()[0]
        source = sum(Path(path).stat().st_size for path, _ in samples)

        def packed(process: Process, number: int) -> dict[str, float]:
            os.sync()  # the disk is idle before each
            with tempfile.TemporaryDirectory(prefix="pack-", dir=options.cache) as stores:
                process.call("make", work=dataclasses.replace(work, stores=stores).to_json())
                done = process.call("prepare")
            return {
                "rate": len(samples) / done["seconds"],
                "durable": len(samples) / done["durable_seconds"],
                "size": done["nbytes"] / source,
            }

        by_store: dict[str, str] = {}
        for name in options.loaders:
            with contextlib.suppress(ImportError):
                store = loaders.make(name).store
                if store is not None:
                    by_store.setdefault(store, name)
        metrics = (
            ("pack", "images/s", "rate"),
            ("pack, on the disk", "images/s", "durable"),
            ("size", "of the JPEGs", "size"),
        )
        figures = Figures(work, options)
        figures.in_turn(list(by_store.values()), metrics, packed, first=1)
        return figures.rows


class Startup(Suite):
    """The time before a script's first batch."""

    name = "startup"
    summary = (
        "fresh processes: import time beyond torch and torchvision, construction to first batch"
    )
    variants = {"float32": Variant()}

    def run(self, variant: str, options: Options) -> list[Row]:
        work = self.work(variant, options)

        def started(process: Process, number: int) -> dict[str, float]:
            made = process.call("make", work=work.to_json())
            if number == 0:
                process.call("prepare")
            first: dict[str, float] = process.call("first_epoch")
            return {"import_ms": 1000 * made["import_s"], **first}

        metrics = (("first batch", "s", "first_batch_s"), ("import", "ms", "import_ms"))
        figures = Figures(work, options)
        figures.in_turn(options.loaders, metrics, started)
        return figures.rows


class Memory(Suite):
    """The peak of a loader and its workers while batches are read."""

    name = "memory"
    summary = "the process tree while training batches are read: Pss_Anon + Pss_Shmem, and Pss"
    variants = {"float32": Variant()}

    def run(self, variant: str, options: Options) -> list[Row]:
        work = self.work(variant, options)

        def peak(process: Process, number: int) -> dict[str, float]:
            """In megabytes."""
            process.call("make", work=work.to_json())
            if number == 0:
                process.call("prepare")
            process.call("train")  # the same for all loaders: some import what others do not
            imported = memory.tree(process.pid)["anon_shmem"]
            process.call("open", setting=0)
            process.send("run", seconds=options.seconds if number else 0)
            peak = memory.tree(process.pid)
            while not process.answered():
                now = memory.tree(process.pid)
                peak = {key: max(peak[key], now[key]) for key in peak}
                time.sleep(0.1)
            process.receive()
            found = {**peak, "beyond": peak["anon_shmem"] - imported}
            return {key: nbytes / 1e6 for key, nbytes in found.items()}

        metrics = (
            ("anonymous and shared memory", "MB", "anon_shmem"),
            ("the same, beyond what the imports took", "MB", "beyond"),
            ("all memory, mapped files included", "MB", "pss"),
        )
        figures = Figures(work, options)
        figures.in_turn(options.loaders, metrics, peak)
        return figures.rows


# An epoch is cold only if at most the first share of the data is in the page cache when it begins,
# and at least the second share has been read from the disk when it ends.
_RESIDENT = 0.05
_READ = 0.5


class Cold(Suite):
    """Epochs whose data is not in the page cache."""

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
            disk.append(coldness.sequential_rate(plain) * len(samples) / nbytes)
            # One process at a time: pages that another process maps cannot be dropped.
            with figures.process(name) as process:
                process.call("make", work=work.to_json())
                process.call("prepare")
                options.say(f"{name}: reading")
                tuned = options.tuned.get(name)
                measured[name] = [_cold(process, options, tuned) for _ in range(options.rounds)]
        for metric, unit, key in (
            ("throughput", "images/s", "images_per_s"),
            ("first batch", "s", "first_batch_s"),
        ):
            for name, epochs in measured.items():
                facts = {
                    "resident": max(epoch["resident"] for epoch in epochs),
                    "read_mb": [round(epoch["nbytes_read"] / 1e6, 1) for epoch in epochs],
                }
                values = [epoch[key] for epoch in epochs]
                figures.add(name, metric, unit, values, epochs[0]["setting"], **facts)
            if metric == "throughput":
                setting = {"MB/s": round(float(np.median(disk)) / len(samples) * nbytes / 1e6)}
                figures.add(SEQUENTIAL, metric, unit, disk, setting)
        return figures.rows


def _cold(process: Process, options: Options, tuned: dict[str, Any] | None) -> dict[str, Any]:
    epoch: dict[str, Any] = process.call("cold_epoch", tuned=tuned)
    read = epoch["nbytes_read"] / epoch["nbytes"]
    if options.toy:  # may be in a file system without a disk
        return epoch
    if epoch["resident"] > _RESIDENT:
        share = f"{epoch['resident']:.0%}"
        raise Refused(f"{share} of its data stays in the page cache: no cold epoch")
    if read < _READ:
        raise Refused(f"it read {read:.0%} of its data from the disk: no cold epoch")
    return epoch


def _plain_file(cache: Path, nbytes: int) -> Path:
    """A file as large as all images, for a reader that does nothing but read."""
    path = cache / f"plain-{nbytes}"
    if not path.exists():
        partial = path.with_suffix(".partial")
        partial.write_bytes(np.random.default_rng(0).bytes(nbytes))
        partial.rename(path)
    return path
