"""any-dataset: a user's own Dataset through FastLoader and through DataLoader, in turn."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from bench import data
from bench.datasets import MADE, NEEDED, OPENED, Segmented, train_transform, transformed
from bench.report import Row, missing
from bench.suites.base import Options, Suite, Variant
from bench.suites.pairs import compare

# By variant: samples of an epoch, and of a batch.
_SIZES = {
    "pil": (384, 64),
    "train": (700, 64),
    "stream": (700, 64),
    "two-views": (384, 64),
    "image-and-mask": (384, 64),
    "numpy": (384, 64),
    "albumentations": (384, 64),
    "cv2": (384, 64),
    "small-jpegs": (4096, 128),
    "huggingface": (384, 64),
    "arrays": (1536, 256),
    "nested": (4096, 128),
    "cifar": (10_000, 256),
    "mnist": (10_000, 256),
    "tensors": (10_000, 256),
}


class AnyDataset(Suite):
    name = "any-dataset"
    summary = "a user's own datasets and datasets in memory: FastLoader against DataLoader"
    variants = {name: Variant() for name in _SIZES}

    def run(self, variant: str, options: Options) -> list[Row]:
        count, batch = (24, 8) if options.toy else _SIZES[variant]
        facts: dict[str, Any] = {"suite": self.name, "variant": variant, "loader": "fastload"}
        absent = [name for name in NEEDED.get(variant, ()) if find_spec(name) is None]
        if absent:
            reason = f"{' and '.join(absent)} not installed: pip install albumentations"
            return [missing(**facts, metric="times DataLoader", unit="x", reason=reason)]
        opens = variant in OPENED or variant == "image-and-mask"
        if opens:
            small = variant == "small-jpegs"
            images = data.jpegs(
                options.cache,
                data=options.data,
                count=48 if options.toy else 4096 if small else 1200,
                small=small,
                say=options.say,
            )
            files = data.files(images)[:count]
            count = len(files)
        dataset: Any
        if variant == "image-and-mask":
            masks = data.files(data.masks(options.cache, images, say=options.say))
            dataset = Segmented(files, masks[:count])
        else:
            dataset = OPENED[variant](files) if opens else MADE[variant](count)
        theirs, ours = None, {}
        if variant == "huggingface":  # as people write it, and as its documentation says
            theirs, ours = dataset.with_transform(transformed), {"transform": train_transform()}
        facts |= {"batch": batch, "images": count}
        facts["data"] = "given" if options.data and opens else "made"
        rows = []
        for workers in (0, options.threads):
            arguments = {
                "batch_size": batch,
                "shuffle": variant != "stream",
                "num_workers": workers,
                "persistent_workers": workers > 0,
            }
            rows.append(compare(dataset, arguments, options, theirs=theirs, ours=ours, **facts))
            options.say(f"{workers} workers done")
        return rows
