"""formats: the same images from every format, through FastLoader."""

from __future__ import annotations

from collections.abc import Sequence

from bench.loaders import FORMATS
from bench.report import Row, row
from bench.suites.base import Options, Suite, Variant
from bench.suites.race import race


class Formats(Suite):
    name = "formats"
    summary = "the same images from every format through FastLoader: no format is slower to read"
    variants = {
        "encoded": Variant(),
        "raw": Variant(pixels="raw", square=True),
        "small": Variant(),
        "small-raw": Variant(pixels="raw", square=True),
    }

    def known(self) -> tuple[str, ...]:
        return ("fastload-lmdb", "fastload-lmdb-raw", *FORMATS)

    def loaders(self, variant: str, options: Options) -> list[str]:
        raw = self.variants[variant].pixels == "raw"
        return [name for name in options.loaders if name.endswith("-raw") == raw]

    def run(self, variant: str, options: Options) -> list[Row]:
        images = "small" if variant.startswith("small") else "photos"
        work = self.work(variant, options, images=images)
        rows = race(work, self.loaders(variant, options), options)
        return rows + _shares(rows)


def _shares(rows: Sequence[Row]) -> list[Row]:
    """Each format's rate as a share of the fastest format's, round by round."""
    measured = [found for found in rows if found["median"]]
    if not measured:
        return []
    best = max(measured, key=lambda found: float(found["median"]))
    kept = {"suite", "variant", "loader", "setting"}
    left_out = {"metric", "unit", "median", "min", "max", "rounds", "values"} | kept
    return [
        row(
            **{name: found[name] for name in kept},
            metric="of the fastest",
            unit="x",
            values=[
                value / other for value, other in zip(found["values"], best["values"], strict=False)
            ],
            **{name: value for name, value in found.items() if name not in left_out},
        )
        for found in measured
    ]
