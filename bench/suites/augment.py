"""augment: the recipes that people train with, whole in the native core."""

from __future__ import annotations

from bench.report import Row
from bench.suites.base import Options, Suite, Variant, imagenet
from bench.suites.race import race

# Loaders that take torchvision's transforms: no other does these recipes.
_TAKE_PART = ("torch-pil", "torch-v2")


class Augment(Suite):
    name = "augment"
    summary = "RandomResizedCrop(224), flip, then colours, policies and erasing; batch 64, shuffled"
    variants = {
        "plain": Variant(),
        "jitter": Variant(),
        "randaugment": Variant(),
        "trivialaugment": Variant(),
    }

    def loaders(self, variant: str, options: Options) -> list[str]:
        return [
            name
            for name in super().loaders(variant, options)
            if name in _TAKE_PART or name.startswith("fastload")
        ]

    def run(self, variant: str, options: Options) -> list[Row]:
        recipe = "train" if variant == "plain" else f"train-{variant}"
        work = imagenet(self.name, recipe, variant, self.variants[variant], options)
        return race(work, self.loaders(variant, options), options, self.facts(work, options))
