"""cache and buckets: loaders of one process, which take turns within a round."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from bench.loaders._torchvision import transforms_v1
from bench.report import Row
from bench.suites.base import Figures, Options, Suite
from bench.suites.pairs import quotients, rate_of
from fastload import Buckets, FastLoader

_CACHES = ("ram", "shm", "dct", "decoded")
_BUCKETS = Buckets.around(256 * 256, step=32)


class Cache(Suite):
    name = "cache"
    summary = "FastLoader(cache=...) on loose files: the first epoch, later ones, bytes an image"
    variants = {"train": {}, "eval": {}, "small": {}}

    def run(self, variant: str, options: Options) -> list[Row]:
        images = "small" if variant == "small" else "photos"
        work = self.work(variant, options, images=images, recipe=variant)
        dataset = ImageFolder(work.images, transform=transforms_v1(work))

        def loader(cache: Any = None) -> FastLoader[Any]:
            how: dict[str, Any] = {"num_workers": work.threads, "shuffle": work.shuffled, "seed": 0}
            return FastLoader(dataset, batch_size=work.batch, cache=cache, **how)

        warmup_s = len(dataset) / rate_of(loader())  # sizes are read, files are in the page cache

        def measured(kind: str) -> tuple[float, float, int]:
            """Rates of the first and of a later epoch, and bytes an image."""
            cached = loader(kind if kind in _CACHES else None)
            rates = rate_of(cached), rate_of(cached)
            return *rates, cached.stats()["cache_nbytes"] // len(dataset)

        figures = Figures.of(work, options, warmup_s=warmup_s, round_s=0)  # one epoch, however long
        found = figures.in_turn(("none", *_CACHES), measured)
        for at, epoch in enumerate(("first", "later")):
            for kind in _CACHES:
                rates, plain = ([each[at] for each in found[name]] for name in (kind, "none"))
                setting = {
                    "cache": kind,
                    "images_per_s": [round(rate) for rate in rates],
                    "bytes_an_image": found[kind][-1][2],
                }
                metric = f"{epoch} epoch, cache={kind}"
                ratios = quotients(rates, plain)
                figures.add("fastload-folder", ratios, metric, "of no cache", setting=setting)
        return figures.rows


class BucketsSuite(Suite):
    """Batches of one aspect ratio, and the same images in mixed batches that are padded.

    The transform is the same for all: each image is resized and cropped to its bucket. With
    ``batch_by=`` a batch has images of one bucket; otherwise a ``collate_fn`` pads them to the
    largest height and width in the batch.
    """

    name = "buckets"
    summary = "photos of many aspect ratios: batches of one ratio, and mixed ones with padding"
    variants = {"photos": {}}

    def run(self, variant: str, options: Options) -> list[Row]:
        work = self.work(variant, options)
        tf = T.Compose([_BUCKETS.crop(), T.RandomHorizontalFlip(), T.ToTensor()])
        dataset = ImageFolder(work.images, transform=tf)
        arguments: dict[str, Any] = {
            "batch_size": work.batch,
            "shuffle": True,
            "num_workers": work.threads,
        }
        padded = {**arguments, "collate_fn": padding, "persistent_workers": True}
        loaders: dict[str, Any] = {
            "fastload-buckets": FastLoader(dataset, seed=0, batch_by=_BUCKETS, **arguments),
            "fastload-padded": FastLoader(dataset, seed=0, engine="torch", **padded),
            "torch-padded": DataLoader(dataset, **padded),
        }
        shares = {name: _share(loader) for name, loader in loaders.items()}  # and the warm-up
        setting = {"buckets": len(_BUCKETS.sizes), "num_workers": work.threads}
        figures = Figures.of(work, options)
        rates = figures.in_turn(loaders, lambda name: rate_of(loaders[name], options.seconds))
        for name, values in rates.items():
            figures.add(name, values, setting=setting)
            figures.add(name, [100 * shares[name]], "padding", "% of pixels", setting=setting)
        return figures.rows


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
