"""Images in one array in memory, read in place without a copy; the base of stores in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .base import RAW, Spans, Store


class InMemory(Store):
    """Records in memory of this process, which have no names."""

    mapped = True

    @property
    def files(self) -> Sequence[str]:
        return [self.path]

    def kinds(self, indices: np.ndarray) -> np.ndarray:
        return np.full(len(indices), RAW, np.uint8)

    def keys(self, indices: np.ndarray) -> list[str]:
        return [str(index) for index in indices.tolist()]


class MemoryStore(InMemory):
    """The images of an array: uint8 (n, h, w, 3) with any strides that are not negative.

    Gray images have the stride 0 between their three channels. The next batch sees changes of the
    array, as the dataset that owns it does. ``name`` is for messages.
    """

    format = "memory"

    def __init__(
        self, images: np.ndarray, labels: np.ndarray, *, name: str, classes: Sequence[str] = ()
    ) -> None:
        self.path = f"<{name}>"
        self.classes = list(classes)
        self.metadata: dict[str, Any] = {}
        self.images = images
        self._labels = labels.view()
        self._labels.flags.writeable = False
        sides = zip(images.shape[1:], images.strides[1:], strict=True)
        self._nbytes = 1 + sum((side - 1) * stride for side, stride in sides)

    def __len__(self) -> int:
        return len(self.images)

    def memory(self) -> Mapping[int, np.ndarray]:
        return {0: self.images}

    def spans(self, indices: np.ndarray) -> Spans:
        count = len(indices)
        return Spans(
            file=np.zeros(count, np.int32),
            offset=np.asarray(indices, np.int64) * self.images.strides[0],
            nbytes=np.full(count, self._nbytes, np.int64),
        )

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        height, width = self.images.shape[1:3]
        return np.full((len(indices), 2), (width, height), np.int32)

    @property
    def labels(self) -> np.ndarray:
        labels: np.ndarray = self._labels
        return labels
