"""Samples to batches, without copying what is a batch already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate


class ReadyBatch(list[Any]):
    """A list of samples that were made together and carries them as one batch.

    Attributes:
        ready: the batch, as torch's default_collate would make it of the samples.
    """

    def __init__(self, samples: Sequence[Any], ready: Any) -> None:
        super().__init__(samples)
        self.ready = ready


def collate(samples: Any) -> Any:
    """torch's default_collate, which hands out a ``ReadyBatch`` uncopied.

    FastLoader uses it wherever no ``collate_fn`` was given, so that a loader which a trainer rebuilt
    around a PackedDataset does not stack what the core wrote as one tensor.
    """
    return samples.ready if type(samples) is ReadyBatch else default_collate(samples)


def label_batch(
    labels: np.ndarray, target_transform: Callable[[Any], Any] | None
) -> torch.Tensor | Any:
    """Labels (int64) of a batch as default_collate gives them: an int64 tensor, or what
    ``target_transform`` makes of each, collated."""
    if target_transform is None:
        return torch.from_numpy(labels)
    return default_collate([target_transform(label) for label in labels.tolist()])


def samples_of(
    images: torch.Tensor,
    labels: np.ndarray | None,
    target_transform: Callable[[Any], Any] | None,
) -> list[Any]:
    """The samples of a batch one by one: (image, label), or the image alone where there are none."""
    if labels is None:
        return list(images.unbind())
    targets: list[Any] = labels.tolist()
    if target_transform is not None:
        targets = [target_transform(label) for label in targets]
    return list(zip(images.unbind(), targets, strict=True))
