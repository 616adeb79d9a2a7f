"""torchvision's augmentation policies: RandAugment, TrivialAugmentWide, AutoAugment.

Each draws operations and their magnitudes as torchvision does (transforms/autoaugment.py and
transforms/v2/_auto_augment.py). The tables of magnitudes are read from the user's transform,
because they differ between versions of torchvision.
"""

from __future__ import annotations

import dataclasses
import math
from functools import lru_cache

import numpy as np
import torch
from typing_extensions import override

from ..geometry.crop_geometry import Array
from . import operations
from .affine import WIDTH, Look, inverse, rotation
from .operations import Slots, empty
from .pixel_op import PixelOp

_FACTORS = {
    "Brightness": operations.BRIGHTNESS,
    "Color": operations.SATURATION,
    "Contrast": operations.CONTRAST,
    "Sharpness": operations.SHARPNESS,
}
_AS_THEY_ARE = {
    "Posterize": operations.POSTERIZE,
    "Solarize": operations.SOLARIZE,
    "AutoContrast": operations.AUTOCONTRAST,
    "Equalize": operations.EQUALIZE,
    "Invert": operations.INVERT,
    "Identity": operations.NONE,
}
NAMES = frozenset({*_FACTORS, *_AS_THEY_ARE, "Rotate"}) | {
    f"{what}{axis}" for what in ("Shear", "Translate") for axis in "XY"
}

RELATIVE = 150.0 / 331.0
"""The longest translation that is relative to the image, as a fraction of its side."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One of the operations from which a policy chooses.

    Attributes:
        name: torchvision's name.
        magnitudes: by bin; empty if the operation has no magnitude.
        signed: whether the magnitude is negated with probability 1/2.
        relative: number of bins of a translation that is relative to the side; else 0.
        thirds: whether the longest such translation is a third of the side, as in AugMix, instead
            of ``RELATIVE``.
    """

    name: str
    magnitudes: tuple[float, ...] = ()
    signed: bool = False
    relative: int = 0
    thirds: bool = False

    def magnitude(self, bins: Array, w: Array, h: Array) -> Array:
        """The magnitude for each sample, by its bin."""
        if self.relative:
            sides = (w if self.name == "TranslateX" else h).tolist()
            tables = {side: _translations(side, self.relative, self.thirds) for side in set(sides)}
            return np.array([tables[side][bin] for side, bin in zip(sides, bins.tolist())])
        if not self.magnitudes:
            return np.zeros(len(bins))
        return np.array(self.magnitudes)[bins]

    def slots(self, magnitude: Array, w: Array, h: Array, look: Look) -> Slots:
        """Slots (n, 1) of this operation. torchvision's ``_apply_op``."""
        codes, values = empty(len(magnitude), 1, WIDTH)
        zero = np.zeros(len(magnitude))
        if self.name in _FACTORS:
            codes[:] = _FACTORS[self.name]
            values[:, 0, 0] = 1.0 + magnitude
        elif self.name in _AS_THEY_ARE:
            codes[:] = _AS_THEY_ARE[self.name]
            values[:, 0, 0] = magnitude
        elif self.name == "Rotate":
            return rotation(magnitude, w, h, None, look)
        else:
            codes[:] = operations.AFFINE
            shear, move = shear_and_shift(self.name, magnitude)
            center = (zero, zero) if self.name.startswith("Shear") else (w * 0.5, h * 0.5)
            values[:, 0, :6] = inverse(center, zero, move, zero + 1.0, shear, v2=look.v2)
            values[:, 0, 6:] = look.values
        return codes, values


def shear_and_shift(name: str, magnitude: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Degrees of shear, and pixels of translation, along x and y, of ShearX .. TranslateY."""
    zero = np.zeros(len(magnitude))
    along = np.trunc(magnitude)
    if name.startswith("Shear"):
        along = np.array([math.degrees(math.atan(m)) for m in magnitude.tolist()])
    pair = (along, zero) if name.endswith("X") else (zero, along)
    return (pair, (zero, zero)) if name.startswith("Shear") else ((zero, zero), pair)


@lru_cache(maxsize=4096)
def _translations(side: int, bins: int, thirds: bool) -> list[float]:
    return [float(m) for m in torch.linspace(0.0, reach(side, thirds), bins).tolist()]


def reach(side: int, thirds: bool) -> float:
    """The longest translation along a side of an image."""
    return side / 3.0 if thirds else RELATIVE * side


def _fill(
    slots: Slots,
    slot: int,
    which: Array,
    step: Step,
    bins: Array,
    negative: Array,
    sizes: tuple[Array, Array],
    look: Look,
) -> None:
    """Put ``step`` into the slot of the samples ``which``."""
    if not len(which):
        return
    w, h = (side[which] for side in sizes)
    magnitude = step.magnitude(bins[which], w, h)
    if step.signed:
        magnitude = np.where(negative[which], -magnitude, magnitude)
    codes, values = step.slots(magnitude, w, h, look)
    slots[0][which, slot] = codes[:, 0]
    slots[1][which, slot] = values[:, 0]


@dataclasses.dataclass(frozen=True)
class Uniform(PixelOp):
    """``count`` operations, each drawn uniformly from ``steps``.

    RandAugment: one fixed bin for all. TrivialAugmentWide: one operation, with a random bin.
    """

    steps: tuple[Step, ...]
    count: int
    bins: tuple[int, int]  # the lowest bin and their number
    look: Look

    moves = True
    width = WIDTH

    @property
    @override
    def numbers(self) -> int:
        return 3 * self.count  # the choice, the bin and the sign of each

    @property
    @override
    def slots(self) -> int:
        return self.count

    @override
    def draw(self, u: Array, w: Array, h: Array) -> Slots:
        slots = empty(len(w), self.count, WIDTH)
        for slot in range(self.count):
            chosen = (u[3 * slot] * len(self.steps)).astype(np.int64)
            bins = self.bins[0] + (u[3 * slot + 1] * self.bins[1]).astype(np.int64)
            negative = u[3 * slot + 2] < 0.5
            for k, step in enumerate(self.steps):
                which = np.flatnonzero(chosen == k)
                _fill(slots, slot, which, step, bins, negative, (w, h), self.look)
        return slots


@dataclasses.dataclass(frozen=True)
class Policies(PixelOp):
    """AutoAugment: one of the policies, each of two operations with a probability and a bin."""

    policies: tuple[tuple[tuple[Step, float, int], ...], ...]
    look: Look

    moves = True
    slots = 2
    numbers = 5
    width = WIDTH

    @override
    def draw(self, u: Array, w: Array, h: Array) -> Slots:
        slots = empty(len(w), 2, WIDTH)
        chosen = (u[0] * len(self.policies)).astype(np.int64)
        for k in np.unique(chosen).tolist():
            for slot, (step, p, bin) in enumerate(self.policies[k]):
                which = np.flatnonzero((chosen == k) & (u[1 + slot] < p))
                bins = np.full(len(w), bin)
                _fill(slots, slot, which, step, bins, u[3 + slot] < 0.5, (w, h), self.look)
        return slots
