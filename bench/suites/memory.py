"""memory: the peak of a loader and its workers while batches are read."""

from __future__ import annotations

import time

from bench import memory
from bench.process import Failed, Process, Refused
from bench.report import Row, row
from bench.suites.base import Absent, Options, Suite, Variant, imagenet
from bench.workload import Workload

_METRICS = (
    ("anonymous and shared memory", "anon_shmem"),
    ("the same, beyond what the imports took", "beyond"),
    ("all memory, mapped files included", "pss"),
)


class Memory(Suite):
    name = "memory"
    summary = "the process tree while training batches are read: Pss_Anon + Pss_Shmem, and Pss"
    variants = {"float32": Variant(), "dct": Variant(only_dct=True)}

    def run(self, variant: str, options: Options) -> list[Row]:
        work = imagenet(self.name, "train", variant, self.variants[variant], options)
        facts = self.facts(work, options)
        absent = Absent(work, options, **facts)
        rows: list[Row] = []
        for name in self.loaders(variant, options):
            options.say(f"{name}: reading")
            peaks: list[dict[str, int]] = []
            with Process(name) as process:
                try:
                    process.call("make", work=work.to_json())
                    process.call("prepare", fresh=options.fresh)
                except (Refused, Failed) as error:
                    absent.note(name, error, process, metric=_METRICS[0][0], unit="MB")
                    continue
            for _ in range(options.rounds):
                with Process(name) as process:
                    try:
                        peaks.append(_peak(process, work, options))
                    except (Refused, Failed) as error:
                        absent.note(name, error, process, metric=_METRICS[0][0], unit="MB")
                        break
            else:
                rows += [
                    row(
                        suite=self.name,
                        variant=variant,
                        loader=name,
                        metric=metric,
                        unit="MB",
                        values=[peak[key] / 1e6 for peak in peaks],
                        setting={},
                        **facts,
                    )
                    for metric, key in _METRICS
                ]
        order = [metric for metric, _ in _METRICS]
        return sorted(rows, key=lambda found: order.index(found["metric"])) + absent.rows


def _peak(process: Process, work: Workload, options: Options) -> dict[str, int]:
    process.call("make", work=work.to_json())
    process.call("train")  # the same for all loaders: some import what others do not
    imported = memory.tree(process.pid)["anon_shmem"]
    process.call("open", setting=0)
    process.send("run", seconds=options.seconds)
    peak = memory.tree(process.pid)
    while not process.answered():
        now = memory.tree(process.pid)
        peak = {key: max(peak[key], now[key]) for key in peak}
        time.sleep(0.1)
    process.receive()
    return {**peak, "beyond": peak["anon_shmem"] - imported}
