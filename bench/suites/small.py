"""small-images: 32 x 32 pixels, where the cost per image decides."""

from __future__ import annotations

from bench.report import Row
from bench.suites.base import Options, Suite, Variant, small
from bench.suites.race import race


class SmallImages(Suite):
    name = "small-images"
    summary = "32x32 images: RandomCrop(32, padding=4), flip, normalise; batch 256, shuffled"
    variants = {
        "jpeg": Variant(),
        "raw": Variant(pixels="raw"),
        "raw-channels_last": Variant(pixels="raw", memory_format="channels_last"),
        "dct": Variant(only_dct=True),
        "png": Variant(pixels="png"),
        "webp": Variant(pixels="webp"),
    }

    def run(self, variant: str, options: Options) -> list[Row]:
        work = small(self.name, variant, self.variants[variant], options)
        return race(work, self.loaders(variant, options), options, self.facts(work, options))
