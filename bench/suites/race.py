"""The suites that race: images per second of several loaders on one workload, measured in turn."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import data, reference
from bench.loaders import SCALED, WHERE
from bench.process import Failed, Process, Refused
from bench.report import Row
from bench.suites.base import Figures, Options, Suite, Variant
from bench.workload import Workload

# The number of fresh processes in which each loader runs its first epoch.
_FRESH = 2


@dataclasses.dataclass(kw_only=True)
class _Runner:
    process: Process
    facts: dict[str, Any]
    setting: dict[str, Any]
    tuned: dict[str, Any]
    rates: list[float] = dataclasses.field(default_factory=list)


def race(work: Workload, names: Sequence[str], options: Options) -> list[Row]:
    """Each loader in its own process; every round runs each once, and stops the others meanwhile.

    The order changes from round to round, so that a machine that gets slower or faster treats all
    alike. Afterwards each runs the first epoch of new processes, with nothing remembered of the
    images but in the page cache.
    """
    figures = Figures(work, options)
    truth = reference.make(work)
    runners: list[_Runner] = []
    with contextlib.ExitStack() as processes:
        for name in names:
            process = processes.enter_context(Process(name))
            try:
                runners.append(_started(process, work, options, truth))
            except (Refused, Failed) as error:
                figures.none(name, error)
                process.stop()
        for number in range(options.rounds):
            turn = number % max(1, len(runners))
            for runner in runners[turn:] + runners[:turn]:
                try:
                    measured = runner.process.call("run", seconds=options.seconds)
                    runner.rates.append(measured["images_per_s"])
                    runner.process.hold()
                except Failed as error:
                    figures.none(runner.process.name, error)
                    runner.process.stop()
                    runners.remove(runner)
            options.say(f"round {number + 1} of {options.rounds} done")
        for runner in runners * min(_FRESH, options.rounds):
            with Process(runner.process.name) as process:
                process.call("make", work=work.to_json())
                epoch = process.call("first_epoch", setting=runner.tuned)
            runner.facts["first_epochs"].append(float(f"{epoch['images_per_s']:.5g}"))
        for runner in runners:
            name = runner.process.name
            figures.add(
                name, "throughput", "images/s", runner.rates, runner.setting, **runner.facts
            )
    return figures.rows


def _started(process: Process, work: Workload, options: Options, truth: Path) -> _Runner:
    made = process.call("make", work=work.to_json())
    options.say(f"{process.name}: warming up")
    process.call("prepare")
    started = process.call(
        "start",
        seconds=options.seconds / 2,
        tries=1 if options.toy else options.tries,
        reference=str(truth),
        tuned=options.tuned.get(process.name),
    )
    process.hold()
    setting = dict(started["setting"])
    if made["memory_format"] != work.memory_format or work.memory_format != "contiguous":
        setting["memory_format"] = made["memory_format"]
    facts = {"versions": made["versions"], "check": started["check"], "tried": started["tried"]}
    facts["first_epochs"] = []
    return _Runner(process=process, facts=facts, setting=setting, tuned=started["setting"])


# --- the suites -----------------------------------------------------------------------------------


class ImagenetTrain(Suite):
    name = "imagenet-train"
    summary = "photos: RandomResizedCrop(224), flip, normalise; batch 64, shuffled"
    images = "photos"
    recipe = "train"
    variants = {
        "float32": Variant(),
        "uint8": Variant(dtype="uint8"),
        "channels_last": Variant(memory_format="channels_last"),
        "png": Variant(pixels="png"),
        "webp": Variant(pixels="webp"),
    }

    def run(self, variant: str, options: Options) -> list[Row]:
        work = self.work(variant, options, images=self.images, recipe=self.recipe)
        return race(work, options.loaders, options)


class ImagenetEval(ImagenetTrain):
    name = "imagenet-eval"
    summary = "JPEG photos: Resize(256), CenterCrop(224), normalise; batch 64, in order"
    recipe = "eval"
    variants = {
        "float32": Variant(),
        "uint8": Variant(dtype="uint8"),
        "channels_last": Variant(memory_format="channels_last"),
    }


class RawTrain(ImagenetTrain):
    name = "raw-train"
    summary = "the training workload on raw pixels, 256 on the shorter side"
    variants = {
        "float32": Variant(pixels="raw"),
        "uint8": Variant(pixels="raw", dtype="uint8"),
        "channels_last": Variant(pixels="raw", memory_format="channels_last"),
    }


class SmallImages(ImagenetTrain):
    """The cost of each image decides."""

    name = "small-images"
    summary = "32x32 images: RandomCrop(32, padding=4), flip, normalise; batch 256, shuffled"
    images = "small"
    variants = {
        "jpeg": Variant(),
        "raw": Variant(pixels="raw"),
        "raw-channels_last": Variant(pixels="raw", memory_format="channels_last"),
        "png": Variant(pixels="png"),
        "webp": Variant(pixels="webp"),
    }


# Loaders that take torchvision's transforms: no other does the recipes of ``augment``.
_AUGMENTED = ("torch-pil", "torch-v2")


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
        names = [
            name
            for name in options.loaders
            if name in _AUGMENTED or name.startswith("fastload")
            if name not in SCALED or variant == "large"
        ]
        return race(work, names, options)
