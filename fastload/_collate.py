"""Samples to batches and batches to samples, without copying what is a batch already."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate


class ReadyBatch(list[Any]):
    """A list of samples that were made together and carries their images as one batch.

    Args:
        samples: (image, label) pairs, or images where there are no labels.
        images: (n, 3, h, w); its slices are the images of the samples.
        labelled: whether the samples are pairs.
    """

    def __init__(self, samples: Iterable[Any], images: torch.Tensor, *, labelled: bool) -> None:
        super().__init__(samples)
        self.images = images
        self.labelled = labelled


def collate(samples: Any) -> Any:
    """torch's default_collate, which hands out the images of a ``ReadyBatch`` uncopied.

    FastLoader uses it wherever no ``collate_fn`` was given, so that a loader which a trainer
    rebuilt around a PackedDataset does not stack what the core wrote as one tensor.
    """
    if type(samples) is not ReadyBatch or len(samples) != len(samples.images):
        return default_collate(samples)
    if not samples.labelled:
        return samples.images
    # A tuple, as default_collate's own transposing gives: of strings it returns what it got.
    labels: Any = tuple(label for _, label in samples)
    return [samples.images, default_collate(labels)]


def batch_of(
    images: torch.Tensor,
    labels: np.ndarray | None,
    target_transform: Callable[[Any], Any] | None,
) -> Any:
    """What default_collate makes of the samples: [images, labels], or the images alone.

    Args:
        images: (n, 3, h, w).
        labels: int64 (n,), the caller's to keep, or None.
        target_transform: called with each label as an int, or None.
    """
    if not len(images):
        return default_collate([])  # raises, as in torch
    if labels is None:
        return images
    if target_transform is None:
        return [images, torch.from_numpy(labels)]
    targets: Any = tuple(_targets(labels, target_transform))
    return [images, default_collate(targets)]


def samples_of(
    images: Iterable[Any],
    labels: np.ndarray | None,
    target_transform: Callable[[Any], Any] | None,
) -> list[Any]:
    """The samples one by one: (image, label), or the image alone where there are no labels."""
    if labels is None:
        return list(images)
    return list(zip(images, _targets(labels, target_transform), strict=True))


def _targets(labels: np.ndarray, target_transform: Callable[[Any], Any] | None) -> list[Any]:
    targets: list[Any] = labels.tolist()
    return targets if target_transform is None else list(map(target_transform, targets))
