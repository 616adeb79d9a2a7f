"""torchvision's datasets that hold arrays, of made data that lies as torchvision lays it out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torchvision import datasets

COUNT = 37


def _levels(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, shape, dtype=np.uint8)


def _digits(count: int) -> np.ndarray:
    return np.random.default_rng(6).integers(0, 10, count)


def _made(kind: type, transform: Any, target_transform: Any, **attributes: Any) -> Any:
    """A dataset as its ``__init__`` leaves it, which would read files."""
    dataset = kind.__new__(kind)
    datasets.VisionDataset.__init__(dataset, "nowhere", None, transform, target_transform)
    for name, value in attributes.items():
        setattr(dataset, name, value)
    return dataset


def cifar(transform: Any, target_transform: Any = None, kind: type = datasets.CIFAR10) -> Any:
    # planes in memory, turned into HWC by strides alone
    data = _levels(COUNT, 3 * 32 * 32).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    targets = _digits(COUNT).tolist()
    classes = [f"class {i}" for i in range(10)]
    return _made(kind, transform, target_transform, data=data, targets=targets, classes=classes)


def mnist(transform: Any, target_transform: Any = None, kind: type = datasets.MNIST) -> Any:
    data = torch.from_numpy(_levels(COUNT, 28, 28))
    targets = torch.from_numpy(_digits(COUNT))
    return _made(kind, transform, target_transform, data=data, targets=targets)


def qmnist(transform: Any, target_transform: Any = None, compat: bool = True) -> Any:
    dataset = mnist(transform, target_transform, datasets.QMNIST)
    dataset.targets = torch.from_numpy(_digits(8 * COUNT).reshape(COUNT, 8))
    dataset.compat = compat
    return dataset


def svhn(transform: Any, target_transform: Any = None) -> Any:
    # a Fortran-ordered (32, 32, 3, n), as SciPy reads it
    data = np.asfortranarray(_levels(32, 32, 3, COUNT)).transpose(3, 2, 0, 1)
    return _made(datasets.SVHN, transform, target_transform, data=data, labels=_digits(COUNT))


def stl10(transform: Any, target_transform: Any = None) -> Any:
    data = _levels(COUNT, 3, 96, 96).transpose(0, 1, 3, 2)
    labels = _digits(COUNT).astype(np.uint8)
    return _made(datasets.STL10, transform, target_transform, data=data, labels=labels)


COLOUR: dict[str, Callable[..., Any]] = {
    "CIFAR10": cifar,
    "CIFAR100": lambda *given: cifar(*given, kind=datasets.CIFAR100),
    "SVHN": svhn,
    "STL10": stl10,
}
GRAY: dict[str, Callable[..., Any]] = {
    "MNIST": mnist,
    "FashionMNIST": lambda *given: mnist(*given, kind=datasets.FashionMNIST),
    "KMNIST": lambda *given: mnist(*given, kind=datasets.KMNIST),
    "EMNIST": lambda *given: mnist(*given, kind=datasets.EMNIST),
    "QMNIST": qmnist,
}
