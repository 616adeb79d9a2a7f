"""What a dataset is made of, where the engines can read it without the dataset's Python code.

A PackedDataset, a torchvision ImageFolder or DatasetFolder, torchvision's datasets that are arrays
in memory, a TensorDataset, and Subset, random_split and ConcatDataset of these come down to a
store, a plan for its images, and a list of record numbers.
"""

from __future__ import annotations

import dataclasses
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from .._base.indices import as_indices
from .._transforms.python_suffix import Parts
from .._transforms.recognise import Plan, Unrecognised, Views, recognise
from .._transforms.targets.joint import Joint
from ..errors import UsageError
from ..storage.base import Store
from ..storage.tensors import Rows
from . import arrays, huggingface
from .packed import PackedDataset
from .tensors import tensors_of
from .unreadable import Unreadable

if TYPE_CHECKING:
    from ..storage.folder import FolderStore

_Known = tuple[list[Any], "FolderStore"]  # samples and the store over them
_folders: weakref.WeakKeyDictionary[Any, _Known] = weakref.WeakKeyDictionary()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Images that an engine can read.

    Attributes:
        store: holds the records.
        records: int64, the record of each index of the dataset; None: index i is record i.
        plan: what to make of each image.
        labels: of every record, as the store has them; None: a sample has no label.
        target_transform: called with each label, or None.
        fields: names of the fields that come with each image, or None.
        parts: the stores that ``store`` consists of; the same stores mean the same records.
        draw: seed and epoch of the augmentation where the dataset itself has them, else None.
        hybrid: where engines can only begin the transform: what they do, and what Python does
            then; ``plan`` is the beginning. Else None.
        reason: why, in words.
        tensors: a record is a row of each of several tensors, and nothing is done to it.
    """

    store: Store
    records: np.ndarray | None
    plan: Plan | Views
    labels: np.ndarray | None
    target_transform: Callable[[Any], Any] | None
    parts: tuple[Store, ...]
    draw: tuple[int, int] | None = None
    fields: tuple[str, ...] | None = None
    hybrid: Parts | None = None
    reason: str = ""
    tensors: bool = False

    def __len__(self) -> int:
        return len(self.store) if self.records is None else len(self.records)

    def with_output(self, dtype: torch.dtype | None, memory_format: torch.memory_format) -> Source:
        """The same with its images in ``dtype``. Raises UsageError where that cannot be."""
        if not self.tensors:
            return self._with_plan(self.plan.with_output(dtype))
        if dtype is not None or memory_format != torch.contiguous_format:
            raise UsageError(
                "dtype and memory_format are for images that are decoded; the rows of a "
                "TensorDataset come as they are: convert its tensors, or each batch"
            )
        return self

    def with_decode(self, decode: str) -> Source:
        """The same with FastLoader's argument of this name, which is for JPEGs."""
        return self._with_plan(self.plan.with_decode(decode))

    def _with_plan(self, plan: Plan | Views) -> Source:
        return self if plan is self.plan else dataclasses.replace(self, plan=plan)

    def lookup(self, indices: np.ndarray) -> np.ndarray:
        """The record numbers (int64) of the dataset's ``indices``.

        Negative indices count from the end. Raises IndexError for one beyond the dataset.
        """
        n = len(self)
        beyond = (indices < -n) | (indices >= n)
        if beyond.any():
            raise IndexError(
                f"index {indices[beyond][0]} is out of range for a dataset of {n} samples"
            )
        indices = np.where(indices < 0, indices + n, indices)
        return indices if self.records is None else self.records[indices]


# How many records are looked at for images of several sizes; of a folder's their headers are read.
_LOOKED_AT = 256


def check_one_size(source: Source) -> None:
    """Raise Unreadable where images come out in several sizes, as a look at some of them shows.

    Only a collate_fn of the user's makes a batch of them, sample by sample.
    """
    plan = source.plan
    if not isinstance(plan, Plan) or plan.fixed_size or not len(source):
        return
    some = np.linspace(0, len(source) - 1, min(len(source), _LOOKED_AT), dtype=np.int64)
    sizes = source.store.sizes(source.lookup(some))
    known = sizes[sizes.any(axis=1)]  # not of what is no image
    if plan.drawn_size or not (known == known[:1]).all():
        raise Unreadable(
            "the images come out in several sizes, of which only the collate_fn given makes a batch"
        )


def resolve(dataset: Any) -> Source:
    """The source behind ``dataset``; with ``hybrid`` where Python has to end the transform.

    Raises:
        Unreadable: an engine cannot even begin to make its samples.
    """
    if type(dataset) is PackedDataset:
        return _packed(dataset)
    if type(dataset) is Subset:
        return _subset(dataset)
    if type(dataset) is ConcatDataset:
        return _concat(dataset)
    if _is_image_folder(dataset):
        return _image_folder(dataset)
    if arrays.known(dataset):
        return _array_dataset(dataset)
    if type(dataset) is TensorDataset:
        return _tensor_dataset(dataset)
    if huggingface.known(dataset):
        raise Unreadable(huggingface.reason(dataset))
    raise Unreadable(
        f"{type(dataset).__name__} is not a dataset fastload can read by itself; if its samples "
        "are images, `fastload pack module:object` makes a store of it that fastload can"
    )


def nested(dataset: Any) -> Iterator[Any]:
    """``dataset`` and the datasets that it is a Subset or a ConcatDataset of."""
    yield dataset
    inner = [dataset.dataset] if isinstance(dataset, Subset) else []
    for part in dataset.datasets if isinstance(dataset, ConcatDataset) else inner:
        yield from nested(part)


def _packed(dataset: PackedDataset) -> Source:
    return Source(
        store=dataset.store,
        records=None,
        **_chain(dataset.transform, dataset.joint),
        labels=dataset.store.labels,
        target_transform=dataset.target_transform,
        parts=(dataset.store,),
        draw=dataset.draw(),
        fields=dataset.fields,
    )


def _chain(transform: Any, joint: Joint | None = None, mode: str = "RGB") -> dict[str, Any]:
    """What a Source has of a transform."""
    plan = recognise(transform, mode, joint)
    if not isinstance(plan, Unrecognised):
        return {"plan": plan}
    if plan.halves is None:
        raise Unreadable(plan.reason)
    beginnings = tuple(part.plan for part in plan.halves.each)
    begun = Views(beginnings) if plan.halves.views else beginnings[0]
    return {"plan": begun, "hybrid": plan.halves, "reason": plan.reason}


def _subset(dataset: Subset[Any]) -> Source:
    inner = resolve(dataset.dataset)
    try:
        return dataclasses.replace(inner, records=inner.lookup(as_indices(dataset.indices)))
    except (IndexError, TypeError, ValueError) as error:  # raised for the sample where it is met
        reason = f"the Subset has indices that its dataset has not: {error}"
        raise Unreadable(reason) from error


def _concat(dataset: ConcatDataset[Any]) -> Source:
    from ..storage.concat import ConcatStore

    parts = [resolve(inner) for inner in dataset.datasets]
    first = parts[0]
    for part in parts[1:]:
        if not part.plan.same_as(first.plan) or not _same_tails(part.hybrid, first.hybrid):
            raise Unreadable("the parts of the ConcatDataset have different transforms")
        if part.target_transform is not first.target_transform:
            raise Unreadable("the parts of the ConcatDataset have different target_transforms")
        if (part.labels is None) != (first.labels is None):
            raise Unreadable("only some parts of the ConcatDataset have labels")
        if part.tensors != first.tensors:
            raise Unreadable("only some parts of the ConcatDataset are TensorDatasets")
        if part.fields != first.fields:
            raise Unreadable("the parts of the ConcatDataset give different fields")
        for name in part.fields or ():
            if part.store.fields.get(name) != first.store.fields.get(name):
                raise Unreadable(
                    f"the parts of the ConcatDataset have other values in the field {name!r}"
                )
        if part.store.names != first.store.names:
            raise Unreadable(
                "the parts of the ConcatDataset call their images or labels differently"
            )
        if part.draw != first.draw:
            raise Unreadable("the parts of the ConcatDataset have different seeds or epochs")
    ends = np.cumsum([len(part) for part in parts])
    if dataset.cumulative_sizes != ends.tolist():
        raise Unreadable("the parts of the ConcatDataset changed in length after it was made")
    store = ConcatStore([part.store for part in parts])
    if first.tensors and not Rows.of(store).agree():
        raise Unreadable("the TensorDatasets of the ConcatDataset differ in their tensors")
    starts = np.cumsum([0] + [len(part.store) for part in parts[:-1]])
    records = [
        part.lookup(np.arange(len(part), dtype=np.int64)) + start
        for part, start in zip(parts, starts, strict=True)
    ]
    return Source(
        store=store,
        records=np.concatenate(records),
        plan=first.plan,
        labels=store.labels,
        target_transform=first.target_transform,
        parts=tuple(store for part in parts for store in part.parts),
        draw=first.draw,
        fields=first.fields,
        hybrid=first.hybrid,
        reason=first.reason,
        tensors=first.tensors,
    )


def _same_tails(one: Parts | None, other: Parts | None) -> bool:
    tails = [
        None if halves is None else [part.tail for part in halves.each] for halves in (one, other)
    ]
    return tails[0] == tails[1]


def _is_image_folder(dataset: Any) -> bool:
    # If the user's program never imported torchvision, this is none of its datasets.
    folder = sys.modules.get("torchvision.datasets.folder")
    return folder is not None and type(dataset) in (folder.ImageFolder, folder.DatasetFolder)


def _image_folder(dataset: Any) -> Source:
    import torchvision
    from torchvision.datasets import folder

    if dataset.loader not in (folder.default_loader, folder.pil_loader):
        raise Unreadable("the ImageFolder has a loader of its own")
    if dataset.loader is folder.default_loader and torchvision.get_image_backend() != "PIL":
        raise Unreadable(
            f"torchvision's image backend is {torchvision.get_image_backend()}, not PIL"
        )
    if dataset.transform is None:
        raise Unreadable("the ImageFolder has no transform, so its samples are PIL images")
    chain = _chain(dataset.transform)
    store = _folder_store(dataset)
    return Source(
        store=store,
        records=None,
        **chain,
        labels=store.labels,
        target_transform=dataset.target_transform,
        parts=(store,),
    )


def _array_dataset(dataset: Any) -> Source:
    if dataset.transform is None:
        raise Unreadable(
            f"the {type(dataset).__name__} has no transform, so its samples are PIL images"
        )
    found = arrays.arrays_of(dataset)
    return Source(
        store=found.store,
        records=None,
        **_chain(dataset.transform, mode=found.mode),
        labels=found.store.labels,
        target_transform=dataset.target_transform,
        parts=(found.store,),
    )


def _tensor_dataset(dataset: TensorDataset) -> Source:
    store = tensors_of(dataset)
    return Source(
        store=store,
        records=None,
        plan=Plan(dtype=store.tensors[0].dtype, steps=("rows of the tensors as they are",)),
        labels=None,
        target_transform=None,
        parts=(store,),
        tensors=True,
    )


def _folder_store(dataset: Any) -> FolderStore:
    """The store over the dataset's samples.

    Made once: a million paths take a second to list.
    """
    from ..storage.folder import FolderStore

    known = _folders.get(dataset)
    # Compared to a copy, as samples may be changed in place; a million take some milliseconds.
    if known is None or known[0] != dataset.samples:
        if not all(type(label) is int for _, label in dataset.samples):
            raise Unreadable("the ImageFolder has labels that are no ints")
        store = FolderStore.from_samples(dataset.samples, dataset.classes, root=str(dataset.root))
        known = _folders[dataset] = (list(dataset.samples), store)
    return known[1]
