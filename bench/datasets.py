"""Datasets as users write them, for the suites that compare FastLoader with DataLoader."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset, get_worker_info
from torchvision import datasets, transforms
from torchvision.transforms import functional as F
from torchvision.transforms import v2

from bench.workload import MEAN, STD


class Given:
    """What a program gives to its loader: a Dataset, and arguments but for batch size and workers.

    ``theirs``: DataLoader's Dataset where people write it otherwise. ``ours``: further arguments of
    FastLoader.
    """

    def __init__(
        self, dataset: Any, *, theirs: Any = None, ours: dict[str, Any] | None = None, **more: Any
    ) -> None:
        self.dataset, self.theirs = dataset, dataset if theirs is None else theirs
        self.ours, self.arguments = ours or {}, more


class _Numbered(Dataset[Any]):
    """Samples by number, of files or of nothing."""

    def __init__(self, files: Sequence[Any]) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)


class Photos(_Numbered):
    """JPEG files, decoded and resized by Pillow: (uint8 (3, 224, 224), label)."""

    def __getitem__(self, index: int) -> Any:
        with Image.open(self._files[index]) as file:
            image = file.convert("RGB").resize((224, 224), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1), index % 10


class Trained(_Numbered):
    """JPEG files as most training code has them: open, convert, transform, return with a label.

    ``views``: how often each image is transformed. ``labels`` None: 0 to 9, in turn.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        transform: Callable[[Any], Any],
        views: int = 1,
        labels: Sequence[int] | None = None,
    ) -> None:
        super().__init__(paths)
        self._transform = transform
        self._views = views
        self._labels = [index % 10 for index in range(len(paths))] if labels is None else labels

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self._files[index]).convert("RGB")
        if self._views == 1:
            return self._transform(image), self._labels[index]
        return [self._transform(image) for _ in range(self._views)], self._labels[index]


class Arrays(_Numbered):
    """JPEG files as arrays: (uint8 (3, 224, 224), label), cropped and flipped by NumPy."""

    def __getitem__(self, index: int) -> Any:
        image = np.asarray(Image.open(self._files[index]).convert("RGB"))
        short = [max(0, 224 - side) for side in image.shape[:2]]
        if any(short):
            image = np.pad(image, ((0, short[0]), (0, short[1]), (0, 0)), mode="edge")
        top = random.randint(0, image.shape[0] - 224)
        left = random.randint(0, image.shape[1] - 224)
        image = image[top : top + 224, left : left + 224]
        if random.random() < 0.5:
            image = image[:, ::-1]
        return torch.from_numpy(image.transpose(2, 0, 1).copy()), index % 10


class Albumented(_Numbered):
    """JPEG files through Albumentations: (float32 (3, 224, 224), label).

    ``cv2``: read them with ``cv2.imread``; otherwise with Pillow.
    """

    def __init__(self, paths: list[Path], *, cv2: bool) -> None:
        import albumentations
        from albumentations.pytorch import ToTensorV2

        super().__init__(paths)
        self._cv2 = cv2
        self.transform = albumentations.Compose(
            [
                albumentations.RandomResizedCrop((224, 224)),
                albumentations.HorizontalFlip(),
                albumentations.Normalize(MEAN, STD),
                ToTensorV2(),
            ]
        )

    def __getitem__(self, index: int) -> Any:
        if self._cv2:
            import cv2

            image: Any = cv2.imread(str(self._files[index]))
            image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
        else:
            image = np.array(Image.open(self._files[index]).convert("RGB"))
        return self.transform(image=image)["image"], index % 10


class Segmented(_Numbered):
    """JPEG files and PNG masks with the same random crop and flip.

    Samples are (float32 (3, 224, 224), int64 (224, 224)).

    ``masks`` are the paths of their masks, set before it is read.
    """

    masks: list[Path]

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self._files[index]).convert("RGB")
        mask = Image.open(self.masks[index])
        box = transforms.RandomResizedCrop.get_params(image, scale=[0.3, 1.0], ratio=[3 / 4, 4 / 3])
        image = F.resized_crop(image, *box, [224, 224])
        mask = F.resized_crop(mask, *box, [224, 224], transforms.InterpolationMode.NEAREST)
        if random.random() < 0.5:
            image, mask = F.hflip(image), F.hflip(mask)
        tensor = F.normalize(F.to_tensor(image), MEAN, STD)
        return tensor, torch.as_tensor(np.array(mask), dtype=torch.int64)


class Tiny(_Numbered):
    """Samples that cost next to nothing: (float32 (8,), label)."""

    def __init__(self, count: int) -> None:
        super().__init__(range(count))
        self._rows = torch.rand(count, 8)

    def __getitem__(self, index: int) -> Any:
        return self._rows[index], index % 10


class Stream(IterableDataset[Any]):
    """A dataset as a stream, of which each worker has its part."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Any:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, len(self.dataset), step):
            yield self.dataset[index]


class Ready(_Numbered):
    """Arrays that need no work: (float32 (3, 224, 224), label); a few, repeated."""

    def __init__(self, count: int) -> None:
        super().__init__(range(count))
        self._arrays = np.random.default_rng(0).random((16, 3, 224, 224), np.float32)

    def __getitem__(self, index: int) -> Any:
        return self._arrays[index % len(self._arrays)], index % 10


class Nested(_Numbered):
    """Dicts in dicts, as of detection: with strings and numbers among the tensors."""

    def __init__(self, count: int) -> None:
        super().__init__(range(count))
        self._image = torch.rand(3, 96, 96)
        self._boxes = torch.rand(10, 4)

    def __getitem__(self, index: int) -> Any:
        return {
            "image": self._image,
            "target": {"boxes": self._boxes, "labels": self._boxes.new_zeros(10).long()},
            "meta": {"id": index, "name": f"image{index}", "size": (96, 96), "scale": 0.5},
        }


def cifar(count: int) -> Any:
    """torchvision's CIFAR10 with made images, laid out as its own, and the usual augmentation."""
    dataset = datasets.CIFAR10.__new__(datasets.CIFAR10)
    datasets.VisionDataset.__init__(dataset, "", transform=small_transform())
    images = np.random.default_rng(0).integers(0, 256, (count, 3, 32, 32), np.uint8)
    dataset.data = images.transpose(0, 2, 3, 1)
    dataset.targets = [index % 10 for index in range(count)]
    dataset.classes = [str(label) for label in range(10)]
    return dataset


def mnist(count: int) -> Any:
    """torchvision's MNIST with made images."""
    dataset = datasets.MNIST.__new__(datasets.MNIST)
    chain = [transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))]
    datasets.VisionDataset.__init__(dataset, "", transform=transforms.Compose(chain))
    dataset.data = torch.randint(0, 256, (count, 28, 28), dtype=torch.uint8)
    dataset.targets = torch.arange(count) % 10
    return dataset


def tensors(count: int) -> Any:
    images = torch.randint(0, 256, (count, 3, 64, 64), dtype=torch.uint8)
    return TensorDataset(images, torch.arange(count) % 10)


def hugging_face(files: list[Path]) -> Any:
    """A Hugging Face dataset in memory: the bytes of these JPEGs, and labels."""
    import datasets as hf

    images = [{"bytes": path.read_bytes(), "path": None} for path in files]
    features = hf.Features({"image": hf.Image(), "label": hf.Value("int64")})
    labels = [index % 10 for index in range(len(files))]
    return hf.Dataset.from_dict({"image": images, "label": labels}, features=features)


def recipe(*steps: Any) -> Any:
    """``steps`` on a PIL image, then to a tensor, normalised as for ImageNet."""
    return transforms.Compose([*steps, transforms.ToTensor(), transforms.Normalize(MEAN, STD)])


@functools.cache
def train_transform() -> Any:
    """The usual training recipe, to 224 x 224, normalised."""
    return recipe(transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip())


@functools.cache
def small_transform(side: int = 32) -> Any:
    """The usual recipe for images of ``side`` x ``side``, normalised."""
    return recipe(transforms.RandomCrop(side, padding=4), transforms.RandomHorizontalFlip())


@functools.cache
def v2_transform(side: int = 224, colors: float = 0.0) -> Any:
    """The recipe that torchvision's documentation shows for v2: a tensor first."""
    return v2.Compose(
        [
            v2.ToImage(),
            v2.RandomResizedCrop(side, antialias=True),
            v2.RandomHorizontalFlip(),
            *([v2.ColorJitter(colors, colors, colors, colors / 4)] if colors else []),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )


@functools.cache
def ten_crops() -> Any:
    """The usual evaluation by ten crops of 224 x 224, stacked and normalised one by one."""
    tensor, normalize = transforms.ToTensor(), transforms.Normalize(MEAN, STD)
    return transforms.Compose(
        [
            transforms.Resize(256),
            transforms.TenCrop(224),
            transforms.Lambda(lambda crops: torch.stack([tensor(crop) for crop in crops])),
            transforms.Lambda(lambda crops: torch.stack([normalize(crop) for crop in crops])),
        ]
    )


def transformed(batch: dict[str, Any]) -> dict[str, Any]:
    """The function that users give to ``with_transform``."""
    images = [train_transform()(image.convert("RGB")) for image in batch["image"]]
    return {"pixel_values": images, "labels": batch["label"]}
