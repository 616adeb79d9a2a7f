"""startup: the time before a script's first batch."""

from __future__ import annotations

from bench.report import Row
from bench.suites.base import Figures, Options, Suite, Variant

_METRICS = (
    ("import", "ms", "import_s", 1000.0),
    ("first batch", "s", "first_batch_s", 1.0),
)


class Startup(Suite):
    name = "startup"
    summary = (
        "fresh processes: import time beyond torch and torchvision, construction to first batch"
    )
    variants = {"float32": Variant()}

    def run(self, variant: str, options: Options) -> list[Row]:
        work = self.work(variant, options)
        figures = Figures(work, options)
        values: dict[str, dict[str, list[float]]] = {}
        for number in range(options.rounds + 1):  # round 0 packs and warms the page cache
            for name in options.loaders:
                if number and name not in values:
                    continue
                here = values.pop(name, {})  # gone if it refuses or fails
                with figures.process(name, "first batch", "s") as process:
                    took = process.call("make", work=work.to_json())
                    if number == 0:
                        process.call("prepare")
                    took |= process.call("first_epoch")
                    for _, _, key, factor in _METRICS if number else ():
                        here.setdefault(key, []).append(factor * took[key])
                    values[name] = here
            options.say(f"round {number} of {options.rounds} done")
        for metric, unit, key, _ in _METRICS:
            for name, measured in values.items():
                figures.add(name, metric, unit, measured[key])
        return figures.rows
