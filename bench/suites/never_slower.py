"""never-slower: FastLoader and DataLoader in ordinary configurations, in turn."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
)

from bench import data
from bench.datasets import Counted, Nested, Ready, cifar, small_transform, train_transform
from bench.report import Row
from bench.suites.base import Options, Suite, Variant
from bench.suites.pairs import compare
from bench.workload import MEAN, STD

_SUFFIXES = {"jpeg": ".jpg", "cmyk": ".jpg", "gray": ".png", "palette": ".png", "tiff": ".tif"}
_MODES = {"gray": "L", "palette": "P", "cmyk": "CMYK"}


@dataclasses.dataclass(frozen=True)
class Configuration:
    """A loader as users write it.

    ``workers`` None: ``--threads``. ``more``: further arguments of both loaders, made of the
    dataset; without a sampler it is shuffled. ``persistent``: whether worker processes outlive an
    epoch.
    """

    name: str
    make: Callable[[Options], Any]
    batch: int = 64
    workers: int | None = None
    more: Callable[[Any], dict[str, Any]] = lambda dataset: {"shuffle": True}
    persistent: bool = True

    def arguments(self, dataset: Any, options: Options) -> dict[str, Any]:
        """Those of both loaders over ``dataset``."""
        workers = options.threads if self.workers is None else self.workers
        if options.toy:
            workers = min(workers, 2)
        persistent = self.persistent and workers > 0
        given = {"num_workers": workers, "persistent_workers": persistent, **self.more(dataset)}
        return given if "batch_sampler" in given else {**given, "batch_size": self.batch}


# --- data -----------------------------------------------------------------------------------------


def _folder(kind: str, side: int, count: int) -> Callable[[Options], Any]:
    """An ImageFolder of ``count`` images of a format; ``side`` 0: photos, cropped to 224."""

    def make(options: Options) -> Any:
        from torchvision.datasets import ImageFolder

        return ImageFolder(str(_images(kind, side, count, options)), transform=_transform(side))

    return make


def _images(kind: str, side: int, count: int, options: Options) -> Path:
    from PIL import Image

    many = 12 if options.toy else count
    small = 0 < side <= 32
    pictures = min(many, 1000 if small else 64)
    source = data.files(
        data.jpegs(options.cache, data=None, count=pictures, small=small, say=options.say)
    )

    def convert(folder: Path) -> None:
        options.say(f"writing {many} images: {kind}, {side or 'photos'}")
        for number in range(many):
            path = source[number % len(source)]
            target = folder / f"class{number % 4}" / f"{number}{_SUFFIXES.get(kind, f'.{kind}')}"
            target.parent.mkdir(parents=True, exist_ok=True)
            picture = Image.open(path).convert("RGB")
            if side:
                picture = picture.resize((side, side), Image.Resampling.BILINEAR)
            picture.convert(_MODES.get(kind, "RGB")).save(target)

    return data.made(options.cache, f"{kind}-{side or 'photos'}-{many}", convert)


def _transform(side: int) -> Any:
    return small_transform(side) if 0 < side <= 64 else train_transform()


def _own_function(image: Any) -> Any:
    return image.point(lambda level: 255 - level)


def _with_function(kind: str, side: int, count: int) -> Callable[[Options], Any]:
    """An ImageFolder with a user's own function in its transform."""

    def make(options: Options) -> Any:
        from torchvision import transforms

        dataset = _folder(kind, side, count)(options)
        dataset.transform.transforms.insert(2, transforms.Lambda(_own_function))
        return dataset

    return make


def _tensor_transform(options: Options) -> Any:
    """An ImageFolder whose transform works on tensors."""
    from torchvision.transforms import v2

    dataset = _folder("jpeg", 32, 3000)(options)
    dataset.transform = v2.Compose(
        [
            v2.ToImage(),
            v2.RandomCrop(32, padding=4),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    return dataset


def _packed(options: Options) -> Any:
    """A store of PNGs. DataLoader reads it through PackedDataset, so the core decodes for both."""
    from fastload import PackedDataset, pack

    images = _images("png", 32, 3000, options)

    def write(folder: Path) -> None:
        pack(images, folder / "images.lmdb")

    store = data.made(options.cache, f"{images.name}-lmdb", write) / "images.lmdb"
    return PackedDataset(store, transform=_transform(32))


class Tiny(Counted):
    """Samples that cost next to nothing: (float32 (8,), label)."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._rows = torch.rand(count, 8)

    def __getitem__(self, index: int) -> Any:
        return self._rows[index], index % 10


class Stream(IterableDataset[Any]):
    """The same as a stream, of which each worker has its part."""

    def __init__(self, count: int) -> None:
        self._rows = torch.rand(count, 64)

    def __iter__(self) -> Any:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, len(self._rows), step):
            yield self._rows[index], index % 10


def _samples(kind: Callable[[int], Any], count: int) -> Callable[[Options], Any]:
    return lambda options: kind(100 if options.toy else count)


def _rows(count: int) -> Any:
    return TensorDataset(torch.rand(count, 128), torch.arange(count) % 10)


def _half(options: Options) -> Any:
    dataset = _folder("jpeg", 32, 3000)(options)
    return Subset(dataset, range(0, len(dataset), 2))


# --- what is given to both loaders ----------------------------------------------------------------


def own_collate(samples: list[Any]) -> Any:
    """A collate_fn as people write them."""
    images, labels = zip(*samples)
    return torch.stack(images), torch.tensor(labels)


def dict_collate(samples: list[Any]) -> Any:
    """One that renames what default_collate makes."""
    images, labels = default_collate(samples)
    return {"pixel_values": images, "labels": labels}


def _collated(collate_fn: Callable[[list[Any]], Any]) -> Callable[[Any], dict[str, Any]]:
    return lambda dataset: {"shuffle": True, "collate_fn": collate_fn}


def _weighted(dataset: Any) -> dict[str, Any]:
    return {"sampler": WeightedRandomSampler([1.0 + i % 3 for i in range(len(dataset))], 2000)}


def _some(dataset: Any) -> dict[str, Any]:
    return {"sampler": SubsetRandomSampler(range(0, len(dataset), 2))}


def _with_replacement(dataset: Any) -> dict[str, Any]:
    return {"sampler": RandomSampler(dataset, replacement=True, num_samples=20_000)}


def _batches(dataset: Any) -> dict[str, Any]:
    return {"batch_sampler": BatchSampler(RandomSampler(dataset), 64, drop_last=False)}


def _in_order(dataset: Any) -> dict[str, Any]:
    return {}


_FORMATS = ("jpeg", "png", "gray", "palette", "webp", "tiff", "cmyk", "bmp")

CONFIGURATIONS: dict[str, tuple[Configuration, ...]] = {
    "formats": (
        *(Configuration(f"{kind} 32x32", _folder(kind, 32, 3000)) for kind in _FORMATS),
        *(
            Configuration(f"{kind} photos", _folder(kind, 0, 128), batch=16)
            for kind in ("jpeg", "png", "webp", "tiff", "cmyk")
        ),
        Configuration("png 32x32 packed in LMDB", _packed),
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
        Configuration("png 32x32, batch 512", _folder("png", 32, 3000), batch=512),
        Configuration("jpeg photos, batch 1", _folder("jpeg", 0, 128), batch=1),
    ),
    "samplers": (
        Configuration("in order", _folder("jpeg", 32, 3000), more=_in_order),
        Configuration("weighted sampler", _folder("png", 32, 3000), more=_weighted),
        Configuration("subset sampler", _folder("jpeg", 32, 3000), more=_some),
        Configuration("batch_sampler", _folder("png", 32, 3000), more=_batches),
        Configuration("Subset", _half),
    ),
    "code": (
        Configuration(
            "collate_fn, jpeg 32x32", _folder("jpeg", 32, 3000), more=_collated(own_collate)
        ),
        Configuration(
            "collate_fn, tiny samples", _samples(Tiny, 20_000), more=_collated(own_collate)
        ),
        Configuration(
            "collate_fn that renames, tiny samples",
            _samples(Tiny, 20_000),
            more=_collated(dict_collate),
        ),
        Configuration("function in the transform, jpeg", _with_function("jpeg", 0, 128)),
        Configuration("function in the transform, png", _with_function("png", 32, 2000)),
        Configuration("transform of tensors", _tensor_transform),
    ),
    "datasets": (
        Configuration("TensorDataset", _samples(_rows, 100_000), batch=256),
        Configuration("tiny samples", _samples(Tiny, 20_000)),
        Configuration("stream", _samples(Stream, 20_000), more=_in_order),
        Configuration("ready arrays", _samples(Ready, 500), batch=32),
        Configuration("nested dicts", _samples(Nested, 2000)),
        Configuration("CIFAR10", _samples(cifar, 5000)),
        Configuration("two million samples", _samples(Tiny, 2_000_000), more=_with_replacement),
        Configuration("ten samples", lambda options: Tiny(10), batch=4),
    ),
    "workers": (
        Configuration("jpeg photos, 0 workers", _folder("jpeg", 0, 64), workers=0),
        Configuration("png 32x32, 0 workers", _folder("png", 32, 1500), workers=0),
        Configuration("tiny samples, 0 workers", _samples(Tiny, 20_000), workers=0),
        Configuration("png 32x32, 8 workers", _folder("png", 32, 3000), workers=8),
        Configuration("tiny samples, 8 workers", _samples(Tiny, 20_000), workers=8),
        Configuration("png 32x32, not persistent", _folder("png", 32, 3000), persistent=False),
        Configuration("tiny samples, not persistent", _samples(Tiny, 20_000), persistent=False),
    ),
}
"""By variant of the suite."""


class NeverSlower(Suite):
    name = "never-slower"
    summary = "ordinary configurations: FastLoader against DataLoader, interleaved"
    variants = {name: Variant() for name in CONFIGURATIONS}

    def run(self, variant: str, options: Options) -> list[Row]:
        rows = []
        for configuration in CONFIGURATIONS[variant]:
            dataset = configuration.make(options)
            measured = compare(
                dataset,
                configuration.arguments(dataset, options),
                options,
                suite=self.name,
                variant=variant,
                loader=f"fastload, {configuration.name}",
                batch=configuration.batch,
                images=len(dataset) if hasattr(dataset, "__len__") else len(dataset._rows),
                data="made",
            )
            rows.append(measured)
            mean, (low, high) = (measured["setting"][key] for key in ("mean", "interval_95"))
            options.say(f"{configuration.name}: {mean} times ({low} to {high})")
        return rows
