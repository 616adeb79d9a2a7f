"""Automatic augmentation: RandAugment, TrivialAugmentWide, AutoAugment.

Each draws an operation by its name and how much of it, as torchvision's do
(transforms/autoaugment.py and transforms/v2/_auto_augment.py); how much each step is comes out of
the user's own transform when it is recognised, for the versions differ.
"""

from __future__ import annotations

import dataclasses
import math
from functools import lru_cache

import numpy as np
import torch

from ..geometry.affine import WIDTH, Look, inverse, rotation
from ..geometry.crop_geometry import Array
from . import operations
from .operations import Slots, empty

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
"""The longest translation where it grows with the image: this share of the side."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One of the operations that a policy chooses from.

    Attributes:
        name: torchvision's.
        magnitudes: by bin; empty where there is nothing to choose.
        signed: whether the magnitude is negated half of the time.
        relative: the number of bins of a translation that is a share of the side; else 0.
        thirds: whether that share is a third, as in AugMix, instead of ``RELATIVE``.
    """

    name: str
    magnitudes: tuple[float, ...] = ()
    signed: bool = False
    relative: int = 0
    thirds: bool = False

    def magnitude(self, bins: Array, w: Array, h: Array) -> Array:
        """Of each sample, by its bin."""
        if self.relative:
            sides = (w if self.name == "TranslateX" else h).tolist()
            tables = {side: _translations(side, self.relative, self.thirds) for side in set(sides)}
            return np.array([tables[side][at] for side, at in zip(sides, bins.tolist())])
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
            center, shear, move = (zero, zero), (zero, zero), (zero, zero)
            across = self.name.endswith("X")
            if self.name.startswith("Shear"):
                degrees = np.array([math.degrees(math.atan(m)) for m in magnitude.tolist()])
                shear = (degrees, zero) if across else (zero, degrees)
            else:
                shift = np.trunc(magnitude)
                move = (shift, zero) if across else (zero, shift)
                center = (w * 0.5, h * 0.5)
            values[:, 0, :6] = inverse(center, zero, move, zero + 1.0, shear, v2=look.v2)
            values[:, 0, 6:] = look.values
        return codes, values


@lru_cache(maxsize=4096)
def _translations(side: int, bins: int, thirds: bool) -> list[float]:
    return [float(m) for m in torch.linspace(0.0, reach(side, thirds), bins).tolist()]


def reach(side: int, thirds: bool) -> float:
    """The longest translation along a side of an image."""
    return side / 3.0 if thirds else RELATIVE * side


def _fill(
    slots: Slots,
    at: int,
    which: Array,
    step: Step,
    bins: Array,
    negative: Array,
    sizes: tuple[Array, Array],
    look: Look,
) -> None:
    """Put ``step`` into slot ``at`` of the samples ``which``."""
    if not len(which):
        return
    w, h = (side[which] for side in sizes)
    magnitude = step.magnitude(bins[which], w, h)
    if step.signed:
        magnitude = np.where(negative[which], -magnitude, magnitude)
    codes, values = step.slots(magnitude, w, h, look)
    slots[0][which, at] = codes[:, 0]
    slots[1][which, at] = values[:, 0]


@dataclasses.dataclass(frozen=True)
class Uniform:
    """``count`` operations, each any of ``steps``.

    RandAugment: the same ``bin`` for all. TrivialAugmentWide: one operation, any bin of ``bins``.
    """

    steps: tuple[Step, ...]
    count: int
    bins: tuple[int, int]  # the lowest and how many
    look: Look
    width: int = dataclasses.field(default=WIDTH, init=False)

    @property
    def numbers(self) -> int:
        """Which operation, which bin, which sign."""
        return 3 * self.count

    @property
    def slots(self) -> int:
        """One for each operation."""
        return self.count

    def draw(self, u: Array, w: Array, h: Array) -> Slots:
        """As in the protocol."""
        slots = empty(len(w), self.count, WIDTH)
        for at in range(self.count):
            chosen = (u[3 * at] * len(self.steps)).astype(np.int64)
            bins = self.bins[0] + (u[3 * at + 1] * self.bins[1]).astype(np.int64)
            negative = u[3 * at + 2] < 0.5
            for k, step in enumerate(self.steps):
                which = np.flatnonzero(chosen == k)
                _fill(slots, at, which, step, bins, negative, (w, h), self.look)
        return slots


@dataclasses.dataclass(frozen=True)
class Policies:
    """AutoAugment: one of the policies, each two operations with their probabilities and bins."""

    policies: tuple[tuple[tuple[Step, float, int], ...], ...]
    look: Look
    slots: int = dataclasses.field(default=2, init=False)
    numbers: int = dataclasses.field(default=5, init=False)
    width: int = dataclasses.field(default=WIDTH, init=False)

    def draw(self, u: Array, w: Array, h: Array) -> Slots:
        """As in the protocol."""
        slots = empty(len(w), 2, WIDTH)
        chosen = (u[0] * len(self.policies)).astype(np.int64)
        for k in np.unique(chosen).tolist():
            for at, (step, p, bin) in enumerate(self.policies[k]):
                which = np.flatnonzero((chosen == k) & (u[1 + at] < p))
                bins = np.full(len(w), bin)
                _fill(slots, at, which, step, bins, u[3 + at] < 0.5, (w, h), self.look)
        return slots
