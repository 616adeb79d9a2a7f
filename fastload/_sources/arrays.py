"""torchvision's datasets with one array of images: CIFAR, MNIST and its variants, SVHN, STL10.

Their ``__getitem__`` makes a PIL image of a row of ``data`` and passes it to the transform, so a
row is a raw image. Only the exact classes are accepted, because a subclass may do anything.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import numpy as np

from .._base.nested import plain
from ..storage.memory import MemoryStore
from .kinds import CHW, GRAY, HWC, ArrayDataset
from .unreadable import Unreadable

# The longest side of an image that the engines accept.
_LONGEST_SIDE = 65_535


_stores: weakref.WeakKeyDictionary[ArrayDataset, MemoryStore] = weakref.WeakKeyDictionary()
_Labels = tuple[list[int], np.ndarray]  # a copy of the dataset's list, and the same as an array
_lists: weakref.WeakKeyDictionary[ArrayDataset, _Labels] = weakref.WeakKeyDictionary()


class Arrays(NamedTuple):
    """The images of such a dataset.

    Attributes:
        store: over the dataset's own memory.
        mode: of the PIL images that its transform gets: "RGB" or "L".
    """

    store: MemoryStore
    mode: str


def arrays_of(dataset: ArrayDataset) -> Arrays:
    """The current images and labels of such a dataset.

    Raises:
        Unreadable: only its own code can make its samples.
    """
    name = type(dataset).__name__
    images = _images(dataset, name)
    labels = _labels(dataset, name, len(images))
    store = _stores.get(dataset)
    if store is None or not _same(store, images, labels):
        classes = list(getattr(dataset, "classes", []))
        store = _stores[dataset] = MemoryStore(images, labels, name=name, classes=classes)
    return Arrays(store, "L" if name in GRAY else "RGB")


def _same(store: MemoryStore, images: np.ndarray, labels: np.ndarray) -> bool:
    """Whether the store uses the same memory and has the same labels."""
    same = store.images.__array_interface__ == images.__array_interface__
    return same and np.array_equal(store.labels, labels)


def _images(dataset: ArrayDataset, name: str) -> np.ndarray:
    """uint8 (n, h, w, 3), a view of the dataset's array."""
    data: Any = dataset.data
    axes = 3 if name in GRAY else 4
    if name in GRAY and plain(data):
        data = data.numpy()
    kinds = "tensor" if name in GRAY else "array"
    if type(data) is not np.ndarray or data.dtype != np.uint8 or data.ndim != axes:
        raise Unreadable(f"the data of this {name} is not the uint8 {kinds} that torchvision reads")
    if name in GRAY:
        data = np.broadcast_to(data[..., None], (*data.shape, 3))
    elif name in CHW:
        data = data.transpose(0, 2, 3, 1)
    if data.shape[3] != 3 or not all(1 <= side <= _LONGEST_SIDE for side in data.shape[1:3]):
        raise Unreadable(
            f"the data of this {name} has rows of shape {data.shape[1:]}, which are not images"
        )
    if min(data.strides) < 0:
        raise Unreadable(f"the data of this {name} has negative strides; copy it (data.copy())")
    images: np.ndarray = data
    return images


def _labels(dataset: ArrayDataset, name: str, count: int) -> np.ndarray:
    """int64 (n,) or (n, k): the targets before target_transform."""
    targets: Any = getattr(dataset, "labels" if name in CHW else "targets")
    if targets is None:
        raise Unreadable(f"this {name} has no labels")
    if len(targets) < count:
        raise Unreadable(f"this {name} has {count} images and {len(targets)} labels")
    if name in HWC:
        return _unconverted_labels(dataset, name, targets, count)
    labels = targets.numpy() if plain(targets) else np.asarray(targets)
    if name == "QMNIST" and labels.ndim == 2:
        if not getattr(dataset, "compat"):  # noqa: B009 - a target is the whole row, a tensor
            if labels.dtype != np.int64:
                raise Unreadable(f"this {name} has targets that are not int64")
            return labels[:count]
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise Unreadable(f"this {name} has labels that are not ints")
    return labels[:count].astype(np.int64, copy=False)


def _unconverted_labels(dataset: ArrayDataset, name: str, targets: Any, count: int) -> np.ndarray:
    """Labels that torchvision does not pass through ``int()``, if that makes no difference."""
    if type(targets) is list and set(map(type, targets)) <= {int}:  # as 1 == True == 1.0
        # Compared with a copy, because the list may be changed in place. Comparing takes a fraction
        # of the time of converting.
        remembered = _lists.get(dataset)
        if remembered is not None and len(remembered[1]) == count and remembered[0] == targets:
            return remembered[1]
        try:
            labels = np.array(targets[:count], np.int64)
        except OverflowError as error:
            raise Unreadable(f"this {name} has labels beyond 64 bits") from error
        _lists[dataset] = list(targets), labels
        return labels
    if type(targets) is np.ndarray and targets.dtype == np.int64 and targets.ndim == 1:
        if dataset.target_transform is None:
            return targets[:count]
        raise Unreadable(f"the target_transform of this {name} gets NumPy ints, not Python ints")
    raise Unreadable(f"this {name} has labels that are not ints")
