"""Collating samples into batches and taking batches apart, without copying images.

A sample is an image; or (image, label) if the store has labels; or, if fields were asked for, a
dict of "image", "label" (if the store has labels) and the fields.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch.utils.data import default_collate

if TYPE_CHECKING:
    from ..storage.base import Store


Collate: TypeAlias = Callable[[Any], Any]
"""A ``collate_fn``: takes a list of samples, or one sample where there are no batches."""


class Annotations(NamedTuple):
    """What n records have besides their images.

    Attributes:
        labels: (n,) or (n, k), owned by the caller; None: samples have no label.
        target_transform: called with each label, or None.
        fields: name -> tensor (n, ...) or list of n values; None: no fields were asked for.
        names: keys of the image and of the label in a sample that is a dict.
    """

    labels: np.ndarray | None
    target_transform: Callable[[Any], Any] | None
    fields: Mapping[str, torch.Tensor | list[Any]] | None
    names: tuple[str, str] = ("image", "label")

    def targets(self) -> list[Any]:
        """The transformed labels, one by one. Only call it if there are labels.

        int64 and float64 labels are Python numbers, so that default_collate gives back their dtype.
        All others (float32, or several numbers each) are tensors.
        """
        assert self.labels is not None
        plain = self.labels.ndim == 1 and self.labels.dtype.itemsize == 8
        targets = self.labels.tolist() if plain else list(torch.from_numpy(self.labels))
        return (
            targets if self.target_transform is None else list(map(self.target_transform, targets))
        )

    def batch(self) -> Any:
        """The labels as default_collate collates them."""
        assert self.labels is not None
        if self.target_transform is None:
            return torch.from_numpy(self.labels)
        # A tuple, as default_collate makes of a column: strings are returned as they are given.
        return default_collate(tuple(self.targets()))  # type: ignore[arg-type]


def annotations_of(
    store: Store,
    records: np.ndarray,
    labels: np.ndarray | None,
    target_transform: Callable[[Any], Any] | None,
    names: tuple[str, ...] | None,
    moved: Mapping[str, Any] | None = None,
) -> Annotations:
    """Labels and fields of ``records`` (int64, in range).

    Args:
        store, records: whose fields.
        labels: of all records of the store, or None.
        target_transform: for the labels.
        names: of the fields to return, possibly "key"; None: no fields, and samples are no dicts.
        moved: fields of these records that were transformed along with their images, by name.

    Raises:
        StoreError: a value does not fit its field, or the store was truncated meanwhile.
    """
    moved = moved or {}
    annotations = Annotations(
        None if labels is None else labels[records],
        target_transform,
        None
        if names is None
        else {
            name: moved[name] if name in moved else _values(store, name, records) for name in names
        },
        store.names,
    )
    store.check_whole()  # after everything was read
    return annotations


def _values(store: Store, name: str, records: np.ndarray) -> torch.Tensor | list[Any]:
    if name == "key" and name not in store.fields:
        return list(store.keys(records))
    from ..storage._read import check_decoded

    values = check_decoded(store, name, records)
    return torch.from_numpy(values) if isinstance(values, np.ndarray) else values


class ReadyBatch(list[Any]):
    """A list of samples that also has their images as one batch.

    Like any list, and like the dicts in it, it may be changed by the code that gets it.
    ``untouched`` says whether the batch still agrees with the samples.

    Args:
        samples: as ``samples_of`` returns them.
        images: (n, 3, h, w); its slices are the images of the samples.
        annotations: of the same records.
    """

    def __init__(
        self, samples: Iterable[Any], images: torch.Tensor, annotations: Annotations
    ) -> None:
        super().__init__(samples)
        self.images = images
        self.annotations = annotations
        self._before = _objects_of(self)

    def untouched(self) -> bool:
        """Whether it still contains the same objects in the same order."""
        objects = _objects_of(self)
        return len(objects) == len(self._before) and all(map(operator.is_, objects, self._before))


def _objects_of(samples: list[Any]) -> list[object]:
    """The samples; for dicts, their keys and values."""
    objects: list[object] = []
    for sample in samples:
        objects += [*sample, *sample.values()] if isinstance(sample, dict) else [sample]
    return objects


def collate(samples: Any) -> Any:
    """torch's default_collate, except that the images of a ``ReadyBatch`` are not copied.

    FastLoader uses it if no ``collate_fn`` was given, so that worker processes do not stack images
    of a PackedDataset that the core has written as one tensor.
    """
    if type(samples) is not ReadyBatch or not samples.untouched():
        return default_collate(samples)
    images, annotations = samples.images, samples.annotations
    labels: list[Any] | tuple[Any, ...]  # strings are returned as they are given
    if annotations.labels is None:
        return _joined(images, None, annotations)
    if annotations.fields is None:
        labels = tuple(label for _, label in samples)
    else:
        labels = [sample[annotations.names[1]] for sample in samples]
    return _joined(images, default_collate(labels), annotations)  # type: ignore[arg-type]


def batch_of(images: torch.Tensor | list[torch.Tensor], annotations: Annotations) -> Any:
    """The batch that ``collate`` makes of the samples: [images, labels], images, or a dict.

    Args:
        images: (n, 3, h, w), or a list of such tensors, one for each view.
        annotations: of the same records.
    """
    if not len(images[0] if isinstance(images, list) else images):
        return default_collate([])  # raises the same error as in torch
    labels = None if annotations.labels is None else annotations.batch()
    return _joined(images, labels, annotations)


def images_of(batch: Any) -> torch.Tensor:
    """The images of a batch from ``batch_of``."""
    if isinstance(batch, dict):
        batch = next(iter(batch.values()))  # the first entry, under any name
    images: torch.Tensor = batch if isinstance(batch, torch.Tensor) else batch[0]
    return images


def with_images(batch: Any, images: torch.Tensor) -> Any:
    """A batch from ``batch_of``, with other images."""
    if isinstance(batch, dict):
        return {**batch, next(iter(batch)): images}
    return images if isinstance(batch, torch.Tensor) else [images, *batch[1:]]


def samples_of(images: Iterable[Any], annotations: Annotations) -> list[Any]:
    """The samples one by one."""
    fields = annotations.fields
    if fields is None:
        if annotations.labels is None:
            return list(images)
        return list(zip(images, annotations.targets(), strict=True))
    image, label = annotations.names
    columns: dict[str, Iterable[Any]] = {image: images}
    if annotations.labels is not None:
        columns[label] = annotations.targets()
    columns |= fields
    return [dict(zip(columns, values)) for values in zip(*columns.values(), strict=True)]


def _joined(
    images: torch.Tensor | list[torch.Tensor], labels: Any, annotations: Annotations
) -> Any:
    if annotations.fields is None:
        return images if labels is None else [images, labels]
    image, label = annotations.names
    return {image: images, **({} if labels is None else {label: labels}), **annotations.fields}
