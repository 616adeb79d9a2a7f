"""The Dataset of the demo: written as people write their own, with Pillow and a transform."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from PIL import Image
from torch.utils.data import Dataset


class Photos(Dataset[tuple[torch.Tensor, int]]):
    """Opens a file, applies the transform, and returns the result with the label.

    Nothing in it is made for fastload. A sample is (float32 (3, h, w), int).

    Args:
        samples: path and label of each image.
        transform: PIL image -> tensor.
    """

    def __init__(
        self, samples: Sequence[tuple[str, int]], transform: Callable[[Image.Image], torch.Tensor]
    ) -> None:
        self.samples = samples
        self.transform = transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.samples[index]
        with Image.open(path) as image:
            return self.transform(image.convert("RGB")), label
