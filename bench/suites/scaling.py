"""scaling: the training workload with 1, 2, 4 ... threads."""

from __future__ import annotations

import dataclasses

from bench.report import Row, row
from bench.suites.base import Options, Suite, Variant, imagenet
from bench.suites.race import race


class Scaling(Suite):
    name = "scaling"
    summary = "imagenet-train with 1, 2, 4 ... --threads threads"
    variants = {"float32": Variant(), "dct": Variant(only_dct=True)}

    def run(self, variant: str, options: Options) -> list[Row]:
        rows: list[Row] = []
        alone: dict[str, float] = {}
        for threads in _counts(options.threads):
            now = dataclasses.replace(options, threads=threads)
            name = f"{variant}, {threads} thread{'s' if threads > 1 else ''}"
            work = imagenet(self.name, "train", name, self.variants[variant], now)
            facts = self.facts(work, now)
            found = race(work, self.loaders(variant, options), now, facts)
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


def _counts(most: int) -> list[int]:
    """1, 2, 4 ... and ``most`` itself."""
    return sorted({min(2**power, most) for power in range(most.bit_length() + 1)})
