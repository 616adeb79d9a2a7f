"""A list of transforms as one, for what calls its transform: one view of the image for each."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset, Subset

if TYPE_CHECKING:
    from PIL.Image import Image


class EveryView:
    """Calls every transform with the image.

    Args:
        transforms: None gives the image's pixels: uint8 (3, h, w), RGB.
    """

    def __init__(self, transforms: Sequence[Callable[[Any], Any] | None]) -> None:
        self.transforms = tuple(transforms)

    def __call__(self, image: Image) -> list[Any]:
        """The views of ``image``, in order."""
        return [_levels(image) if one is None else one(image) for one in self.transforms]


def _levels(image: Image) -> torch.Tensor:
    """The pixels of an RGB image: uint8 (3, h, w)."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


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
    vision = sys.modules.get("torchvision.datasets.vision")
    if vision is None or not isinstance(dataset, vision.VisionDataset):
        return dataset
    made: Dataset[Any] = copy.copy(dataset)
    vars(made)["transform"] = EveryView(transform)
    return made
