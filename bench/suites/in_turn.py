"""cache, entry-points and buckets: loaders of one process, which take turns within a round."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch.utils.data import DataLoader

from bench.loaders._torchvision import transforms_v1
from bench.report import Row
from bench.suites.base import Figures, Options, Suite
from bench.suites.pairs import quotients, rate_of
from bench.workload import Workload
from fastload import Buckets, FastLoader, _native
from fastload._engine import native
from fastload.storage.base import Store

_CACHES = ("ram", "shm", "dct", "decoded")
_WITH, _WITHOUT = "with", "without"
_BUCKETS = Buckets.around(256 * 256, step=32)


class Cache(Suite):
    """The cost of each FastLoader cache in the first epoch, and its gain in later ones."""

    name = "cache"
    summary = "FastLoader(cache=...) on loose files: the first epoch, later ones, bytes an image"
    variants = {"train": {}, "eval": {}, "small": {}}

    def run(self, variant: str, options: Options) -> list[Row]:
        images = "small" if variant == "small" else "photos"
        work = self.work(variant, options, images=images, recipe=variant)
        dataset = _folder(work)
        # Sizes are read, files are in the page cache.
        warmup_s = len(dataset) / rate_of(_loader(dataset, work))

        def measured(kind: str) -> tuple[float, float, int]:
            """Rates of the first and of a later epoch, and bytes an image."""
            loader = _loader(dataset, work, cache=kind if kind in _CACHES else None)
            rates = rate_of(loader), rate_of(loader)
            return *rates, loader.stats()["cache_nbytes"] // len(dataset)

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


class EntryPoints(Suite):
    """The CPU time of decoding JPEGs from remembered rows, and from their first byte."""

    name = "entry-points"
    summary = "CPU time of later epochs with entry points of JPEGs and without, in turn, one thread"
    variants = {name: {} for name in ("train", "eval", "large", "large-scaled", "small")}

    def run(self, variant: str, options: Options) -> list[Row]:
        images, _, scaled = variant.partition("-")
        if images == "large":
            options = dataclasses.replace(options, data=None)  # made in any case
        if images in ("train", "eval"):
            work = self.work(variant, options, recipe=images, count=300)
        else:
            work = self.work(variant, options, images=images)
        decode = scaled or "exact"

        def loader() -> FastLoader[Any]:
            """One over a dataset of its own: entry points belong to the dataset."""
            return _loader(_folder(work), work, num_workers=0, decode=decode, engine="native")

        later = {name: loader() for name in (_WITH, _WITHOUT)}
        warmup_us = sum(_cpu_us(later[name], 0, name) for name in later)
        epochs = {name: itertools.count(1) for name in later}

        def measured(name: str) -> tuple[float, float]:
            """Of a first and of a later epoch."""
            return _cpu_us(loader(), 0, name), _cpu_us(later[name], next(epochs[name]), name)

        count = len(work.samples()[0])
        warmup_s = warmup_us * count / 1e6
        figures = Figures.of(work, options, threads=1, warmup_s=warmup_s, round_s=0)  # one epoch
        found = figures.in_turn(later, measured)
        first, spent = (
            {name: [each[at] for each in found[name]] for name in later} for at in (0, 1)
        )
        setting = {
            "first_epoch": round(statistics.median(quotients(first[_WITH], first[_WITHOUT])), 3),
            "bytes_an_image": later[_WITH].stats()["entry_points_nbytes"] // count,
        }
        for name, values in spent.items():
            metric = f"CPU time, {name} entry points"
            figures.add("fastload-folder", values, metric, "us an image", setting=setting)
        gain = quotients(spent[_WITHOUT], spent[_WITH])
        figures.add("fastload-folder", gain, "gain of entry points", "x", setting=setting)
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
        from torchvision import transforms as T
        from torchvision.datasets import ImageFolder

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


def _folder(work: Workload) -> Any:
    from torchvision.datasets import ImageFolder

    return ImageFolder(work.images, transform=transforms_v1(work))


def _loader(dataset: Any, work: Workload, **options: Any) -> FastLoader[Any]:
    given = {"num_workers": work.threads, **options}
    return FastLoader(dataset, batch_size=work.batch, shuffle=work.shuffled, seed=0, **given)


def _cpu_us(loader: FastLoader[Any], epoch: int, name: str) -> float:
    """CPU microseconds for each image of ``epoch``, "with" entry points or "without"."""
    loader.set_epoch(epoch)
    with _no_entry_points() if name == _WITHOUT else nullcontext():
        begin = time.process_time()
        images = sum(len(batch) for batch, _ in loader)
        return (time.process_time() - begin) / images * 1e6


@contextmanager
def _no_entry_points() -> Iterator[None]:
    """The engine that a loader makes in its first epoch has a table without memory."""
    core = _native.load()
    if core is None:
        raise _native.missing()

    def empty(store: Store) -> Any:
        return core.EntryTable(len(store), 0)

    with mock.patch.object(native, "table_of", empty):
        yield
