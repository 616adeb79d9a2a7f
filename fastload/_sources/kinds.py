"""Kinds: what a dataset is, without importing what reads it.

Nothing can be of a class whose module nobody has imported. So a program with a Dataset of its own
imports no stores, and none of the packages that it does not use.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from . import huggingface

if TYPE_CHECKING:
    from ..hints import CheckCrc
    from ..storage.base import Store
    from .mix import Mix, MixDataset
    from .packed import PackedDataset
    from .streams import ImageStream

# torchvision's datasets with one array of images. arrays.py says what their rows are.
HWC = ("CIFAR10", "CIFAR100")  # rows of data are (h, w, 3)
CHW = ("SVHN", "STL10")  # rows of data are (3, h, w)
GRAY = ("MNIST", "FashionMNIST", "KMNIST", "EMNIST", "QMNIST")  # rows of data are (h, w)
_ARRAYS = frozenset((*HWC, *CHW, *GRAY))


class ImageFolder(Protocol):
    """torchvision's ImageFolder or DatasetFolder."""

    root: str
    loader: Callable[[str], Any]
    samples: list[tuple[str, int]]
    classes: list[str]
    transform: Callable[[Any], Any] | None
    target_transform: Callable[[Any], Any] | None


class ArrayDataset(Protocol):
    """One with an array. ``targets``, or in some classes ``labels``, has the labels."""

    data: Any  # an array or a tensor; the user may have replaced it by anything
    transform: Callable[[Any], Any] | None
    target_transform: Callable[[Any], Any] | None


def is_packed(dataset: object) -> TypeGuard[PackedDataset]:
    """Whether it is a PackedDataset."""
    return isinstance(dataset, _class("packed", "PackedDataset"))


def is_packed_itself(dataset: object) -> TypeGuard[PackedDataset]:
    """Whether it is a PackedDataset, and no subclass, which may do anything."""
    return type(dataset) is _class("packed", "PackedDataset")


def is_mix(dataset: object) -> TypeGuard[Mix]:
    """Whether it is a Mix, which no loader has opened yet."""
    return isinstance(dataset, _class("mix", "Mix"))


def is_mix_dataset(dataset: object) -> TypeGuard[MixDataset]:
    """Whether it is the dataset of a Mix."""
    return isinstance(dataset, _class("mix", "MixDataset"))


def is_image_stream(dataset: object) -> TypeGuard[ImageStream]:
    """Whether it is a streaming dataset with a transform of its images."""
    return isinstance(dataset, _class("streams", "ImageStream"))


def _class(module: str, name: str) -> type | tuple[()]:
    """A class of this package; (): nobody has imported it."""
    # while another thread imports the module, it has no such class
    kind: type | tuple[()] = getattr(sys.modules.get(f"{__package__}.{module}"), name, ())
    return kind


def is_image_folder(dataset: object) -> TypeGuard[ImageFolder]:
    """Whether it is torchvision's ImageFolder or DatasetFolder itself."""
    folder, kind = sys.modules.get("torchvision.datasets.folder"), type(dataset)
    names = ("ImageFolder", "DatasetFolder")
    return kind.__name__ in names and kind is getattr(folder, kind.__name__, None)


def is_array_dataset(dataset: object) -> TypeGuard[ArrayDataset]:
    """Whether it is one of torchvision's datasets with an array of images."""
    module, kind = sys.modules.get("torchvision.datasets"), type(dataset)
    return kind.__name__ in _ARRAYS and kind is getattr(module, kind.__name__, None)


def unreadable_type(dataset: object) -> str:
    """Why no engine reads datasets of this type; "": one may read some of them."""
    if type(dataset) in (Subset, ConcatDataset, TensorDataset) or is_mix_dataset(dataset):
        return ""
    if is_packed_itself(dataset) or huggingface.is_dataset(dataset):
        return ""
    if is_image_folder(dataset) or is_array_dataset(dataset):
        return ""
    if is_image_stream(dataset):
        return "the rows of a streaming dataset come from its own code"
    return (
        f"{type(dataset).__name__} is not a dataset that fastload can read itself; if its samples "
        "are images, `fastload pack module:object` packs them into a store that it can read"
    )


def nested(dataset: object) -> Iterator[object]:
    """``dataset``, and the datasets inside it if it is a Subset or a ConcatDataset."""
    yield dataset
    if isinstance(dataset, Subset):
        yield from nested(dataset.dataset)
    elif isinstance(dataset, ConcatDataset):
        for component in dataset.datasets:
            yield from nested(component)


def fetched(dataset: object) -> list[tuple[Store, Mapping[str, float]]]:
    """The stores at URLs in ``dataset`` and in those inside it, with what they have fetched."""
    stores: list[tuple[Store, Mapping[str, float]]] = []
    if f"{__package__}.packed" not in sys.modules:
        return stores  # asked as each epoch begins
    for packed in filter(is_packed, nested(dataset)):
        counts = packed.store.fetched()
        if counts is not None:
            stores.append((packed.store, counts))
    return stores


def check_crc(dataset: object) -> CheckCrc:
    """When to verify checksums of what ``dataset`` reads: of several answers the strictest."""
    said = {packed.check_crc for packed in filter(is_packed, nested(dataset))}
    return next((check for check in ("always", "first", "never") if check in said), "first")


def runnable(dataset: Dataset[Any]) -> Dataset[Any]:
    """``dataset``; if it is one of torchvision's with a list of transforms, a copy that calls each.

    FastLoader takes such a list, torchvision itself would not. The dataset may be in a Subset.
    """
    if type(dataset) is Subset:
        inner = runnable(dataset.dataset)
        return dataset if inner is dataset.dataset else Subset(inner, dataset.indices)
    transform = getattr(dataset, "transform", None)
    if not isinstance(transform, (list, tuple)):
        return dataset
    kind = getattr(sys.modules.get("torchvision.datasets.vision"), "VisionDataset", None)
    if kind is None or not isinstance(dataset, kind):
        return dataset
    from .in_python import EveryView

    made: Dataset[Any] = copy.copy(dataset)
    vars(made)["transform"] = EveryView(transform)
    return made
