"""What a dataset is made of, where the engines can read it without the dataset's Python code.

A PackedDataset, a torchvision ImageFolder or DatasetFolder, and Subset, random_split and
ConcatDataset of these come down to a store, a plan for its images, and a list of record numbers.
"""

from __future__ import annotations

import dataclasses
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import ConcatDataset, Subset

from ._dataset import PackedDataset
from ._transforms import Plan, Unrecognised, recognise
from .storage.base import Store

if TYPE_CHECKING:
    from .storage.folder import FolderStore

_folders: weakref.WeakKeyDictionary[Any, tuple[object, FolderStore]] = weakref.WeakKeyDictionary()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Images that an engine can read.

    Attributes:
        store: holds the records.
        records: int64, the record of each index of the dataset; None: index i is record i.
        plan: what to make of each image.
        labels: int64, one a record; None: a sample is the image alone.
        target_transform: called with each label, or None.
        key: identifies what the source was made from; equal keys mean an equal source.
    """

    store: Store
    records: np.ndarray | None
    plan: Plan
    labels: np.ndarray | None
    target_transform: Callable[[Any], Any] | None
    key: tuple[object, ...]

    def lookup(self, indices: np.ndarray) -> np.ndarray:
        """The record numbers (int64) of the dataset's ``indices``."""
        return indices if self.records is None else self.records[indices]


def resolve(dataset: Any) -> Source | str:
    """The source behind ``dataset``, or the reason why only its own code can read it."""
    if type(dataset) is PackedDataset:
        return _packed(dataset)
    if type(dataset) is Subset:
        return _subset(dataset)
    if type(dataset) is ConcatDataset:
        return _concat(dataset)
    if _is_image_folder(dataset):
        return _image_folder(dataset)
    return f"{type(dataset).__name__} is not a dataset fastload can read by itself"


def _packed(dataset: PackedDataset) -> Source | str:
    plan = recognise(dataset.transform)
    if isinstance(plan, Unrecognised):
        return plan.reason
    return Source(
        store=dataset.store,
        records=None,
        plan=plan,
        labels=dataset.store.labels,
        target_transform=dataset.target_transform,
        key=(dataset.store, dataset.transform, dataset.target_transform),
    )


def _subset(dataset: Subset[Any]) -> Source | str:
    inner = resolve(dataset.dataset)
    if isinstance(inner, str):
        return inner
    picked = np.asarray(dataset.indices, dtype=np.int64)
    size = len(inner.store) if inner.records is None else len(inner.records)
    if len(picked) and (picked.min() < -size or picked.max() >= size):
        return "the Subset has indices beyond its dataset"
    picked = np.where(picked < 0, picked + size, picked)
    return dataclasses.replace(
        inner, records=inner.lookup(picked), key=(*inner.key, id(dataset.indices), len(picked))
    )


def _concat(dataset: ConcatDataset[Any]) -> Source | str:
    from .storage.concat import ConcatStore

    parts: list[Source] = []
    for inner in dataset.datasets:
        source = resolve(inner)
        if isinstance(source, str):
            return source
        parts.append(source)
    first = parts[0]
    for part in parts[1:]:
        if not part.plan.same_as(first.plan):
            return "the parts of the ConcatDataset have different transforms"
        if part.target_transform is not first.target_transform:
            return "the parts of the ConcatDataset have different target_transforms"
        if (part.labels is None) != (first.labels is None):
            return "only some parts of the ConcatDataset have labels"
    store = ConcatStore([part.store for part in parts])
    starts = np.cumsum([0] + [len(part.store) for part in parts[:-1]])
    records = [
        part.lookup(np.arange(size, dtype=np.int64)) + start
        for part, size, start in zip(parts, map(len, dataset.datasets), starts, strict=True)  # type: ignore[arg-type]
    ]
    return Source(
        store=store,
        records=np.concatenate(records),
        plan=first.plan,
        labels=store.labels,
        target_transform=first.target_transform,
        key=tuple(part.key for part in parts),
    )


def _is_image_folder(dataset: Any) -> bool:
    # If the user's program never imported torchvision, this is none of its datasets.
    folder = sys.modules.get("torchvision.datasets.folder")
    return folder is not None and type(dataset) in (folder.ImageFolder, folder.DatasetFolder)


def _image_folder(dataset: Any) -> Source | str:
    import torchvision
    from torchvision.datasets import folder

    if dataset.loader not in (folder.default_loader, folder.pil_loader):
        return "the ImageFolder has a loader of its own"
    if dataset.loader is folder.default_loader and torchvision.get_image_backend() != "PIL":
        return f"torchvision's image backend is {torchvision.get_image_backend()}, not PIL"
    if dataset.transform is None:
        return "the ImageFolder has no transform, so its samples are PIL images"
    plan = recognise(dataset.transform)
    if isinstance(plan, Unrecognised):
        return plan.reason
    store = _folder_store(dataset)
    return Source(
        store=store,
        records=None,
        plan=plan,
        labels=store.labels,
        target_transform=dataset.target_transform,
        key=(store, dataset.transform, dataset.target_transform),
    )


def _folder_store(dataset: Any) -> FolderStore:
    """The store over the dataset's samples, made once: a million paths take a second to list."""
    from .storage.folder import FolderStore

    key = (id(dataset.samples), len(dataset.samples))
    known = _folders.get(dataset)
    if known is None or known[0] != key:
        store = FolderStore.from_samples(dataset.samples, dataset.classes, root=str(dataset.root))
        known = _folders[dataset] = (key, store)
    return known[1]
