"""PackedDataset: a packed store as a map-style dataset."""

from __future__ import annotations

import copy
import functools
import operator
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from . import _cpu
from ._buffers import SlabRing
from ._collate import ReadyBatch, annotations_of, samples_of
from ._engine import images_of, make_decoder
from ._engine.decoder import Decoder
from ._sampler import repeats_within
from ._transforms import Plan, Views, recognise
from ._views import seed_of
from .errors import UsageError
from .storage import format_of, open_store
from .storage.base import Store

_NO_EPOCH = -1  # set_epoch was not called


class PackedDataset(Dataset[Any]):
    """The images of a packed store, with torchvision's interface.

    A sample is ``(image, label)``, or the image alone where the store has no labels. A label is an
    int or a float; a tensor where the store has several numbers, or float32, for each image.
    Without a transform the image is a uint8 tensor (3, height, width), RGB. Works in torch's own
    DataLoader too, where ``__getitems__`` decodes a whole batch natively.

    With ``fields`` a sample is a dict: "image", "label" (where there are labels) and the fields. A
    field of kind "array" is a tensor, "bytes" is bytes, "text" a str, "json" what the JSON says. In
    a batch an array is one tensor (n, ...), taken from the column at once, and any other field a
    list of n values. (torch's own DataLoader transposes lists and dicts out of JSON, so there it
    needs a ``collate_fn``; FastLoader does not.)

    Example:
        >>> dataset = PackedDataset("imgs.lmdb", transform=train_tf)
        >>> image, label = dataset[0]
        >>> sample = PackedDataset("imgs.lmdb", fields=("mask", "key"))[0]
        >>> sample["image"], sample["label"], sample["mask"], sample["key"]

    Args:
        path: a store that ``fastload pack`` wrote, or an open ``Store``; a list of them is read as
            one store.
        transform: as for torchvision's ImageFolder. What fastload recognises runs in the native
            core; any other callable gets a PIL image. A list of transforms gives a list of views
            in place of the image, drawn independently of each other.
        target_transform: called with each label.
        seed: with an int, augmentation is a pure function of (seed, epoch, index) from the first
            ``set_epoch`` on. Until then, and with None, each batch draws a seed from torch's global
            generator: a trainer that never tells the epoch would see the same crops in all of them.
        fields: names of the fields that samples have, "key" (the record's name) among them; "all":
            every field of the store; None: samples are no dicts.

    Attributes:
        store: the open store.
        fields: names of the fields, or None.
        classes: class names.
        class_to_idx: class name -> label.

    Raises:
        StoreNotFoundError: nothing lies under ``path``.
        StoreError: the store is damaged, unfinished, or of an unknown version.
        UsageError: the store has no such field.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Store | Sequence[str | os.PathLike[str] | Store],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        seed: int | None = None,
        fields: Sequence[str] | str | None = None,
    ) -> None:
        self.store = open_store(path)
        self.fields = _chosen(self.store, fields)
        self.transform = transform
        self.target_transform = target_transform
        self.seed = seed
        self.classes = list(self.store.classes)
        self.class_to_idx = {name: label for label, name in enumerate(self.classes)}
        # Shared memory, so that persistent workers see the epoch that the main process sets.
        self._epoch = torch.full((1,), _NO_EPOCH, dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]
        self._made: tuple[int, list[Decoder]] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that augmentation is drawn for; seen by running workers too."""
        self._epoch[0] = epoch

    @functools.cached_property
    def targets(self) -> list[Any]:
        """The label of every sample, or an empty list in a store without labels.

        An int or a float; a list of them where the store has several for each image.
        """
        labels = self.store.labels
        return [] if labels is None else list(labels.tolist())

    @functools.cached_property
    def samples(self) -> list[tuple[str, Any]]:
        """(key, label) of every sample; the label is -1 in a store without labels."""
        keys = self.store.keys(np.arange(len(self), dtype=np.int64))
        return list(zip(keys, self.targets or [-1] * len(keys), strict=True))

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, index: int) -> Any:
        """Sample ``index``; negative indices count from the end. Raises IndexError beyond it."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The samples ``indices``, decoded as one batch: a list that carries the batch."""
        records = np.array([self._position(index) for index in indices], dtype=np.int64)
        images = self._images(records)
        annotations = annotations_of(
            self.store, records, self.store.labels, self.target_transform, self.fields
        )
        samples = samples_of(images, annotations)
        if isinstance(images, torch.Tensor):
            return ReadyBatch(samples, images, annotations)
        return samples

    def _position(self, index: int) -> int:
        n = len(self.store)
        position = operator.index(index)
        if not -n <= position < n:
            raise IndexError(f"index {position} is out of range for a dataset of {n} samples")
        return position % n

    def _images(self, records: np.ndarray) -> torch.Tensor | list[Any]:
        """The images of ``records``: one tensor, or a list where they do not make a batch."""
        # Read anew for every batch (0.2 ms): the transform may have been changed in place.
        plan = recognise(self.transform)
        if isinstance(plan, Plan):
            return self._decoded([plan], records)[0]
        if isinstance(plan, Views):
            views = self._decoded(plan.each, records)
            return [list(sample) for sample in zip(*views, strict=True)]
        if plan.halves is not None:
            begun = self._decoded([part.plan for part in plan.halves.each], records)
            return plan.halves.samples(begun, self.store, records)
        from ._engine.python import decode_record

        assert self.transform is not None  # None is always recognised
        images = (decode_record(self.store, record) for record in records.tolist())
        return list(map(self.transform, images))

    def _decoded(
        self, plans: Sequence[Plan], records: np.ndarray
    ) -> list[torch.Tensor | list[torch.Tensor]]:
        """What an engine makes of ``records`` by each of ``plans``."""
        (seed, epoch), repeats = self.draw() or (0, 0), None
        if self.draw() is None and any(plan.random for plan in plans):
            seed = int(torch.empty((), dtype=torch.int64).random_())
            repeats = repeats_within(records)
        return [
            images_of(decoder, records, seed=seed_of(seed, view), epoch=epoch, repeats=repeats)
            for view, decoder in enumerate(self._decoders(plans))
        ]

    def draw(self) -> tuple[int, int] | None:
        """Seed and epoch of the augmentation; None where torch's generator decides."""
        epoch = int(self._epoch[0])
        return None if self.seed is None or epoch == _NO_EPOCH else (self.seed, epoch)

    def _decoders(self, plans: Sequence[Plan]) -> list[Decoder]:
        """The decoders of this process."""
        if self._made is not None:
            process, made = self._made
            # Not those that were made before a fork: their threads are the parent's.
            if process == os.getpid() and len(made) == len(plans):
                if all(map(Decoder.makes, made, plans)):
                    return made
        # A worker process is one of many: it decodes on its own thread.
        threads = 0 if get_worker_info() is not None else _cpu.available()
        made = [
            make_decoder("auto", self.store, plan, threads=threads, ring=SlabRing(2))
            for plan in plans
        ]
        self._made = os.getpid(), made
        return made

    def replaced(self, **attributes: Any) -> PackedDataset:
        """A copy with these attributes set, and with an epoch of its own."""
        other = copy.copy(self)
        other.__setstate__({**attributes, "_epoch": self._epoch.clone()})
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # a deep copy is not shared by itself
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]

    def __repr__(self) -> str:
        return (
            f"PackedDataset({self.store.path!r}, {len(self)} samples, {len(self.classes)} classes)"
        )


def _chosen(store: Store, fields: Sequence[str] | str | None) -> tuple[str, ...] | None:
    """The names that ``fields`` asks for, each of which ``store`` has."""
    if fields is None:
        return None
    if fields == "all":
        return tuple(store.fields)
    names = (fields,) if isinstance(fields, str) else tuple(fields)
    unknown = [name for name in names if name not in store.fields and name != "key"]
    if unknown:
        raise UsageError(
            f"expected fields out of {', '.join(['key', *store.fields])}, got "
            f"{', '.join(map(repr, unknown))}: {store.path!r} has no others"
        )
    return names


def open_dataset(dataset: Any, *, seed: int | None, **given: Any) -> Any:
    """What a loader was given as its dataset, opened if it is a path, with what was given beside.

    Args:
        dataset: a dataset; a path; or a list of paths of stores. (A list of other things is a
            dataset by itself, as it is for torch.)
        seed: for a PackedDataset made here.
        given: attributes of a PackedDataset (transform ...), None where not given. They are never
            applied to a dataset that has another one.

    Raises:
        UsageError: the dataset is not ours, or already has another one.
    """
    if isinstance(dataset, (str, os.PathLike)) or _are_stores(dataset):
        return PackedDataset(dataset, seed=seed, **given)
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return dataset
    if not isinstance(dataset, PackedDataset):
        raise UsageError(
            f"{' and '.join(given)} can be given for a path or a PackedDataset; "
            f"a {type(dataset).__name__} applies its own"
        )
    if "fields" in given:
        given["fields"] = _chosen(dataset.store, given["fields"])
    missing = {}
    for name, value in given.items():
        present = getattr(dataset, name)
        if present is None:
            missing[name] = value
        elif present is not value and not (name == "fields" and present == value):
            raise UsageError(f"the PackedDataset already has another {name}; give it in one place")
    # A trainer that rebuilds the loader passes what the dataset already has.
    return dataset.replaced(**missing) if missing else dataset


def _are_stores(dataset: Any) -> bool:
    return (
        isinstance(dataset, (list, tuple))
        and len(dataset) > 0
        and all(
            isinstance(one, Store)
            or (isinstance(one, (str, os.PathLike)) and format_of(one) is not None)
            for one in dataset
        )
    )
