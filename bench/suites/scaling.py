"""scaling: the training workload with 1, 2, 4 ... threads, and on two ranks at a time."""

from __future__ import annotations

import dataclasses
from typing import Any

from bench import reference
from bench.process import Failed, Process, Refused
from bench.report import Row, row
from bench.suites.base import Absent, Options, Suite, Variant, imagenet
from bench.suites.race import race
from bench.workload import Workload

_RANKS = 2


class Scaling(Suite):
    name = "scaling"
    summary = "imagenet-train with 1, 2, 4 ... --threads threads, or on two ranks (variant ranks)"
    variants = {
        "float32": Variant(),
        "dct": Variant(only_dct=True),
        "ranks": Variant(),
    }

    def run(self, variant: str, options: Options) -> list[Row]:
        if variant == "ranks":
            return self._ranks(variant, options)
        rows: list[Row] = []
        alone: dict[str, float] = {}
        for threads in _counts(options.threads):
            now = dataclasses.replace(options, threads=threads)
            name = f"{variant}, {threads} thread{'s' if threads > 1 else ''}"
            work = imagenet(self.name, "train", name, self.variants[variant], now)
            facts = self.facts(work, now)
            found = race(work, self.loaders(variant, options), now, facts, fresh=0)
            rows += found
            for one in found:
                if one["median"] is None:
                    continue
                base = alone.setdefault(one["loader"], one["median"])
                efficiency = row(
                    suite=self.name,
                    variant=name,
                    loader=one["loader"],
                    metric="efficiency against 1 thread",
                    unit="1",
                    values=[value / base / threads for value in one["values"]],
                    setting=one["setting"],
                    **facts,
                )
                rows.append(efficiency)
        return rows

    def _ranks(self, variant: str, options: Options) -> list[Row]:
        """Two processes read the same data with one thread each: together, against one alone."""
        now = dataclasses.replace(options, threads=1)
        work = imagenet(self.name, "train", variant, self.variants[variant], now)
        facts = {**self.facts(work, now), "ranks": _RANKS}
        absent = Absent(work, now, **facts)
        common = {"suite": self.name, "variant": f"{_RANKS} ranks of 1 thread", **facts}
        rates: list[Row] = []
        efficiencies: list[Row] = []
        for name in self.loaders(variant, options):
            processes = [Process(name) for _ in range(_RANKS)]
            try:
                setting, *_ = [_start(process, work, now) for process in processes]
                both, alone = [], []
                for _ in range(options.rounds):
                    processes[1].hold()
                    alone.append(processes[0].call("run", seconds=now.seconds)["images_per_s"])
                    for process in processes:
                        process.send("run", seconds=now.seconds)
                    both.append(sum(process.receive()["images_per_s"] for process in processes))
            except (Refused, Failed) as error:
                absent.note(name, error, processes[0], metric="throughput", unit="images/s")
                continue
            finally:
                for process in processes:
                    process.stop()
            options.say(f"{name}: done")
            rates.append(
                row(
                    loader=name,
                    metric="throughput",
                    unit="images/s",
                    values=both,
                    setting=setting,
                    **common,
                )
            )
            efficiencies.append(
                row(
                    loader=name,
                    metric="efficiency against 1 rank",
                    unit="1",
                    values=[a / b / _RANKS for a, b in zip(both, alone, strict=True)],
                    setting=setting,
                    **common,
                )
            )
        return rates + efficiencies + absent.rows


def _start(process: Process, work: Workload, options: Options) -> dict[str, Any]:
    """The setting that it chose in its warm-up."""
    process.call("make", work=work.to_json())
    process.call("prepare", fresh=options.fresh)
    found = process.call(
        "start",
        seconds=0.1,
        tries=1,
        reference=str(reference.make(work)),
        tuned=options.tuned.get(process.name),
    )
    setting: dict[str, Any] = found["setting"]
    return setting


def _counts(most: int) -> list[int]:
    """1, 2, 4 ... and ``most`` itself."""
    return sorted({min(2**power, most) for power in range(most.bit_length() + 1)})
