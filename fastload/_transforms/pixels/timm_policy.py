"""timm's RandAugment, as made by ``create_transform(auto_augment="rand-...")``.

The operations and their magnitudes (``AugmentOp``, ``LEVEL_TO_ARG`` and ``NAME_TO_OP`` in
timm/data/auto_augment.py) are repeated here in array operations.
"""

from __future__ import annotations

import dataclasses
import math
import sys

import numpy as np
from typing_extensions import override

from ..geometry.crop_geometry import Array
from ..transform_class import Stop, Transform
from . import operations
from .affine import WIDTH, Look, rotation
from .operations import Slots, empty
from .pixel_op import PixelOp

_LEVELS = 10.0  # _LEVEL_DENOM
_NUMBERS = 5  # choice, probability, magnitude (two for a normal deviate), sign

_PLAIN = {
    "AutoContrast": operations.AUTOCONTRAST,
    "Equalize": operations.EQUALIZE,
    "Invert": operations.INVERT,
}
_ENHANCED = {
    "Color": operations.SATURATION,
    "Contrast": operations.CONTRAST,
    "Brightness": operations.BRIGHTNESS,
    "Sharpness": operations.SHARPNESS,
}
_NAMES = frozenset(
    {*_PLAIN, *_ENHANCED, *(f"{name}Increasing" for name in _ENHANCED)}
    | {"Posterize", "PosterizeIncreasing", "PosterizeOriginal", "Rotate", "ShearX", "ShearY"}
    | {"Solarize", "SolarizeIncreasing", "SolarizeAdd", "TranslateXRel", "TranslateYRel"}
)


@dataclasses.dataclass(frozen=True)
class Operation:
    """An ``AugmentOp`` of timm, applied with probability ``p``.

    Attributes:
        magnitude: mean of the magnitude.
        std: standard deviation of the magnitude; infinite: uniform from 0 to ``magnitude``.
        most: upper bound of the magnitude.
        reach: translation at magnitude 10, as a fraction of the side.
    """

    name: str
    p: float
    magnitude: float
    std: float
    most: float
    reach: float
    look: Look

    def fill(self, codes: Array, values: Array, u: Array, w: Array, h: Array) -> Slots:
        """The slots (n, 1) of n samples; ``u`` is (5, n)."""
        magnitude = np.full(len(w), self.magnitude)
        if math.isinf(self.std):
            magnitude = u[2] * self.magnitude
        elif self.std > 0:
            normal = np.sqrt(-2 * np.log1p(-u[2])) * np.cos(2 * np.pi * u[3])
            magnitude = self.magnitude + self.std * normal
        level = np.clip(magnitude, 0.0, self.most) / _LEVELS
        sign = np.where(u[4] > 0.5, -1.0, 1.0)
        if self.name == "Rotate":
            codes, values = rotation(sign * (level * 30.0), w, h, None, self.look)
        elif self.name.startswith(("Shear", "Translate")):
            codes[:] = operations.AFFINE
            values[:, 0, 0] = values[:, 0, 4] = 1.0
            values[:, 0, 6:] = self.look.values
            if self.name.startswith("Shear"):
                values[:, 0, 1 if self.name == "ShearX" else 3] = sign * (level * 0.3)
            else:
                across = self.name == "TranslateXRel"
                values[:, 0, 2 if across else 5] = (
                    sign * (level * self.reach) * (w if across else h)
                )
        else:
            codes[:], values[:, 0, 0] = self._point(level, sign)
        codes[u[1] > self.p] = operations.NONE
        return codes, values

    def _point(self, level: Array, sign: Array) -> tuple[int, Array | float]:
        """Code and value of an operation that treats each pixel separately."""
        name = self.name
        if name in _PLAIN:
            return _PLAIN[name], 0.0
        if name in _ENHANCED:
            return _ENHANCED[name], level * 1.8 + 0.1
        if name.removesuffix("Increasing") in _ENHANCED:
            moved = 1.0 + sign * (level * 0.9)
            return _ENHANCED[name.removesuffix("Increasing")], np.maximum(0.1, moved)
        if name.startswith("Posterize"):
            bits = np.trunc(level * 4)
            if name != "Posterize":
                bits = 4 - bits if name == "PosterizeIncreasing" else 4 + bits
            return operations.POSTERIZE, np.clip(bits, 0, 8)
        if name == "SolarizeAdd":
            return operations.SOLARIZE_ADD, np.minimum(128, np.trunc(level * 110))
        threshold = np.minimum(256, np.trunc(level * 256))
        return operations.SOLARIZE, threshold if name == "Solarize" else 256 - threshold


@dataclasses.dataclass(frozen=True)
class RandAugment(PixelOp):
    """``layers`` operations, each drawn uniformly from ``choices``."""

    choices: tuple[Operation, ...]
    layers: int

    moves = True
    width = WIDTH

    @property
    @override
    def numbers(self) -> int:
        return _NUMBERS * self.layers

    @property
    @override
    def slots(self) -> int:
        return self.layers

    @override
    def draw(self, u: Array, w: Array, h: Array) -> Slots:
        codes, values = empty(len(w), self.layers, WIDTH)
        for layer in range(self.layers):
            numbers = u[_NUMBERS * layer : _NUMBERS * (layer + 1)]
            chosen = (numbers[0] * len(self.choices)).astype(np.int64)
            for k, op in enumerate(self.choices):
                which = np.flatnonzero(chosen == k)
                if not len(which):
                    continue
                filled = op.fill(
                    *empty(len(which), 1, WIDTH), numbers[:, which], w[which], h[which]
                )
                codes[which, layer], values[which, layer] = filled[0][:, 0], filled[1][:, 0]
        return codes, values


def read(transform: Transform) -> RandAugment:
    """timm's ``RandAugment`` as an operation. Raises Stop if the engines cannot run it."""
    if transform.choice_weights is not None:
        raise Stop("RandAugment of timm with weights for its operations")
    module = sys.modules["timm.data.auto_augment"]
    choices = []
    for op in transform.ops:
        if type(op) is not module.AugmentOp or op.name not in _NAMES:
            raise Stop(f"RandAugment of timm with {getattr(op, 'name', op)}")
        own = op.aug_fn is module.NAME_TO_OP[op.name], op.level_fn is module.LEVEL_TO_ARG[op.name]
        if not all(own) or module._LEVEL_DENOM != _LEVELS:
            raise Stop(f"RandAugment of timm with a modified {op.name}")
        filter, fill = op.kwargs.get("resample"), op.kwargs.get("fillcolor")
        if not isinstance(filter, int) or int(filter) not in (0, 2, 3):
            raise Stop("RandAugment of timm with an interpolation chosen at random for each image")
        levels = list(fill) if isinstance(fill, (list, tuple)) else [fill] * 3
        if len(levels) != 3 or not all(type(v) is int and 0 <= v <= 255 for v in levels):
            raise Stop(f"RandAugment of timm with img_mean={fill}; three levels are recognised")
        most = float(op.magnitude_max or _LEVELS)
        if op.magnitude_std < 0 or not 0 < most <= 1000 or not 0 <= op.magnitude <= 1000:
            raise Stop(f"RandAugment of timm with {op}")
        choices.append(
            Operation(
                op.name,
                float(op.prob),
                float(op.magnitude),
                float(op.magnitude_std),
                most,
                float(op.hparams.get("translate_pct", 0.45)),
                Look(int(filter), (levels[0], levels[1], levels[2])),
            )
        )
    return RandAugment(tuple(choices), int(transform.num_layers))
