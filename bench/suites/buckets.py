"""buckets: batches of one aspect ratio, and the same images in mixed batches that are padded.

The transform is the same for all: each image is resized and cropped to its bucket. With
``batch_by=`` a batch has images of one bucket; otherwise a ``collate_fn`` pads them to the largest
height and width in the batch. Loaders take turns within a round.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.utils.data import DataLoader

from bench.report import Row, row
from bench.suites.base import Options, Suite, Variant, imagenet
from fastload import Buckets, FastLoader

_PIXELS, _STEP = 256 * 256, 32


class BucketsSuite(Suite):
    name = "buckets"
    summary = "photos of many aspect ratios: batches of one ratio, and mixed ones with padding"
    variants = {"photos": Variant()}

    def run(self, variant: str, options: Options) -> list[Row]:
        from torchvision import transforms as T
        from torchvision.datasets import ImageFolder

        buckets = Buckets.around(_PIXELS, step=_STEP)
        work = imagenet(self.name, "train", variant, self.variants[variant], options)
        tf = T.Compose([buckets.crop(), T.RandomHorizontalFlip(), T.ToTensor()])
        dataset = ImageFolder(work.images, transform=tf)
        workers = max(1, options.threads)
        arguments: dict[str, Any] = {
            "batch_size": work.batch,
            "shuffle": True,
            "num_workers": workers,
        }
        padded = {**arguments, "collate_fn": padding, "persistent_workers": True}
        loaders: dict[str, Any] = {
            "fastload-buckets": FastLoader(dataset, seed=0, batch_by=buckets, **arguments),
            "fastload-padded": FastLoader(dataset, seed=0, engine="torch", **padded),
            "torch-padded": DataLoader(dataset, **padded),
        }
        shares = {name: _share(loader) for name, loader in loaders.items()}  # and the warm-up
        rates: dict[str, list[float]] = {name: [] for name in loaders}
        for number in range(options.rounds):
            for name, loader in loaders.items():
                rates[name].append(_rate(loader, options.seconds))
            options.say(f"round {number + 1} of {options.rounds} done")
        facts = self.facts(work, options)
        sizes = len(buckets.sizes)
        setting = {"buckets": sizes, "num_workers": workers}
        rows = []
        for name in loaders:
            for metric, unit, values in (
                ("throughput", "images/s", rates[name]),
                ("padding", "% of pixels", [100 * shares[name]]),
            ):
                rows.append(
                    row(
                        suite=self.name,
                        variant=variant,
                        loader=name,
                        metric=metric,
                        unit=unit,
                        values=values,
                        setting=setting,
                        **facts,
                    )
                )
        return rows


def padding(samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Images, padded to the largest height and width; labels; and how many pixels are no padding.

    Images are float32 (n, 3, h, w), labels int64 (n,).
    """
    images = [image for image, _ in samples]
    height, width = (max(image.shape[axis] for image in images) for axis in (1, 2))
    batch = torch.zeros(len(images), 3, height, width)
    for place, image in zip(batch, images):
        place[:, : image.shape[1], : image.shape[2]] = image
    labels = torch.tensor([label for _, label in samples])
    return batch, labels, sum(image.shape[1] * image.shape[2] for image in images)


def _share(loader: Any) -> float:
    """The share of the pixels of an epoch's batches that are padding."""
    used = whole = 0
    for images, _, *inside in loader:
        pixels = len(images) * images.shape[2] * images.shape[3]
        whole += pixels
        used += int(inside[0]) if inside else pixels
    return 1 - used / whole


def _rate(loader: Any, seconds: float) -> float:
    """Images a second over whole epochs that take at least ``seconds``."""
    images, begin = 0, time.perf_counter()
    while True:
        for batch in loader:
            images += len(batch[0])
        elapsed = time.perf_counter() - begin
        if elapsed >= seconds:
            return images / elapsed
