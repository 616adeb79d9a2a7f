"""The suites that race: images per second of several loaders on one workload, measured in turn."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

from bench.check import reference
from bench.loaders import SCALED, WHERE
from bench.process import Process, loading
from bench.report import Row
from bench.suites.base import Figures, Options, Suite
from bench.workload import Workload

# The number of fresh processes in which each loader runs its first epoch.
_FRESH = 2


def race(work: Workload, names: Sequence[str], options: Options) -> list[Row]:
    """Each loader in its own process; every round runs each once, and stops the others meanwhile.

    Afterwards each runs the first epoch of new processes, with nothing remembered of the images but
    in the page cache.
    """
    figures = Figures.of(work, options)
    with contextlib.ExitStack() as stack:
        processes: dict[str, Process] = {}

        def started(name: str) -> dict[str, Any]:
            processes[name] = stack.enter_context(loading(name, work))
            begun = start(processes[name], work, options)
            processes[name].hold()
            return begun

        def rate(name: str) -> float:
            measured = processes[name].call("run", seconds=options.seconds)
            processes[name].hold()
            return float(measured["images_per_s"])

        def first_rate(name: str) -> float:
            with loading(name, work) as process:
                epoch = process.call("first_epoch", setting=begun[name][0]["setting"])
            return float(f"{epoch['images_per_s']:.5g}")

        begun = figures.in_turn(names, started, 1)
        rates = figures.in_turn(begun, rate)
        fresh = figures.in_turn(rates, first_rate, min(_FRESH, options.rounds))
        for name, first_epochs in fresh.items():
            facts = {"versions": processes[name].made["versions"], "first_epochs": first_epochs}
            figures.add(name, rates[name], **begun[name][0], **facts)
    return figures.rows


def start(process: Process, work: Workload, options: Options) -> dict[str, Any]:
    """Pack, tune and check the loader; its best setting, and what was found of its output."""
    options.say(f"{process.name}: warming up")
    started: dict[str, Any] = process.call(
        "start",
        seconds=options.seconds / 2,
        tries=1 if options.toy else options.tries,
        reference=str(reference(work)),
    )
    return started


# --- the suites -----------------------------------------------------------------------------------


class ImagenetTrain(Suite):
    name = "imagenet-train"
    summary = "photos: RandomResizedCrop(224), flip, normalise; batch 64, shuffled"
    images = "photos"
    recipe = "train"
    variants = {
        "float32": {},
        "uint8": {"dtype": "uint8"},
        "channels_last": {"memory_format": "channels_last"},
        "png": {"pixels": "png"},
        "webp": {"pixels": "webp"},
    }

    def run(self, variant: str, options: Options) -> list[Row]:
        work = self.work(variant, options, images=self.images, recipe=self.recipe)
        return race(work, options.loaders, options)


class ImagenetEval(ImagenetTrain):
    name = "imagenet-eval"
    summary = "JPEG photos: Resize(256), CenterCrop(224), normalise; batch 64, in order"
    recipe = "eval"
    variants = {"float32": {}}


class RawTrain(ImagenetTrain):
    name = "raw-train"
    summary = "the training workload on raw pixels, 256 on the shorter side"
    variants = {
        "float32": {"pixels": "raw"},
        "channels_last": {"pixels": "raw", "memory_format": "channels_last"},
    }


class SmallImages(ImagenetTrain):
    name = "small-images"
    summary = "32x32 images: RandomCrop(32, padding=4), flip, normalise; batch 256, shuffled"
    images = "small"
    variants = {
        "jpeg": {},
        "raw": {"pixels": "raw"},
        "png": {"pixels": "png"},
        "webp": {"pixels": "webp"},
    }


# Loaders that take torchvision's transforms: no other does the recipes of ``augment``.
_AUGMENTED = ("torch-pil", "torch-v2")


class Augment(Suite):
    name = "augment"
    summary = "RandomResizedCrop(224), flip; colours, policies, erasing, mixing; large photos"
    variants = {
        name: {} for name in ("plain", "jitter", "randaugment", "trivialaugment", "mixup", "large")
    }
    loaders = (*WHERE, *SCALED)

    def run(self, variant: str, options: Options) -> list[Row]:
        if variant == "large":
            work = self.work(variant, options, images="large")
            options = dataclasses.replace(options, data=None)  # made in any case
        else:
            recipe = "train" if variant == "plain" else f"train-{variant}"
            work = self.work(variant, options, recipe=recipe)
        names = [
            name
            for name in options.loaders
            if name in _AUGMENTED or name.startswith("fastload")
            if name not in SCALED or variant == "large"
        ]
        return race(work, names, options)
