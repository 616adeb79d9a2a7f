"""augment: common training recipes, all in the native core."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from bench import data
from bench.loaders import SCALED, WHERE
from bench.report import Row
from bench.suites.base import Options, Suite, Variant
from bench.suites.race import race

# Loaders that take torchvision's transforms: no other does these recipes.
_TAKE_PART = ("torch-pil", "torch-v2")


class Augment(Suite):
    name = "augment"
    summary = "RandomResizedCrop(224), flip; colours, policies, erasing, mixing; large photos"
    variants = {
        "plain": Variant(),
        "jitter": Variant(),
        "randaugment": Variant(),
        "trivialaugment": Variant(),
        "mixup": Variant(),
        "large": Variant(),
        "segmentation": Variant(),
    }

    def known(self) -> tuple[str, ...]:
        return (*WHERE, *SCALED)

    def loaders(self, variant: str, options: Options) -> list[str]:
        return [
            name
            for name in super().loaders(variant, options)
            if name in _TAKE_PART or name.startswith("fastload")
            if name not in SCALED or variant == "large"
        ]

    def run(self, variant: str, options: Options) -> list[Row]:
        if variant == "large":
            work = self.work(variant, options, images="large")
            options = dataclasses.replace(options, data=None)  # made in any case
        else:
            recipe = "train" if variant == "plain" else f"train-{variant}"
            work = self.work(variant, options, recipe=recipe)
        if variant == "segmentation":
            masks = data.masks(options.cache, Path(work.images), say=options.say)
            work = dataclasses.replace(work, masks=str(masks))
        return race(work, self.loaders(variant, options), options)
