"""Random erasing: the rectangles that are erased in the finished sample, and their values.

The rectangles are those of torchvision's ``RandomErasing.get_params``. For values with a normal
distribution, a table holds 65,536 equally likely quantiles. The core and the device stage look
them up by the same 16 random bits, so neither needs a logarithm that the other computes
identically.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from ..._base.value_class import value_class
from ..geometry.crop_geometry import Array

if TYPE_CHECKING:
    import numpy.typing as npt  # 20 ms

QUANTILES = 65536
_TRIES = 10


@value_class(eq=False)
class Erase:
    """One erased rectangle with probability ``p``.

    Attributes:
        scale: range of the rectangle's area relative to the image.
        ratio: range of its height divided by its width.
        values: (3, 1), a value for each channel, or (3, 65536), equally likely values; in the dtype
            in which the output is stored, or as its bits.
        bits: ``values`` (3, 1) are unsigned integers; of each value in the rectangle these bits
            remain. Its sign, for example, as of a value that is multiplied by zero.
    """

    p: float
    scale: tuple[float, float]
    ratio: tuple[float, float]
    values: npt.NDArray[np.generic]
    bits: bool = False

    @property
    def noise(self) -> bool:
        """Whether each value is random."""
        return bool(self.values.shape[1] > 1)

    def same_as(self, other: Erase) -> bool:
        """Whether both erase the same for the same random numbers."""
        mine, theirs = (
            (each.p, each.scale, each.ratio, each.values.dtype, each.values.tobytes(), each.bits)
            for each in (self, other)
        )
        return bool(mine == theirs)

    def boxes(self, u: Array, width: int, height: int) -> npt.NDArray[np.int32]:
        """(n, 4): x, y, width, height; width 0: none. ``u``: (n, 41), uniform."""
        area = width * height * (self.scale[0] + u[:, 1::4] * (self.scale[1] - self.scale[0]))
        low, high = np.log(self.ratio)
        aspect = np.exp(low + u[:, 2::4] * (high - low))
        h, w = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
        fits = (h < height) & (w < width)
        chosen = (np.arange(len(u)), fits.argmax(axis=1))
        h, w = h[chosen].astype(np.int64), w[chosen].astype(np.int64)
        boxes = np.zeros((len(u), 4), np.int32)
        erased = (u[:, 0] < self.p) & fits[chosen] & (h > 0) & (w > 0)
        y = (u[:, 3::4][chosen] * (height - h + 1)).astype(np.int64)
        x = (u[:, 4::4][chosen] * (width - w + 1)).astype(np.int64)
        boxes[erased] = np.stack([x, y, w, h], axis=1)[erased]
        return boxes


class ErasedBoxes(NamedTuple):
    """The erased rectangles of n samples.

    Attributes:
        boxes: int32 (n, e, 4): x, y, width, height; width 0: none.
        keys: uint64 (n, e): the random key of the noise in each.
    """

    boxes: npt.NDArray[np.int32]
    keys: npt.NDArray[np.uint64]

    def columns(self) -> torch.Tensor:
        """int64 (e, 5, n), on the host: x, y, width, height and key (its 64 bits)."""
        keys = self.keys.view(np.int64)[:, :, None]
        joined = np.concatenate([self.boxes.astype(np.int64), keys], axis=2)
        return torch.from_numpy(np.ascontiguousarray(joined.transpose(1, 2, 0)))


NUMBERS = 1 + 4 * _TRIES
"""Uniform numbers that ``Erase.boxes`` needs for each sample."""


@lru_cache(maxsize=1)
def quantiles() -> npt.NDArray[np.float32]:
    """65,536 equally likely values of the standard normal distribution, float32, in order."""
    import statistics  # here, because it imports decimal and fractions: 2 ms

    normal = statistics.NormalDist()
    half = [normal.inv_cdf((i + 0.5) / QUANTILES) for i in range(QUANTILES // 2)]
    return np.array(half + [-x for x in reversed(half)], dtype=np.float32)
