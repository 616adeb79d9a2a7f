"""Samples to batches and batches to samples, without copying what is a batch already.

A sample is the image; or (image, label) where the store has labels; or, where fields were asked
for, a dict of "image", "label" (in a store with labels) and the fields.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import default_collate

from ..errors import StoreError
from ..storage.base import Store

Collate: TypeAlias = Callable[[Any], Any]
"""A ``collate_fn``: takes a list of samples, or one sample where there are no batches."""


@dataclasses.dataclass(frozen=True)
class Annotations:
    """What n records have beside their images.

    Attributes:
        labels: (n,) or (n, k), the caller's to keep; None: a sample has no label.
        target_transform: called with each label, or None.
        fields: name -> tensor (n, ...), or a list of n values; None: no fields were asked for.
        names: of the image and of the label in a sample that is a dict.
    """

    labels: np.ndarray | None
    target_transform: Callable[[Any], Any] | None
    fields: Mapping[str, torch.Tensor | list[Any]] | None
    names: tuple[str, str] = ("image", "label")

    def targets(self) -> list[Any]:
        """The labels one by one, transformed; only where there are labels.

        A number is int or float, so that default_collate makes int64 or float64 of it; anything
        else, a float32 or several numbers, is a tensor.
        """
        assert self.labels is not None
        plain = self.labels.ndim == 1 and self.labels.dtype.itemsize == 8
        targets = self.labels.tolist() if plain else list(torch.from_numpy(self.labels))
        return (
            targets if self.target_transform is None else list(map(self.target_transform, targets))
        )

    def batch(self) -> Any:
        """The labels as default_collate would give them."""
        assert self.labels is not None
        if self.target_transform is None:
            return torch.from_numpy(self.labels)
        # A tuple, as default_collate's own transposing gives: of strings it returns what it got.
        targets: Any = tuple(self.targets())
        return default_collate(targets)


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
        store: for the fields.
        records: record numbers.
        labels: of all records, or None.
        target_transform: for the labels.
        names: of the fields wanted, "key" among them; None: none, and a sample is no dict.
        moved: fields of these records that moved along with their images, by name.

    Raises:
        StoreError: a value that is not what its field says, or the store was cut short.
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
    store.check_whole()  # now that all was read
    return annotations


def _values(store: Store, name: str, records: np.ndarray) -> torch.Tensor | list[Any]:
    if name == "key" and name not in store.fields:
        return list(store.keys(records))
    try:
        values = store.batch(name, records)
        return torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    except (ValueError, RecursionError) as error:
        raise StoreError(
            f"expected {store.fields[name].kind} in the field {name!r} of these records, found "
            f"something else: {error}",
            path=store.path,
            record=int(records[0]) if len(records) == 1 else None,
        ) from error


class ReadyBatch(list[Any]):
    """A list of samples that were made together and carries their images as one batch.

    Whoever gets it may change it, as any list, and the values of its dicts. ``untouched`` says
    whether that batch is still what the samples are.

    Args:
        samples: as ``samples_of`` gives them.
        images: (n, 3, h, w); its slices are the images of the samples.
        annotations: of the same records.
    """

    def __init__(
        self, samples: Iterable[Any], images: torch.Tensor, annotations: Annotations
    ) -> None:
        super().__init__(samples)
        self.images = images
        self.annotations = annotations
        self._given = _parts(self)

    def untouched(self) -> bool:
        """Whether it holds the very objects that it was made with, in their order."""
        parts = _parts(self)
        return len(parts) == len(self._given) and all(map(operator.is_, parts, self._given))


def _parts(samples: list[Any]) -> list[Any]:
    """The samples themselves; of dicts all keys and values."""
    parts: list[Any] = []
    for sample in samples:
        parts += [*sample, *sample.values()] if isinstance(sample, dict) else [sample]
    return parts


def collate(samples: Any) -> Any:
    """torch's default_collate, which hands out the images of a ``ReadyBatch`` uncopied.

    FastLoader uses it wherever no ``collate_fn`` was given, so that worker processes over a
    PackedDataset do not stack what the core wrote as one tensor.
    """
    if type(samples) is not ReadyBatch or not samples.untouched():
        return default_collate(samples)
    images, annotations = samples.images, samples.annotations
    if annotations.fields is not None:
        name = annotations.names[1]
        label = default_collate([sample[name] for sample in samples]) if (
            annotations.labels is not None
        ) else None  # fmt: skip
        return _as_dict(images, label, annotations)
    if annotations.labels is None:
        return images
    labels: Any = tuple(label for _, label in samples)
    return [images, default_collate(labels)]


def batch_of(images: torch.Tensor | list[torch.Tensor], annotations: Annotations) -> Any:
    """What ``collate`` makes of the samples: [images, labels], the images alone, or a dict.

    Args:
        images: (n, 3, h, w), or a list of such views.
        annotations: of the same records.
    """
    if not len(images[0] if isinstance(images, list) else images):
        return default_collate([])  # raises, as in torch
    labels = None if annotations.labels is None else annotations.batch()
    if annotations.fields is not None:
        return _as_dict(images, labels, annotations)
    return images if labels is None else [images, labels]


def images_of(batch: Any) -> torch.Tensor:
    """The images of what ``batch_of`` made."""
    if isinstance(batch, dict):
        batch = next(iter(batch.values()))  # the first entry, whatever it is called
    images: torch.Tensor = batch if isinstance(batch, torch.Tensor) else batch[0]
    return images


def with_images(batch: Any, images: torch.Tensor) -> Any:
    """What ``batch_of`` made, with other images."""
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


def _as_dict(images: Any, labels: Any, annotations: Annotations) -> dict[str, Any]:
    image, label = annotations.names
    fields = annotations.fields or {}
    return {image: images, **({} if labels is None else {label: labels}), **fields}
