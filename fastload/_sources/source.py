"""Source: what an engine reads in place of a dataset, without running the dataset's Python code.

There is a source for a PackedDataset, a torchvision ImageFolder or DatasetFolder, torchvision's
datasets with an array in memory, a TensorDataset, and Subset, random_split and ConcatDataset of
these. It consists of a store, a plan for the images, and a list of record numbers.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from .._base.indices import as_indices
from .._base.value_class import value_class
from .._transforms.plan import Plan, Views
from ..errors import UsageError
from ..hints import CheckCrc
from ..storage.base import Store
from . import huggingface
from .kinds import (
    ArrayDataset,
    ImageFolder,
    is_array_dataset,
    is_image_folder,
    is_mix_dataset,
    unreadable_type,
)
from .packed import PackedDataset, augmentation_of
from .unreadable import Unreadable

if TYPE_CHECKING:  # a program mostly has one kind of dataset
    from .._transforms.targets.joint import Joint
    from ..storage.folder import FolderStore
    from ..storage.memory import TensorStore


# Stores over image folders, with the samples that they were made for.
_Known = tuple[list[tuple[str, int]], "FolderStore"]
_folders: weakref.WeakKeyDictionary[ImageFolder, _Known] = weakref.WeakKeyDictionary()
_tensor_stores: weakref.WeakKeyDictionary[TensorDataset, TensorStore] = weakref.WeakKeyDictionary()


@value_class(kw_only=True)
class Source:
    """Samples that an engine can make.

    Attributes:
        store: holds the records.
        records: int64, the record number of each index of the dataset; None: index i is record i.
        plan: what to do with each image.
        labels: of every record, as the store has them; None: samples have no label.
        target_transform: called with each label, or None.
        parts: the stores that ``store`` consists of; the same stores mean the same records.
        draw: seed and epoch of the augmentation if the dataset itself has them, else None.
        fields: names of the fields that come with each image, or None.
        tensors: whether a record is a row of each of several tensors, which is only copied.
        check_crc: when checksums are verified, as the PackedDataset says.
    """

    store: Store
    records: np.ndarray | None = None
    plan: Plan | Views
    labels: np.ndarray | None = None
    target_transform: Callable[[Any], Any] | None = None
    parts: tuple[Store, ...]
    draw: tuple[int, int] | None = None
    fields: tuple[str, ...] | None = None
    tensors: bool = False
    check_crc: CheckCrc = "first"

    def __len__(self) -> int:
        return len(self.store) if self.records is None else len(self.records)

    def made_as(
        self, dtype: torch.dtype | None, memory_format: torch.memory_format, decode: str
    ) -> Source:
        """The source with these arguments of FastLoader. Raises UsageError if it can't be."""
        if self.tensors:
            if dtype is not None or memory_format != torch.contiguous_format:
                raise UsageError(
                    "dtype and memory_format apply to decoded images, got a TensorDataset, whose "
                    "rows are copied unchanged: convert its tensors, or each batch"
                )
            return self
        if dtype is None and decode == "exact":
            return self
        return dataclasses.replace(self, plan=self.plan.with_output(dtype).with_decode(decode))

    def lookup(self, indices: np.ndarray) -> np.ndarray:
        """The record numbers (int64) of the dataset's ``indices`` (int64).

        Negative indices count from the end. Raises IndexError for an index out of range.
        """
        n = len(self)
        out_of_range = (indices < -n) | (indices >= n)
        if out_of_range.any():
            raise IndexError(
                f"index {indices[out_of_range][0]} is out of range for a dataset of {n} samples"
            )
        indices = np.where(indices < 0, indices + n, indices)
        return indices if self.records is None else self.records[indices]


# How many records are examined for their sizes; for a folder, their headers are read.
_LOOKED_AT = 256


def check_one_size(source: Source) -> None:
    """Raise Unreadable if a sample of the images shows that they come out in several sizes.

    Only a user's ``collate_fn`` can make a batch of such images.
    """
    plan = source.plan
    if not isinstance(plan, Plan) or plan.fixed_size or not len(source):
        return
    some = np.linspace(0, len(source) - 1, min(len(source), _LOOKED_AT), dtype=np.int64)
    sizes = source.store.sizes(source.lookup(some))
    of_images = sizes[sizes.any(axis=1)]  # without records that are no images
    if plan.drawn_size or not (of_images == of_images[:1]).all():
        raise Unreadable(
            "the images come out in several sizes, so only the given collate_fn can make a batch"
        )


def resolve(dataset: object) -> Source:
    """The source of ``dataset``.

    Raises:
        Unreadable: an engine cannot make its samples.
    """
    if type(dataset) is PackedDataset:
        return _packed(dataset)
    if type(dataset) is Subset:
        return _subset(dataset)
    if type(dataset) is ConcatDataset or is_mix_dataset(dataset):
        return _concat(dataset)
    if is_image_folder(dataset):
        return _image_folder(dataset)
    if is_array_dataset(dataset):
        return _array_dataset(dataset)
    if type(dataset) is TensorDataset:
        return _tensor_dataset(dataset)
    if huggingface.is_dataset(dataset):
        raise Unreadable(huggingface.reason(dataset))
    raise Unreadable(unreadable_type(dataset))


def image_sizes(dataset: object) -> np.ndarray:
    """Width and height of every image of a dataset, (n, 2); (0, 0) where there is no image.

    Those of a store or of files are read once per process. A user's Dataset tells them by
    ``get_height_and_width(index)``, as torchvision's scripts for detection ask for them.

    Raises:
        Unreadable: they are not known.
    """
    ask = getattr(dataset, "get_height_and_width", None)
    if callable(ask):
        length = len(dataset)  # type: ignore[arg-type]
        told = np.array([ask(index) for index in range(length)], np.int64)
        sizes: np.ndarray = told.reshape(length, 2)[:, ::-1]
        return sizes
    if type(dataset) is Subset:
        inner = image_sizes(dataset.dataset)
        return np.take(inner, as_indices(dataset.indices), axis=0)
    if type(dataset) is ConcatDataset and dataset.datasets:
        return np.concatenate([image_sizes(component) for component in dataset.datasets])
    store: Store | None = None  # of these, whatever the transform is
    if type(dataset) is PackedDataset:
        store = dataset.store
    elif is_image_folder(dataset):
        store = folder_store(dataset)
    if store is not None:
        return store.sizes(np.arange(len(store), dtype=np.int64))
    source = resolve(dataset)
    if source.tensors:
        raise Unreadable("a TensorDataset has no images")
    return source.store.sizes(source.lookup(np.arange(len(source), dtype=np.int64)))


def _packed(dataset: PackedDataset) -> Source:
    return Source(
        store=dataset.store,
        plan=_plan(dataset.transform, dataset.joint),
        labels=dataset.store.labels,
        target_transform=dataset.target_transform,
        parts=(dataset.store,),
        draw=augmentation_of(dataset),
        fields=dataset.fields,
        check_crc=dataset.check_crc,
    )


def _plan(
    transform: Callable[[Any], Any] | None, joint: Joint | None = None, mode: str = "RGB"
) -> Plan | Views:
    """The plan of a transform. Raises Unreadable if an engine cannot do it."""
    from .._transforms.recognise import Unrecognised, recognise

    plan = recognise(transform, mode, joint)
    if isinstance(plan, Unrecognised):
        raise Unreadable(plan.reason)
    return plan


def _subset(dataset: Subset[Any]) -> Source:
    inner = resolve(dataset.dataset)
    try:
        return dataclasses.replace(inner, records=inner.lookup(as_indices(dataset.indices)))
    except (IndexError, TypeError, ValueError) as error:  # raised again for that sample
        reason = f"the Subset has indices that its dataset does not have: {error}"
        raise Unreadable(reason) from error


def _concat(dataset: ConcatDataset[Any]) -> Source:
    from ..storage.concat import ConcatStore, NumberedConcatStore
    from ..storage.memory import Rows
    from .mix import COMPONENT, MixDataset

    kind = "Mix" if isinstance(dataset, MixDataset) else "ConcatDataset"
    sources = [resolve(inner) for inner in dataset.datasets]
    first = sources[0]
    for source in sources[1:]:
        if not source.plan.same_as(first.plan):
            raise Unreadable(f"the parts of the {kind} have different transforms")
        if source.target_transform is not first.target_transform:
            raise Unreadable(f"the parts of the {kind} have different target_transforms")
        if (source.labels is None) != (first.labels is None):
            raise Unreadable(f"only some parts of the {kind} have labels")
        if source.tensors != first.tensors:
            raise Unreadable(f"only some parts of the {kind} are TensorDatasets")
        if source.fields != first.fields:
            raise Unreadable(f"the parts of the {kind} give different fields")
        for name in source.fields or ():
            if source.store.fields.get(name) != first.store.fields.get(name):
                raise Unreadable(f"the field {name!r} differs between the parts of the {kind}")
        if source.store.names != first.store.names:
            raise Unreadable(f"the parts of the {kind} have different names for images or labels")
        if source.check_crc != first.check_crc:
            raise Unreadable(f"the parts of the {kind} have different values of check_crc")
        if source.draw != first.draw:
            raise Unreadable(f"the parts of the {kind} have different seeds or epochs")
    ends = np.cumsum([len(source) for source in sources])
    if dataset.cumulative_sizes != ends.tolist():
        raise Unreadable(f"the parts of the {kind} changed in length after it was made")
    stores, fields = [source.store for source in sources], first.fields
    if isinstance(dataset, MixDataset) and dataset.mix.numbered:
        store: ConcatStore = NumberedConcatStore(stores, COMPONENT)
        fields = (*(fields or ()), COMPONENT)
    else:
        store = ConcatStore(stores)
    if first.tensors and not Rows.of(store).agree():
        raise Unreadable(f"the TensorDatasets of the {kind} differ in their tensors")
    starts = np.cumsum([0] + [len(source.store) for source in sources[:-1]])
    records = [
        source.lookup(np.arange(len(source), dtype=np.int64)) + start
        for source, start in zip(sources, starts, strict=True)
    ]
    return Source(
        store=store,
        records=np.concatenate(records),
        plan=first.plan,
        labels=store.labels,
        target_transform=first.target_transform,
        parts=tuple(store for source in sources for store in source.parts),
        draw=first.draw,
        fields=fields,
        tensors=first.tensors,
        check_crc=first.check_crc,
    )


def check_loader(dataset: ImageFolder) -> None:
    """Raise Unreadable if its samples are not what Pillow reads from its files."""
    import torchvision
    from torchvision.datasets import folder

    if dataset.loader not in (folder.default_loader, folder.pil_loader):
        raise Unreadable("the ImageFolder has a custom loader")
    if dataset.loader is folder.default_loader and torchvision.get_image_backend() != "PIL":
        raise Unreadable(
            f"torchvision's image backend is {torchvision.get_image_backend()}, not PIL"
        )


def _image_folder(dataset: ImageFolder) -> Source:
    check_loader(dataset)
    if dataset.transform is None:
        raise Unreadable("the ImageFolder has no transform, so its samples are PIL images")
    plan = _plan(dataset.transform)
    store = folder_store(dataset)
    return Source(
        store=store,
        plan=plan,
        labels=store.labels,
        target_transform=dataset.target_transform,
        parts=(store,),
    )


def _array_dataset(dataset: ArrayDataset) -> Source:
    if dataset.transform is None:
        raise Unreadable(
            f"the {type(dataset).__name__} has no transform, so its samples are PIL images"
        )
    from . import arrays

    dataset_arrays = arrays.arrays_of(dataset)
    return Source(
        store=dataset_arrays.store,
        plan=_plan(dataset.transform, mode=dataset_arrays.mode),
        labels=dataset_arrays.store.labels,
        target_transform=dataset.target_transform,
        parts=(dataset_arrays.store,),
    )


def _tensor_dataset(dataset: TensorDataset) -> Source:
    """Its tensors as they are now: they may be replaced between epochs.

    torch takes each sample out of the tensors and stacks the samples again; an engine copies the
    rows of a batch once. Structure, types and values are those of default_collate.
    """
    from .._base.nested import plain
    from ..storage.memory import TensorStore

    tensors = dataset.tensors
    if not tensors or not all(plain(t) and t.dim() > 0 and t.is_contiguous() for t in tensors):
        raise Unreadable(
            "the TensorDataset has tensors that are not plain, contiguous ones on the CPU"
        )
    if any(not t.numel() or t.shape[0] != tensors[0].shape[0] for t in tensors):
        raise Unreadable("the TensorDataset has tensors that are empty or differ in length")
    store = _tensor_stores.get(dataset)
    if store is None or not store.reads(tensors):
        store = _tensor_stores[dataset] = TensorStore(tensors)
    return Source(
        store=store,
        plan=_rows_as_they_are(store.tensors[0].dtype),
        parts=(store,),
        tensors=True,
    )


@functools.cache
def _rows_as_they_are(dtype: torch.dtype) -> Plan:
    return Plan(dtype=dtype, steps=("rows of the tensors as they are",))


def folder_store(dataset: ImageFolder) -> FolderStore:
    """The store over the dataset's samples.

    It is made once, as listing a million paths takes a second.

    Raises:
        Unreadable: it has labels that are not ints.
    """
    from ..storage.folder import FolderStore

    remembered = _folders.get(dataset)
    # Compared with a copy, because the list may be changed in place; a million samples take some
    # milliseconds.
    if remembered is None or remembered[0] != dataset.samples:
        if not all(type(label) is int for _, label in dataset.samples):
            raise Unreadable("the ImageFolder has labels that are not ints")
        store = FolderStore.from_samples(dataset.samples, dataset.classes, root=str(dataset.root))
        remembered = _folders[dataset] = (list(dataset.samples), store)
    return remembered[1]
