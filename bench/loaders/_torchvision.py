"""The workload as torchvision transforms, the first kind and v2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bench.workload import MEAN, STD, Workload


def transforms_v1(work: Workload) -> Callable[[Any], torch.Tensor]:
    from torchvision import transforms as t

    steps = _image(work, t)
    if work.dtype == "uint8":
        return t.Compose([*steps, t.PILToTensor()])
    return t.Compose([*steps, t.ToTensor(), t.Normalize(MEAN, STD), *_erasing(work, t)])


def transforms_v2(work: Workload) -> Callable[[Any], torch.Tensor]:
    """v2 as its documentation recommends: on uint8 tensors, to float last."""
    from torchvision.transforms import v2 as t

    steps = [t.ToImage(), *_image(work, t)]
    if work.dtype == "uint8":
        return t.Compose([*steps, t.ToPureTensor()])
    last = [t.ToDtype(torch.float32, scale=True), t.Normalize(MEAN, STD), t.ToPureTensor()]
    return t.Compose([*steps, *last, *_erasing(work, t)])


def _image(work: Workload, t: Any) -> list[Any]:
    """What is done to the uint8 image."""
    if work.recipe == "eval":
        return [t.Resize(work.resize), t.CenterCrop(work.size)]
    if work.recipe == "small":
        return [t.RandomCrop(work.size, padding=4), t.RandomHorizontalFlip()]
    more = {
        "train": [],
        "train-mixup": [],
        "train-jitter": [t.ColorJitter(0.4, 0.4, 0.4, 0.1)],
        "train-randaugment": [t.RandAugment()],
        "train-trivialaugment": [t.TrivialAugmentWide()],
    }
    return [t.RandomResizedCrop(work.size), t.RandomHorizontalFlip(), *more[work.recipe]]


def mixed(work: Workload) -> Callable[..., Any]:
    """MixUp or CutMix of a batch of images and labels, as in torchvision's documentation."""
    from torchvision.transforms import v2

    classes = len(work.samples()[1])
    return v2.RandomChoice([v2.MixUp(num_classes=classes), v2.CutMix(num_classes=classes)])


def _erasing(work: Workload, t: Any) -> list[Any]:
    return [t.RandomErasing()] if work.recipe == "train-randaugment" else []
