"""any-dataset and never-slower: FastLoader and DataLoader over the same dataset, in turn."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torchvision import transforms
from torchvision.datasets import ImageFolder

from bench import data
from bench import datasets as own
from bench.datasets import Given, Stream, Tiny, small_transform, train_transform
from bench.process import missing
from bench.report import TIMES, Row
from bench.suites.base import Figures, Options, Suite
from bench.suites.pairs import compare

_Make = Callable[[Options], Any]


@dataclasses.dataclass(frozen=True)
class Configuration:
    """A loader as users write it.

    ``make`` makes its dataset, or what is given to both loaders. ``workers`` None: ``--threads``.
    ``more``: further arguments, made of the dataset; without a sampler it is shuffled.
    ``persistent``: whether worker processes outlive an epoch.
    """

    name: str
    make: _Make
    batch: int = 64
    workers: int | None = None
    more: Callable[[Any], dict[str, Any]] = lambda dataset: {"shuffle": True}
    persistent: bool = True

    def compare(self, workers: int, options: Options, **facts: Any) -> Row:
        made = self.make(options)
        given = made if isinstance(made, Given) else Given(made, **self.more(made))
        images = len(getattr(given.dataset, "dataset", given.dataset))  # a stream's, a subset's
        how: dict[str, Any] = {"batch": self.batch, "persistent": self.persistent, "images": images}
        return compare(given, options, workers=workers, **how, **facts)


# --- any-dataset ----------------------------------------------------------------------------------


def _files(kind: Callable[[list[Path]], Any], count: int = 384, small: bool = False) -> _Make:
    """A dataset of ``count`` JPEG files; ``small``: of 32 x 32 pixels."""

    def make(options: Options) -> Any:
        return kind(data.files(_jpegs(options, count, small))[: 24 if options.toy else count])

    return make


def _jpegs(options: Options, count: int, small: bool = False) -> Path:
    many = 48 if options.toy else count if small else 1200
    return options.images.jpegs(many, small=small, given=options.data)


def _with_masks(options: Options) -> Any:
    dataset = _files(own.Segmented)(options)
    dataset.masks = data.files(options.images.masks(_jpegs(options, 384)))
    return dataset


def _trained(
    transform: Callable[[], Any], count: int = 384, *, views: int = 1, small: bool = False
) -> _Make:
    """Files as most training code has them."""
    return _files(lambda files: own.Trained(files, transform(), views), count, small)


def _hugging_face(files: list[Path]) -> Given:
    """As people write it, and as fastload's documentation says."""
    dataset = own.hugging_face(files)
    theirs = dataset.with_transform(own.transformed)
    return Given(dataset, theirs=theirs, ours={"transform": train_transform()}, shuffle=True)


def _samples(kind: Callable[[int], Any], count: int, toy: int = 100) -> _Make:
    return lambda options: kind(toy if options.toy else count)


def _streamed(make: _Make) -> _Make:
    return lambda options: Stream(make(options))


def _in_order(dataset: Any) -> dict[str, Any]:
    return {}


_OWN = {
    each.name: each
    for each in (
        Configuration("pil", _files(own.Photos)),
        Configuration("train", _trained(train_transform, 700)),
        Configuration("v2", _trained(own.v2_transform, 700)),
        Configuration("v2-colors", _trained(partial(own.v2_transform, 224, 0.4))),
        Configuration("new-workers", _trained(train_transform, 700), persistent=False),
        Configuration("stream", _streamed(_trained(train_transform, 700)), more=_in_order),
        Configuration("two-views", _trained(train_transform, views=2)),
        Configuration("ten-crops", _trained(own.ten_crops, 96), batch=16),
        Configuration("image-and-mask", _with_masks),
        Configuration("numpy", _files(own.Arrays)),
        Configuration("albumentations", _files(partial(own.Albumented, cv2=False))),
        Configuration("cv2", _files(partial(own.Albumented, cv2=True))),
        Configuration("small-jpegs", _trained(small_transform, 4096, small=True), batch=128),
        Configuration(
            "small-v2", _trained(partial(own.v2_transform, 32), 4096, small=True), batch=128
        ),
        Configuration("huggingface", _files(_hugging_face)),
        Configuration("arrays", _samples(own.Ready, 1536, 24), batch=256),
        Configuration("nested", _samples(own.Nested, 4096, 24), batch=128),
        Configuration("cifar", _samples(own.cifar, 10_000, 24), batch=256),
        Configuration("mnist", _samples(own.mnist, 10_000, 24), batch=256),
        Configuration("tensors", _samples(own.tensors, 10_000, 24), batch=256),
    )
}
_IN_MEMORY = ("arrays", "nested", "cifar", "mnist", "tensors")
_NEEDS = {"albumentations": ("albumentations",), "cv2": ("albumentations", "cv2")}


class AnyDataset(Suite):
    name = "any-dataset"
    summary = "a user's own datasets and datasets in memory: FastLoader against DataLoader"
    variants = {name: {} for name in _OWN}

    def run(self, variant: str, options: Options) -> list[Row]:
        facts: dict[str, Any] = {"suite": self.name, "variant": variant}
        if absent := missing(_NEEDS.get(variant, ())):
            figures = Figures(options, ((TIMES, "x", ""),), **facts)
            figures.none("fastload", absent)
            return figures.rows
        facts["data"] = "given" if options.data and variant not in _IN_MEMORY else "made"
        counts = (0, options.threads) if _OWN[variant].persistent else (options.threads,)
        return [
            _OWN[variant].compare(workers, options, loader="fastload", **facts)
            for workers in counts
        ]


# --- never-slower ---------------------------------------------------------------------------------


def _folder(kind: str, side: int, count: int) -> _Make:
    """An ImageFolder of ``count`` images of a format; ``side`` 0: photos, cropped to 224."""

    def make(options: Options) -> Any:
        transform = small_transform(side) if 0 < side <= 64 else train_transform()
        return ImageFolder(str(_images(kind, side, count, options)), transform=transform)

    return make


def _images(kind: str, side: int, count: int, options: Options) -> Path:
    folder = options.images.jpegs(12 if options.toy else count, small=0 < side <= 32)
    return options.images.converted(folder, kind, side=side or None)


def _with_function(kind: str, side: int, count: int) -> _Make:
    """An ImageFolder with a user's own function in its transform."""

    def make(options: Options) -> Any:
        dataset = _folder(kind, side, count)(options)
        inverted = transforms.Lambda(lambda image: image.point(lambda level: 255 - level))
        dataset.transform.transforms.insert(2, inverted)
        return dataset

    return make


def _gifs(options: Options) -> Any:
    """A user's own dataset of a format that only Pillow reads."""
    return own.Trained(sorted(_images("gif", 32, 2000, options).glob("*/*")), small_transform())


def _rows(count: int) -> Any:
    return TensorDataset(torch.rand(count, 128), torch.arange(count) % 10)


def own_collate(samples: list[Any]) -> Any:
    """A collate_fn as people write them."""
    images, labels = zip(*samples)
    return torch.stack(images), torch.tensor(labels)


def _collated(dataset: Any) -> dict[str, Any]:
    return {"shuffle": True, "collate_fn": own_collate}


def _weighted(dataset: Any) -> dict[str, Any]:
    return {"sampler": WeightedRandomSampler([1.0 + i % 3 for i in range(len(dataset))], 2000)}


def _with_replacement(dataset: Any) -> dict[str, Any]:
    return {"sampler": RandomSampler(dataset, replacement=True, num_samples=20_000)}


def _batches(dataset: Any) -> dict[str, Any]:
    return {"batch_sampler": BatchSampler(RandomSampler(dataset), 64, drop_last=False)}


_JPEG, _PNG = (_folder(kind, 32, 3000) for kind in ("jpeg", "png"))
_TINY = _samples(Tiny, 20_000)
_FORMATS = ("jpeg", "png", "gray", "palette", "webp", "tiff", "cmyk", "bmp")

CONFIGURATIONS: dict[str, tuple[Configuration, ...]] = {
    "formats": (
        *(Configuration(f"{kind} 32x32", _folder(kind, 32, 3000)) for kind in _FORMATS),
        *(
            Configuration(f"{kind} photos", _folder(kind, 0, 128), batch=16)
            for kind in ("jpeg", "png", "webp", "tiff", "cmyk")
        ),
        Configuration("gif 32x32, 0 workers", _gifs, workers=0),
    ),
    "sizes": (
        Configuration("jpeg 64x64", _folder("jpeg", 64, 2000)),
        Configuration("jpeg 512x512", _folder("jpeg", 512, 96), batch=16),
        Configuration("jpeg 1024x1024", _folder("jpeg", 1024, 32), batch=8),
        Configuration("palette 512x512", _folder("palette", 512, 96), batch=16),
        Configuration("png 128x128", _folder("png", 128, 800)),
        Configuration("png 1024x1024", _folder("png", 1024, 32), batch=8),
    ),
    "batches": (
        Configuration("jpeg 32x32, batch 1", _folder("jpeg", 32, 600), batch=1),
        Configuration("png 32x32, batch 1", _folder("png", 32, 600), batch=1),
        Configuration("png 32x32, batch 512", _PNG, batch=512),
        Configuration("jpeg photos, batch 1", _folder("jpeg", 0, 128), batch=1),
    ),
    "samplers": (
        Configuration("in order", _JPEG, more=_in_order),
        Configuration("weighted sampler", _PNG, more=_weighted),
        Configuration("batch_sampler", _PNG, more=_batches),
    ),
    "code": (
        Configuration("collate_fn, jpeg 32x32", _JPEG, more=_collated),
        Configuration("collate_fn, tiny samples", _TINY, more=_collated),
        Configuration("function in the transform, jpeg", _with_function("jpeg", 0, 128)),
        Configuration("function in the transform, png", _with_function("png", 32, 2000)),
    ),
    "datasets": (
        Configuration("TensorDataset", _samples(_rows, 100_000), batch=256),
        Configuration("tiny samples", _TINY),
        Configuration("stream", _streamed(_TINY), more=_in_order),
        Configuration("two million samples", _samples(Tiny, 2_000_000), more=_with_replacement),
        Configuration("ten samples", lambda options: Tiny(10), batch=4),
    ),
    "workers": (
        Configuration("jpeg photos, 0 workers", _folder("jpeg", 0, 64), workers=0),
        Configuration("png 32x32, 0 workers", _folder("png", 32, 1500), workers=0),
        Configuration("tiny samples, 0 workers", _TINY, workers=0),
        Configuration("png 32x32, 8 workers", _PNG, workers=8),
        Configuration("tiny samples, 8 workers", _TINY, workers=8),
        Configuration("png 32x32, not persistent", _PNG, persistent=False),
        Configuration("tiny samples, not persistent", _TINY, persistent=False),
    ),
}
"""By variant of the suite."""


class NeverSlower(Suite):
    name = "never-slower"
    summary = "ordinary configurations: FastLoader against DataLoader, interleaved"
    variants = {name: {} for name in CONFIGURATIONS}

    def run(self, variant: str, options: Options) -> list[Row]:
        rows = []
        for one in CONFIGURATIONS[variant]:
            workers = options.threads if one.workers is None else one.workers
            facts = {"suite": self.name, "variant": variant, "data": "made"}
            rows.append(one.compare(workers, options, loader=f"fastload, {one.name}", **facts))
        return rows
