"""torchvision's datasets that hold one array of images: CIFAR, MNIST and its kin, SVHN, STL10.

Their ``__getitem__`` makes a PIL image of a row of ``data`` and hands it to the transform; so a row
is a raw image. Only the exact types are known: a subclass may do anything.
"""

from __future__ import annotations

import dataclasses
import sys
import weakref
from typing import Any

import numpy as np

from .._base.nested import plain
from ..storage.memory import MemoryStore
from .unreadable import Unreadable

_MODULE = "torchvision.datasets"
_HWC = ("CIFAR10", "CIFAR100")  # rows of data are (h, w, 3)
_CHW = ("SVHN", "STL10")  # rows of data are (3, h, w)
_GRAY = ("MNIST", "FashionMNIST", "KMNIST", "EMNIST", "QMNIST")  # rows of data are (h, w)
_NAMES = frozenset((*_HWC, *_CHW, *_GRAY))

# No side of an image may be longer in the engines.
_MOST = 65_535

_stores: weakref.WeakKeyDictionary[Any, MemoryStore] = weakref.WeakKeyDictionary()
_Labels = tuple[list[int], np.ndarray]  # as the dataset has them, and as an array
_lists: weakref.WeakKeyDictionary[Any, _Labels] = weakref.WeakKeyDictionary()


@dataclasses.dataclass(frozen=True)
class Arrays:
    """The images of such a dataset.

    Attributes:
        store: over the dataset's own memory.
        mode: of the PIL images that its transform gets: "RGB" or "L".
    """

    store: MemoryStore
    mode: str


def known(dataset: Any) -> bool:
    """Whether it is one of these datasets."""
    # If the user's program never imported torchvision, this is none of its datasets.
    module, kind = sys.modules.get(_MODULE), type(dataset)
    return kind.__name__ in _NAMES and kind is getattr(module, kind.__name__, None)


def arrays_of(dataset: Any) -> Arrays:
    """The images and labels of such a dataset as they are now.

    Raises:
        Unreadable: only its own code makes its samples.
    """
    name = type(dataset).__name__
    images = _images(dataset, name)
    labels = _labels(dataset, name, len(images))
    found = _stores.get(dataset)
    if found is None or not _same(found, images, labels):
        classes = list(getattr(dataset, "classes", []))
        found = _stores[dataset] = MemoryStore(images, labels, name=name, classes=classes)
    return Arrays(found, "L" if name in _GRAY else "RGB")


def _same(store: MemoryStore, images: np.ndarray, labels: np.ndarray) -> bool:
    """Whether the store is over this very memory, and has these labels."""
    same = store.images.__array_interface__ == images.__array_interface__
    return same and np.array_equal(store.labels, labels)


def _images(dataset: Any, name: str) -> np.ndarray:
    """uint8 (n, h, w, 3), a view of the dataset's own."""
    data: Any = dataset.data
    axes = 3 if name in _GRAY else 4
    if name in _GRAY and plain(data):
        data = data.numpy()
    kinds = "tensor" if name in _GRAY else "array"
    if type(data) is not np.ndarray or data.dtype != np.uint8 or data.ndim != axes:
        raise Unreadable(f"the data of this {name} is not the uint8 {kinds} that torchvision reads")
    if name in _GRAY:
        data = np.broadcast_to(data[..., None], (*data.shape, 3))
    elif name in _CHW:
        data = data.transpose(0, 2, 3, 1)
    if data.shape[3] != 3 or not all(1 <= side <= _MOST for side in data.shape[1:3]):
        raise Unreadable(
            f"the data of this {name} has rows of shape {data.shape[1:]}, which are no images"
        )
    if min(data.strides) < 0:
        raise Unreadable(f"the data of this {name} runs backwards in memory; copy it (data.copy())")
    images: np.ndarray = data
    return images


def _labels(dataset: Any, name: str, count: int) -> np.ndarray:
    """int64 (n,) or (n, k): what the samples' targets are before target_transform."""
    targets = dataset.labels if name in _CHW else dataset.targets
    if targets is None:
        raise Unreadable(f"this {name} has no labels")
    if len(targets) < count:
        raise Unreadable(f"this {name} has {count} images and {len(targets)} labels")
    if name in _HWC:
        return _as_they_are(dataset, name, targets, count)
    found = targets.numpy() if plain(targets) else np.asarray(targets)
    if name == "QMNIST" and found.ndim == 2:
        if not dataset.compat:  # the whole row, a tensor
            if found.dtype != np.int64:
                raise Unreadable(f"this {name} has odd targets")
            return found[:count]
        found = found[:, 0]
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise Unreadable(f"this {name} has labels that are no ints")
    return found[:count].astype(np.int64, copy=False)


def _as_they_are(dataset: Any, name: str, targets: Any, count: int) -> np.ndarray:
    """Labels that come into a batch without ``int()``, where that makes no difference."""
    if type(targets) is list and set(map(type, targets)) <= {int}:  # as 1 == True == 1.0
        # Compared to a copy, as a list may be changed in place: a fraction of what reading costs.
        known = _lists.get(dataset)
        if known is not None and len(known[1]) == count and known[0] == targets:
            return known[1]
        try:
            made = np.array(targets[:count], np.int64)
        except OverflowError as error:
            raise Unreadable(f"this {name} has labels beyond 64 bits") from error
        _lists[dataset] = list(targets), made
        return made
    if type(targets) is np.ndarray and targets.dtype == np.int64 and targets.ndim == 1:
        if dataset.target_transform is None:
            return targets[:count]
        raise Unreadable(f"the target_transform of this {name} gets NumPy's ints, not Python's")
    raise Unreadable(f"this {name} has labels that are no ints")
