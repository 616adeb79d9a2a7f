"""Slots: recorded operations on pixels as the core has them: a code and its values.

Each function gets the size and mode of an image before the operation, and its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from PIL import ImageFilter

from ..._transforms.pixels import operations as pixels
from . import torch_blur
from .composed import LONGEST, Unsupported, levels

Size: TypeAlias = "tuple[int, int]"
Slot: TypeAlias = "tuple[int, Sequence[float]]"
"""A code of ``pixels/operations.py``, and its values."""

_ROTATIONS: Final = {1: pixels.ROTATE_90, 2: pixels.ROTATE_180, 3: pixels.ROTATE_270}
_WARP_FILTERS: Final = (0, 2, 3)  # nearest, bilinear, bicubic: as Pillow numbers them
_PADDINGS: Final = {"edge": 0, "reflect": 1, "symmetric": 2}  # as pixels/pixels.h

_MOST_WARPED = 1e9  # of the numbers of an affine or perspective map, and of a kernel


def of(code: int) -> Callable[..., Slot]:
    """An operation of the core that takes the recorded arguments as they are."""
    return lambda size, mode, *arguments: (code, arguments)


def copy(size: Size, mode: str) -> None:
    """It changes nothing."""


def convert(size: Size, mode: str, to: str) -> Slot | None:
    """The core has three channels, which are equal in a gray image."""
    if to == mode or (mode, to) == ("L", "RGB"):
        return None
    if (mode, to) != ("RGB", "L"):
        raise Unsupported
    return pixels.GRAYSCALE, ()


def hue(size: Size, mode: str, factor: float) -> Slot | None:
    """torchvision leaves other images as they are."""
    return (pixels.HUE, (int(factor * 255) & 255,)) if mode == "RGB" else None


def point(size: Size, mode: str, table: tuple[int, ...]) -> Slot:
    """256 levels for every band, or as many for each."""
    packed = np.array(table, np.uint8).view("<u4").tolist()
    return pixels.LEVELS, (len(table) // 256, *packed)


def rot90(size: Size, mode: str, turns: int) -> Slot:
    """Quarter turns counterclockwise."""
    return _ROTATIONS[turns], ()


def affine(
    size: Size, mode: str, w: int, h: int, matrix: tuple[float, ...], filter: int, fill: Any
) -> Slot:
    """Pillow's, of 6 numbers."""
    values = _warp(mode, matrix, filter, fill)
    return (pixels.AFFINE, values) if (w, h) == size else (pixels.AFFINE_TO, (*values, w, h))


def perspective(
    size: Size, mode: str, w: int, h: int, numbers: tuple[float, ...], filter: int, fill: Any
) -> Slot:
    """Pillow's, of 8 numbers."""
    return pixels.PERSPECTIVE, (*_warp(mode, numbers, filter, fill), w, h)


def _warp(mode: str, numbers: tuple[float, ...], filter: int, fill: Any) -> tuple[float, ...]:
    if filter not in _WARP_FILTERS or max(map(abs, numbers)) > _MOST_WARPED:
        raise Unsupported
    return *numbers, filter, *levels(mode, fill)


def grid_map(
    size: Size,
    mode: str,
    kernel: str,
    arguments: Any,
    matrix: Sequence[float],
    filter: int,
    fill: Any,
    fused: bool,
) -> Slot:
    """torchvision's affine map of a tensor, of 6 numbers from the centre; () fills with zeros."""
    if max(map(abs, matrix)) > _MOST_WARPED:
        raise Unsupported
    filled = (_AS_V2, *fill) if fill else (0, 0, 0, 0)
    return pixels.TORCH_AFFINE, (*matrix, filter, *filled, fused)


_AS_V2: Final = 2  # how the core mixes the fill; see pixels/pixels.h


def pad(size: Size, mode: str, left: int, top: int, right: int, bottom: int, padding: str) -> Slot:
    """A border of what is in the image."""
    (w, h), how = size, _PADDINGS[padding]
    # NumPy reflects more than once where the border is wider than the image.
    most_x, most_y = w - (how == 1), h - (how == 1)
    if how and (max(left, right) > most_x or max(top, bottom) > most_y):
        raise Unsupported
    if max(left + w + right, top + h + bottom) > LONGEST:
        raise Unsupported
    return pixels.PAD, (left, top, right, bottom, how)


def rectangle(
    size: Size, mode: str, left: int, top: int, right: int, bottom: int, fill: Any
) -> Slot:
    """From one corner to the other, both of which are in it."""
    (w, h), x, y = size, max(left, 0), max(top, 0)
    sides = max(min(right + 1, w) - x, 0), max(min(bottom + 1, h) - y, 0)
    return pixels.RECTANGLE, (min(x, w), min(y, h), *sides, *levels(mode, fill))


def gaussian_blur(size: Size, mode: str, x: float, y: float) -> Slot:
    return _blur(x, y, 1)


def box_blur(size: Size, mode: str, x: float, y: float) -> Slot:
    return _blur(x, y, 0)


def _blur(x: float, y: float, gaussian: int) -> Slot:
    if max(x, y) > pixels.MOST_BLURRED:
        raise Unsupported
    return pixels.BOX_BLUR, (x, y, gaussian)


def kernel_blur(
    size: Size,
    mode: str,
    v2: bool,
    kernel: tuple[int, int],
    sigma: tuple[float, float],
    *weights: tuple[float, ...],
    contiguous: bool | None = None,
) -> Slot:
    """torchvision's. A gray image is another convolution for torch."""
    if mode != "RGB" or not weights or not torch_blur.blurs_alike(v2, kernel, size, contiguous):
        raise Unsupported
    return pixels.TORCH_BLUR, torch_blur.values(*weights)


def tensor_blur(size: Size, mode: str, contiguous: bool, *blur: Any) -> Slot:
    """v2's, of levels."""
    return kernel_blur(size, mode, True, *blur, contiguous=contiguous)


def kernel(
    size: Size, mode: str, side: int, scale: float, offset: float, weights: Sequence[float]
) -> Slot:
    """``ImageFilter.Kernel``."""
    if abs(scale) < 1e-6 or max(map(abs, (scale, offset, *weights))) > _MOST_WARPED:
        raise Unsupported
    return pixels.KERNEL, (side, scale, offset, *weights)


def constant_kernel(size: Size, mode: str, name: str) -> Slot:
    """One of ``ImageFilter``'s."""
    (side, _), scale, offset, weights = getattr(ImageFilter, name).filterargs
    return kernel(size, mode, side, scale, offset, weights)
