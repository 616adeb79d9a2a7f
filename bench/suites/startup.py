"""startup: the time before a script's first batch."""

from __future__ import annotations

from bench.report import Row
from bench.suites.base import Figures, Options, Suite, Variant

_METRICS = (("import", "ms", "import_ms"), ("first batch", "s", "first_batch_s"))


class Startup(Suite):
    name = "startup"
    summary = (
        "fresh processes: import time beyond torch and torchvision, construction to first batch"
    )
    variants = {"float32": Variant()}

    def run(self, variant: str, options: Options) -> list[Row]:
        work = self.work(variant, options)
        figures = Figures(work, options)
        measured: dict[str, list[dict[str, float]]] = {name: [] for name in options.loaders}
        for number in range(options.rounds + 1):  # round 0 packs and warms the page cache
            for name in list(measured):
                rounds = measured.pop(name)  # gone if it refuses or fails
                with figures.process(name, "first batch", "s") as process:
                    took = process.call("make", work=work.to_json())
                    if number == 0:
                        process.call("prepare")
                    took |= process.call("first_epoch")
                    took["import_ms"] = 1000 * took["import_s"]
                    measured[name] = [*rounds, *[took] * (number > 0)]
            options.say(f"round {number} of {options.rounds} done")
        figures.add_all(_METRICS, measured)
        return figures.rows
