"""pack, startup, memory and cold: what a loader's whole process takes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import time
from pathlib import Path

from bench import loaders, memory
from bench.process import Process, Refused, loading
from bench.report import Row
from bench.suites.base import RATE, Figures, Options, Suite
from bench.suites.race import start


class Pack(Suite):
    """Two rates, as not every writer syncs its files: until it returns, and until all is synced."""

    name = "pack"
    summary = "writing each packed form: images/s, and bytes on disk against the JPEGs"
    variants = {"photos": {}, "small": {}}

    def run(self, variant: str, options: Options) -> list[Row]:
        work = self.work(variant, options, images=variant)
        options.cache.mkdir(parents=True, exist_ok=True)
        samples = work.samples()[0]
        source = sum(Path(path).stat().st_size for path, _ in samples)

        def packed(name: str) -> dict[str, float]:
            os.sync()  # the disk is idle before each
            with tempfile.TemporaryDirectory(prefix="pack-", dir=options.cache) as stores:
                with loading(name, dataclasses.replace(work, stores=stores)) as process:
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
        figures = Figures.of(work, options, metrics)
        figures.add_all(figures.in_turn(by_store.values(), packed))
        return figures.rows


class Startup(Suite):
    name = "startup"
    summary = (
        "fresh processes: import time beyond torch and torchvision, construction to first batch"
    )
    variants = {"float32": {}}

    def run(self, variant: str, options: Options) -> list[Row]:
        work = self.work(variant, options)

        def started(name: str) -> dict[str, float]:
            with loading(name, work) as process:
                first: dict[str, float] = process.call("first_epoch")
                return {"import_ms": 1000 * process.made["import_s"], **first}

        metrics = (("first batch", "s", "first_batch_s"), ("import", "ms", "import_ms"))
        figures = Figures.of(work, options, metrics)
        # A first round counts for nothing: what is compiled once is compiled then.
        warm = figures.in_turn(figures.prepared(work), started, 1)
        figures.add_all(figures.in_turn(warm, started))
        return figures.rows


class Memory(Suite):
    name = "memory"
    summary = "the process tree while batches are read, at its peak: Pss_Anon + Pss_Shmem, and Pss"
    variants = {"float32": {}}

    def run(self, variant: str, options: Options) -> list[Row]:
        work = self.work(variant, options)

        def peak(name: str) -> dict[str, float]:
            """In megabytes."""
            with loading(name, work) as process:
                process.call("train")  # the same for all loaders: some import what others do not
                imported = memory.tree(process.pid)["anon_shmem"]
                process.call("open")
                process.send("run", seconds=options.seconds)
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
        figures = Figures.of(work, options, metrics)
        figures.add_all(figures.in_turn(figures.prepared(work), peak))
        return figures.rows


# An epoch is cold only if it reads at least this share of its data from the disk.
_READ = 0.9


class Cold(Suite):
    name = "cold"
    summary = "imagenet-train, the data dropped from the page cache before each epoch"
    variants = {"float32": {}}

    def run(self, variant: str, options: Options) -> list[Row]:
        work = self.work(variant, options)

        def epochs(name: str) -> list[dict[str, float]]:
            """All rounds: pages that another process maps cannot be dropped."""
            with loading(name, work) as process:
                setting = start(process, work, options)["setting"]
                return [_cold(process, setting, options) for _ in range(options.rounds)]

        figures = Figures.of(work, options, (*RATE, ("first batch", "s", "first_batch_s")))
        found = figures.in_turn(options.loaders, epochs, 1)
        figures.add_all({name: rounds for name, (rounds,) in found.items()})
        return figures.rows


def _cold(process: Process, setting: dict[str, object], options: Options) -> dict[str, float]:
    epoch: dict[str, float] = process.call("cold_epoch", setting=setting)
    if epoch["read"] < _READ and not options.toy:  # it may have no disk
        raise Refused(f"it read {epoch['read']:.0%} of its data from the disk: no cold epoch")
    return epoch
