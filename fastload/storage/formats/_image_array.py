"""Arrays of images, as array files hold them: which axes are which, and what else may lie there.

An image that lies in a file as (height, width, 3) uint8 is a RAW record as it is. Gray images and
(3, height, width) are turned into that when they are read (``Axes.rgb``), which costs a copy.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import StoreError

# Names under which files of others keep images, labels and class names; the first one found counts.
IMAGES = ("images", "image", "data", "x", "X", "img", "imgs")
LABELS = ("labels", "label", "targets", "target", "y", "Y")
CLASSES = ("classes", "class_names", "label_names")

_MAX_NBYTES = 1 << 30  # of one image: what the core reads at most
_MAX_RECORDS = 1 << 31
_MAX_RATIO = 1100  # deflate makes 1,032 bytes out of one at most
_FREE = 1 << 20  # records, or bytes, that are believed without looking


def least_stored(shape: Sequence[int], itemsize: int) -> int:
    """How many bytes an array of this shape takes at least in its file, however compressed.

    At least one for each record, as a table of records is made when a store is opened; a million
    records, and a megabyte, may come out of nothing.
    """
    records = shape[0] if shape else 0
    return max(records - _FREE, (math.prod(shape) * itemsize - _FREE) // _MAX_RATIO)


@dataclasses.dataclass(frozen=True)
class Axes:
    """What the axes of an array of images are.

    Attributes:
        count, height, width: of the images.
        channels: 1 or 3.
        first: channels come before height and width.
        flat: there is no axis of channels.
    """

    count: int
    height: int
    width: int
    channels: int
    first: bool = False
    flat: bool = False

    @property
    def in_place(self) -> bool:
        """Whether an image in the file is a RAW record as it is (if its bytes are contiguous)."""
        return self.channels == 3 and not self.first

    @property
    def nbytes(self) -> int:
        """Of one RAW record."""
        return self.height * self.width * 3

    def rgb(self, image: np.ndarray) -> bytes:
        """One image of the array (without the first axis) as a RAW record."""
        if self.first:
            image = np.moveaxis(image, 0, 2)
        if self.flat:
            image = image[:, :, None]
        return np.broadcast_to(image, (self.height, self.width, 3)).tobytes()


def axes_of(shape: Sequence[int], dtype: Any, path: str, name: str) -> Axes:
    """The axes of the array ``name`` of a file: (N, H, W, 3 or 1), (N, 3 or 1, H, W) or (N, H, W).

    Raises:
        StoreError: no such array, no uint8, or a size that no image has.
    """
    if np.dtype(dtype) != np.uint8:
        raise StoreError(
            f"expected uint8 images in {name!r}, found {dtype}: scale them to 0 to 255 and write "
            "them as uint8",
            path=path,
        )
    count, *rest = shape or (0,)
    if len(rest) == 2:
        axes = Axes(count, rest[0], rest[1], channels=1, flat=True)
    elif len(rest) == 3 and rest[2] in (1, 3):
        axes = Axes(count, rest[0], rest[1], channels=rest[2])
    elif len(rest) == 3 and rest[0] in (1, 3):
        axes = Axes(count, rest[1], rest[2], channels=rest[0], first=True)
    else:
        raise StoreError(
            "expected images of shape (N, H, W, 3), (N, 3, H, W), (N, H, W, 1) or (N, H, W) in "
            f"{name!r}, found {tuple(shape)}",
            path=path,
        )
    if not 0 <= count < _MAX_RECORDS or (
        count and (min(axes.height, axes.width) < 1 or axes.nbytes > _MAX_NBYTES)
    ):
        raise StoreError(
            f"expected fewer than {_MAX_RECORDS} images of at most {_MAX_NBYTES} bytes in "
            f"{name!r}, found a shape of {tuple(shape)}: the file is damaged, or no image store",
            path=path,
        )
    return axes


def first_of(names: Iterable[str], present: Mapping[str, Any] | Iterable[str]) -> str | None:
    """The first of ``names`` that is in ``present``."""
    there = set(present)
    return next((name for name in names if name in there), None)
