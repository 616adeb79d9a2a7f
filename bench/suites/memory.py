"""memory: the peak of a loader and its workers while batches are read."""

from __future__ import annotations

import time

from bench import memory
from bench.process import Process
from bench.report import Row
from bench.suites.base import Figures, Options, Suite, Variant

_METRICS = (
    ("anonymous and shared memory", "MB", "anon_shmem"),
    ("the same, beyond what the imports took", "MB", "beyond"),
    ("all memory, mapped files included", "MB", "pss"),
)


class Memory(Suite):
    name = "memory"
    summary = "the process tree while training batches are read: Pss_Anon + Pss_Shmem, and Pss"
    variants = {"float32": Variant()}

    def run(self, variant: str, options: Options) -> list[Row]:
        work = self.work(variant, options)
        figures = Figures(work, options)
        measured: dict[str, list[dict[str, float]]] = {}
        for name in options.loaders:
            options.say(f"{name}: reading")
            peaks: list[dict[str, float]] = []
            for number in range(options.rounds + 1):  # round 0 packs
                with figures.process(name, _METRICS[0][0], "MB") as process:
                    process.call("make", work=work.to_json())
                    if number:
                        peaks.append(_peak(process, options))
                    else:
                        process.call("prepare")
                    continue
                break  # it refused or failed
            else:
                measured[name] = peaks
        figures.add_all(_METRICS, measured)
        return figures.rows


def _peak(process: Process, options: Options) -> dict[str, float]:
    """In megabytes."""
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
    found = {**peak, "beyond": peak["anon_shmem"] - imported}
    return {key: nbytes / 1e6 for key, nbytes in found.items()}
