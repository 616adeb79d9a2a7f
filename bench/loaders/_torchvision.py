"""The workload as torchvision transforms, the first kind and v2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bench.workload import MEAN, STD, Workload


def transforms_v1(work: Workload) -> Callable[[Any], torch.Tensor]:
    from torchvision import transforms as t

    steps = _geometry(work, t)
    if work.dtype == "uint8":
        return t.Compose([*steps, t.PILToTensor()])
    return t.Compose([*steps, t.ToTensor(), t.Normalize(MEAN, STD)])


def transforms_v2(work: Workload) -> Callable[[Any], torch.Tensor]:
    """v2 as its documentation recommends: on uint8 tensors, to float last."""
    from torchvision.transforms import v2 as t

    steps = [t.ToImage(), *_geometry(work, t)]
    if work.dtype == "uint8":
        return t.Compose([*steps, t.ToPureTensor()])
    last = [t.ToDtype(torch.float32, scale=True), t.Normalize(MEAN, STD), t.ToPureTensor()]
    return t.Compose([*steps, *last])


def _geometry(work: Workload, t: Any) -> list[Any]:
    if work.recipe == "train":
        return [t.RandomResizedCrop(work.size), t.RandomHorizontalFlip()]
    if work.recipe == "eval":
        return [t.Resize(work.resize), t.CenterCrop(work.size)]
    return [t.RandomCrop(work.size, padding=4), t.RandomHorizontalFlip()]
