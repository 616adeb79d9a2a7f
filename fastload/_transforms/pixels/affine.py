"""Rotations, shears and other affine maps of a whole image, as matrices for Pillow.

The matrices repeat the scalar arithmetic of torchvision (``_get_inverse_affine_matrix`` in
transforms/functional.py and in transforms/v2/functional/_geometry.py) and of Pillow
(``Image.rotate``), operation by operation, in arrays. Sines and cosines come from the C library
through ``math``, because NumPy's differ in the last bit.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from typing_extensions import override

from ..geometry.crop_geometry import Array
from .operations import (
    AFFINE,
    AFFINE_TO,
    NONE,
    ROTATE_90,
    ROTATE_180,
    ROTATE_270,
    Slots,
    empty,
    uniform,
)
from .pixel_op import PixelOp

WIDTH = 10
"""Values of an affine operation: the matrix, the filter, the fill."""

_TO_RADIANS = math.pi / 180.0


@dataclasses.dataclass(frozen=True)
class Look:
    """Filter (0 nearest, 2 bilinear, 3 bicubic) and fill colour of an affine map.

    ``v2``: round the matrix as torchvision's v2 does, which computes it in another order.
    """

    filter: int = 0
    fill: tuple[int, int, int] = (0, 0, 0)
    v2: bool = False

    @property
    def values(self) -> tuple[int, ...]:
        """The last four values of an affine operation."""
        return (self.filter, *self.fill)


def _each(function: Callable[[float], float], x: Array) -> Array:
    return np.fromiter(map(function, x.tolist()), np.float64, len(x))


def inverse(
    center: tuple[Array, Array],
    angle: Array,
    translate: tuple[Array, Array],
    scale: Array,
    shear: tuple[Array, Array],
    *,
    v2: bool,
) -> Array:
    """(n, 6): maps from output to source pixels. Arrays are float64 (n,), in degrees and pixels."""
    rot, sx, sy = angle * _TO_RADIANS, shear[0] * _TO_RADIANS, shear[1] * _TO_RADIANS
    (cx, cy), (tx, ty) = center, translate
    cos_y, tan_x = _each(math.cos, sy), _each(math.tan, sx)
    sin, cos = _each(math.sin, rot), _each(math.cos, rot)
    cos_turned, sin_turned = _each(math.cos, rot - sy), _each(math.sin, rot - sy)
    a, c = cos_turned / cos_y, sin_turned / cos_y
    if v2:
        b, d = -(a * tan_x + sin), cos - c * tan_x
    else:
        b, d = -cos_turned * tan_x / cos_y - sin, -sin_turned * tan_x / cos_y + cos
    m0, m1, m3, m4 = d / scale, -b / scale, -c / scale, a / scale
    if v2:
        m2 = cx - m0 * (cx + tx) - m1 * (cy + ty)
        m5 = cy - m3 * (cx + tx) - m4 * (cy + ty)
    else:
        m2 = (m0 * (-cx - tx) + m1 * (-cy - ty)) + cx
        m5 = (m3 * (-cx - tx) + m4 * (-cy - ty)) + cy
    return np.stack([m0, m1, m2, m3, m4, m5], axis=1)


def rotation(
    angle: Array,
    w: Array,
    h: Array,
    center: tuple[float, float] | None,
    look: Look,
    expand: bool = False,
) -> Slots:
    """Slots (n, 1) that do what ``Image.rotate`` does, with its special cases for quarter turns.

    ``expand``: enlarge the result to contain the whole rotated image.
    """
    codes, values = empty(len(angle), 1, WIDTH + 2 * expand)
    codes[:] = AFFINE_TO if expand else AFFINE
    turned = np.mod(angle, 360.0)
    if center is None:
        cx, cy = w / 2, h / 2
        square = (w == h) | expand
        codes[turned == 0, 0] = NONE
        codes[turned == 180, 0] = ROTATE_180
        codes[(turned == 90) & square, 0] = ROTATE_90
        codes[(turned == 270) & square, 0] = ROTATE_270
    else:
        cx, cy = (np.full(len(angle), float(coordinate)) for coordinate in center)
    # Rounded to 15 decimal places by Python, because NumPy's rounding differs.
    radians = (-(turned * _TO_RADIANS)).tolist()
    cos = np.array([round(math.cos(x), 15) for x in radians])
    sin = np.array([round(math.sin(x), 15) for x in radians])
    values[:, 0, 0], values[:, 0, 1] = cos, sin
    values[:, 0, 2] = (cos * -cx + sin * -cy + 0.0) + cx
    values[:, 0, 3], values[:, 0, 4] = -sin, cos
    values[:, 0, 5] = (-sin * -cx + cos * -cy + 0.0) + cy
    values[:, 0, 6:WIDTH] = look.values
    if expand:
        _expand(values[:, 0], w, h)
    return codes, values


def _expand(values: Array, w: Array, h: Array) -> None:
    """Set the size of maps (n, 12) to the bounding box of the rotated image, and centre it."""
    a, b, c, d, e, f = values[:, :6].T
    corners = ((0, 0), (w, 0), (w, h), (0, h))
    x, y = (
        np.stack([k * left + m * top + n for left, top in corners])
        for k, m, n in ((a, b, c), (d, e, f))
    )
    wide, high = (np.ceil(v.max(axis=0)) - np.floor(v.min(axis=0)) for v in (x, y))
    left, top = -(wide - w) / 2.0, -(high - h) / 2.0
    values[:, 2], values[:, 5] = a * left + b * top + c, d * left + e * top + f
    values[:, 10], values[:, 11] = wide, high


@dataclasses.dataclass(frozen=True)
class RandomRotation(PixelOp):
    """Rotation by an angle uniform in ``degrees``, anticlockwise, about ``center`` (x, y).

    ``expand``: enlarge the result to contain the whole rotated image.
    """

    degrees: tuple[float, float]
    center: tuple[float, float] | None
    look: Look
    expand: bool = False

    moves = True

    @property
    @override
    def resizes(self) -> bool:
        return self.expand

    @property
    @override
    def width(self) -> int:
        return WIDTH + 2 * self.expand  # with it, the size of the result

    @override
    def draw(self, u: Array, w: Array, h: Array) -> Slots:
        low, high = self.degrees
        return rotation(uniform(low, high, u[0]), w, h, self.center, self.look, self.expand)


@dataclasses.dataclass(frozen=True)
class RandomAffine(PixelOp):
    """Rotation, translation by whole pixels, scaling and shear. torchvision's ``RandomAffine``."""

    degrees: tuple[float, float]
    translate: tuple[float, float] | None
    scale: tuple[float, float] | None
    shear: tuple[float, float, float, float]
    center: tuple[float, float] | None
    look: Look

    moves = True
    numbers = 6
    width = WIDTH

    @override
    def draw(self, u: Array, w: Array, h: Array) -> Slots:
        n = len(w)
        codes, values = empty(n, 1, WIDTH)
        codes[:] = AFFINE
        move = self.translate or (0.0, 0.0)
        moved = tuple(
            np.rint(uniform(-most, most, u[1 + k]))
            for k, most in enumerate((move[0] * w, move[1] * h))
        )
        low, high = self.scale or (1.0, 1.0)
        center = (w * 0.5, h * 0.5)
        if self.center is not None:
            center = tuple(np.full(n, float(coordinate)) for coordinate in self.center)  # type: ignore[assignment]
        x0, x1, y0, y1 = self.shear
        values[:, 0, :6] = inverse(
            center,
            uniform(*self.degrees, u[0]),
            (moved[0], moved[1]),
            uniform(low, high, u[3]),
            (uniform(x0, x1, u[4]), uniform(y0, y1, u[5])),
            v2=self.look.v2,
        )
        values[:, 0, 6:] = self.look.values
        return codes, values
