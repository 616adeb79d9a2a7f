"""The core's operations on the pixels of a sample: their codes, and the slots that hold them.

Between two frames of geometry (crop_geometry.py) a sample passes through *slots*. A slot is an
operation of the core: its code (numbered in pixels/pixels.h) and its values. Both may differ from
sample to sample, so a choice, an order or a probability only decides which code is in which slot.
"""

from __future__ import annotations

import numpy as np

from ..geometry.crop_geometry import Array

# pixels/pixels.h's PixelOp
NONE, BRIGHTNESS, CONTRAST, SATURATION, HUE, SHARPNESS, GRAYSCALE, INVERT = range(8)
SOLARIZE, POSTERIZE, AUTOCONTRAST, EQUALIZE, MIRROR, UPSIDE_DOWN = range(8, 14)
ROTATE_180, ROTATE_90, ROTATE_270, AFFINE, BLUR, AFFINE_TO, MIX_BEGIN, MIX_ADD = range(14, 22)
TORCH_BRIGHTNESS, TORCH_CONTRAST, TORCH_SATURATION, TORCH_SHARPNESS = range(22, 26)
TORCH_AUTOCONTRAST, TORCH_AFFINE, SOLARIZE_ADD, BOX_BLUR, PERSPECTIVE = range(26, 31)
LEVELS, KERNEL, TORCH_BLUR, CONTRAST_CROP, PAD, ORDER, RECTANGLE, TORCH_HUE = range(31, 39)

MOST_BLURRED = 65_535
"""Pixels: the largest radius of BOX_BLUR."""

Slots = tuple[Array, Array]
"""Codes int32 (n, slots) and values float64 (n, slots, width); n 1: the same for all samples."""


def empty(n: int, slots: int, width: int) -> Slots:
    """Slots that do nothing."""
    return np.zeros((n, slots), np.int32), np.zeros((n, slots, width))


def joined(groups: list[Slots], n: int) -> Slots:
    """All slots of n samples, those of one part after those of the other."""
    codes, values = empty(
        n,
        sum(codes.shape[1] for codes, _ in groups),
        max((values.shape[2] for _, values in groups), default=0),
    )
    start = 0
    for part_codes, part_values in groups:
        end = start + part_codes.shape[1]
        codes[:, start:end] = part_codes
        values[:, start:end, : part_values.shape[2]] = part_values
        start = end
    return codes, values


def uniform(low: float | Array, high: float | Array, u: Array) -> Array:
    """float64 (n,): ``low + u * (high - low)``, rounded to float32 as by ``torch.Tensor.uniform_``.

    Even if both ends are equal, the value is rounded.
    """
    return (low + u * (high - low)).astype(np.float32).astype(np.float64)


def sides_after(slots: Slots, w: Array, h: Array) -> tuple[Array, Array]:
    """Width and height of images of w x h pixels after these slots."""
    codes, values = slots
    sized, turned = codes == AFFINE_TO, (codes == ROTATE_90) | (codes == ROTATE_270)
    if not (sized.any() or turned.any()):
        return w, h
    for k in range(codes.shape[1]):
        w, h = np.where(turned[:, k], h, w), np.where(turned[:, k], w, h)
        if sized[:, k].any():
            to = values[:, k, 10:12].astype(np.int64)
            w, h = np.where(sized[:, k], to[:, 0], w), np.where(sized[:, k], to[:, 1], h)
    return w, h
