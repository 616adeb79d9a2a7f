"""The workload of one run: the same images, batch and output for every loader."""

from __future__ import annotations

import dataclasses
from pathlib import Path

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """One task, as plain values, so that it travels to other processes as JSON.

    Attributes:
        suite, variant: names, for the report.
        images: folder with one subfolder per class, as torchvision's ImageFolder reads it.
        pixels: "jpeg" (files as cameras write them), "png" or "webp" (the same pictures; WebP is
            lossy), or "raw" (the folder holds BMP files, and packed loaders may store bare pixels).
        recipe: "train" = RandomResizedCrop + flip, "eval" = Resize + CenterCrop in file order,
            "small" = RandomCrop out of 4 pixels of padding + flip; "train-jitter" = train +
            ColorJitter(0.4, 0.4, 0.4, 0.1), "train-randaugment" = train + RandAugment, and
            RandomErasing behind Normalize, "train-trivialaugment" = train + TrivialAugmentWide,
            "train-mixup" = train, and MixUp or CutMix of each batch, whose labels are then
            (batch, classes).
        size: side of the output in pixels.
        resize: shorter side before the centre crop; only "eval" uses it.
        batch: images per batch; an incomplete last batch is dropped.
        threads: threads or worker processes that may decode.
        dtype: "float32" (divided by 255, normalised by MEAN and STD) or "uint8".
        memory_format: "contiguous" (NCHW) or "channels_last".
        stores: folder where packed copies are kept between runs.
        device: where DALI decodes: "cpu" or "cuda".
    """

    suite: str
    variant: str
    images: str
    recipe: str
    size: int
    resize: int
    batch: int
    threads: int
    pixels: str = "jpeg"
    dtype: str = "float32"
    memory_format: str = "contiguous"
    stores: str = ""
    device: str = "cpu"

    @property
    def shuffled(self) -> bool:
        return self.recipe != "eval"

    def samples(self) -> tuple[list[tuple[str, int]], list[str]]:
        """The files in ImageFolder's order with their labels, and the class names."""
        root = Path(self.images)
        classes = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
        samples = [
            (str(path), label)
            for label, name in enumerate(classes)
            for path in sorted((root / name).iterdir())
        ]
        return samples, classes
