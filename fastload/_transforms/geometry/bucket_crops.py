"""The crops to an image's bucket, drawn for a whole batch at once: what ``Buckets.crop`` does."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ..._base.value_class import value_class
from ..buckets import Buckets, covering
from .crop_geometry import Array, Frame, Length
from .draws import MAX_SIDE, centre


@value_class()
class CropToBucket:
    """A resize that covers the bucket of the image, and a central crop: see ``Buckets.crop``."""

    buckets: Buckets
    blocks: ClassVar[int] = 0

    def apply(self, frame: Frame, u: Array) -> None:
        sides = np.stack(frame.sides(), axis=1)
        size = np.array(self.buckets.sizes, np.int64)[self.buckets.numbers(sides)]
        w, h = covering(sides[:, 0], sides[:, 1], size[:, 1], size[:, 0])
        frame.refuse(
            (w > MAX_SIDE) | (h > MAX_SIDE),
            f"a side is above {MAX_SIDE} where this {{w}}x{{h}} image covers its bucket; leave the "
            "image out or crop before",
        )
        frame.resize(w, h)
        x, y = self._corner(w - size[:, 1], h - size[:, 0], u)
        centred = not self.blocks
        frame.crop(x, y, size[:, 1], size[:, 0], inside=True, centred=centred)

    def _corner(self, spare_w: Array, spare_h: Array, u: Array) -> tuple[Length, Length]:
        """Where the crop begins, of so many pixels that are over."""
        return centre(spare_w, 0), centre(spare_h, 0)


class RandomCropToBucket(CropToBucket):
    """``CropToBucket`` at a uniform position."""

    blocks: ClassVar[int] = 1

    def _corner(self, spare_w: Array, spare_h: Array, u: Array) -> tuple[Length, Length]:
        drawn = np.stack([u[0, 0] * (spare_w + 1), u[1, 0] * (spare_h + 1)])
        x, y = drawn.astype(np.int64)
        return x, y
