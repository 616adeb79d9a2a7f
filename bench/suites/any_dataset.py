"""any-dataset: a user's own Dataset through FastLoader and through DataLoader, in turn."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from bench import data
from bench import datasets as own
from bench.report import Row, missing
from bench.suites.base import Options, Suite, Variant
from bench.suites.pairs import compare


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Own(Variant):
    """A user's own dataset.

    ``make`` makes it of JPEG files; without ``files``, of so many samples. ``count``, ``batch``:
    samples of an epoch, and of a batch. ``small``: the files have 32 x 32 pixels. ``needs``:
    libraries that fastload does not install.
    """

    make: Callable[[Any], Any]
    count: int = 384
    batch: int = 64
    files: bool = True
    small: bool = False
    needs: tuple[str, ...] = ()


class AnyDataset(Suite):
    name = "any-dataset"
    summary = "a user's own datasets and datasets in memory: FastLoader against DataLoader"
    variants = {
        "pil": _Own(make=own.Photos),
        "train": _Own(make=lambda files: own.Trained(files, own.train_transform()), count=700),
        "stream": _Own(make=lambda files: own.Streamed(files, own.train_transform()), count=700),
        "two-views": _Own(make=lambda files: own.Trained(files, own.train_transform(), views=2)),
        "ten-crops": _Own(
            make=lambda files: own.Trained(files, own.ten_crops()), count=96, batch=16
        ),
        "image-and-mask": _Own(make=own.Segmented),
        "numpy": _Own(make=own.Arrays),
        "albumentations": _Own(
            make=functools.partial(own.Albumented, cv2=False), needs=("albumentations",)
        ),
        "cv2": _Own(
            make=functools.partial(own.Albumented, cv2=True), needs=("albumentations", "cv2")
        ),
        "small-jpegs": _Own(
            make=lambda files: own.Trained(files, own.small_transform()),
            count=4096,
            batch=128,
            small=True,
        ),
        "huggingface": _Own(make=own.hugging_face),
        "arrays": _Own(make=own.Ready, count=1536, batch=256, files=False),
        "nested": _Own(make=own.Nested, count=4096, batch=128, files=False),
        "cifar": _Own(make=own.cifar, count=10_000, batch=256, files=False),
        "mnist": _Own(make=own.mnist, count=10_000, batch=256, files=False),
        "tensors": _Own(make=own.tensors, count=10_000, batch=256, files=False),
    }

    def run(self, variant: str, options: Options) -> list[Row]:
        kind = self.variants[variant]
        count, batch = (24, 8) if options.toy else (kind.count, kind.batch)
        facts: dict[str, Any] = {"suite": self.name, "variant": variant, "loader": "fastload"}
        absent = [name for name in kind.needs if find_spec(name) is None]
        if absent:
            reason = f"{' and '.join(absent)} not installed: pip install albumentations"
            return [missing(**facts, metric="times DataLoader", unit="x", reason=reason)]
        if kind.files:
            images = data.jpegs(
                options.cache,
                data=options.data,
                count=48 if options.toy else kind.count if kind.small else 1200,
                small=kind.small,
                say=options.say,
            )
            files = data.files(images)[:count]
            count = len(files)
        dataset: Any = kind.make(files if kind.files else count)
        if variant == "image-and-mask":
            dataset.masks = data.files(data.masks(options.cache, images, say=options.say))
        theirs, ours = None, {}
        if variant == "huggingface":  # as people write it, and as its documentation says
            theirs, ours = (
                dataset.with_transform(own.transformed),
                {"transform": own.train_transform()},
            )
        facts |= {"batch": batch, "images": count}
        facts["data"] = "given" if options.data and kind.files else "made"
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
