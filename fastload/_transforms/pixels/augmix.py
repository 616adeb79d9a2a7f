"""AugMix: chains of operations, mixed with the original image.

torchvision runs AugMix on tensors even for PIL images (transforms/autoaugment.py,
transforms/v2/_auto_augment.py), so its operations reproduce torch's arithmetic: pixels/torch.cpp.

Note [Grid]
    torchvision computes the grid of an affine map by a matrix multiplication in float32. How that
    rounds depends on the library behind it and on the processor: with MKL, the sum of the products
    of x and y is fused (rounded once) on Intel's processors with AVX-512, and not on others. So
    ``grid_rounding`` asks torch. If torch rounds in a third way, which a program may have asked for
    (``torch.set_float32_matmul_precision``, autocast), AugMix is not recognised.
    Below 400 multiplications torch uses its own loops, which do not fuse.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import torch
from typing_extensions import override

from ..geometry.crop_geometry import Array
from . import operations
from .affine import Look, inverse
from .operations import Slots, empty
from .pixel_op import PixelOp
from .policies import Step, shear_and_shift

WIDTH = 12
"""Values of the largest operation: the matrix, the filter, the kind of fill, the fill, fused."""

_LOOPS = 400  # multiplications; aten/src/ATen/native/LinearAlgebra.cpp, bmm_out_or_baddbmm_

_TRIES = 8
_DEEPEST = 3  # largest depth of a chain whose depth is random

_AS_ON_TENSORS = {
    "Brightness": operations.TORCH_BRIGHTNESS,
    "Color": operations.TORCH_SATURATION,
    "Contrast": operations.TORCH_CONTRAST,
    "Sharpness": operations.TORCH_SHARPNESS,
}
_AS_THEY_ARE = {
    "Posterize": operations.POSTERIZE,
    "Solarize": operations.SOLARIZE,
    "Equalize": operations.EQUALIZE,
}
NAMES = frozenset({*_AS_ON_TENSORS, *_AS_THEY_ARE, "AutoContrast", "Rotate"}) | {
    f"{what}{axis}" for what in ("Shear", "Translate") for axis in "XY"
}


@dataclasses.dataclass(frozen=True)
class AugMix(PixelOp):
    """``chains`` chains of ``depth`` random ``steps`` each (0: 1 to 3), summed with the image.

    The weights are drawn from a Dirichlet distribution with ``alpha``. ``filled``: whether affine
    maps fill with ``look.fill``; otherwise with zeros.
    """

    steps: tuple[Step, ...]
    severity: int
    chains: int
    depth: int
    alpha: float
    filled: bool
    look: Look

    moves = True
    width = WIDTH

    @property
    def _longest(self) -> int:
        return self.depth or _DEEPEST

    @property
    @override
    def numbers(self) -> int:
        # of the weights, each chain's depth, and each operation's choice, bin and sign
        shares = (2 + self.chains) * gamma_numbers(self.alpha)
        return shares + self.chains * (1 + 3 * self._longest)

    @property
    @override
    def slots(self) -> int:
        # one to start, the operations of each chain, and one after each chain to add it
        return 1 + self.chains * (self._longest + 1)

    @override
    def draw(self, u: Array, w: Array, h: Array) -> Slots:
        n, each = len(w), gamma_numbers(self.alpha)
        codes, values = empty(n, self.slots, WIDTH)
        own = dirichlet(u[: 2 * each], self.alpha, 2)
        shares = dirichlet(u[2 * each : (2 + self.chains) * each], self.alpha, self.chains)
        shares = shares * own[:, 1:]  # in float32, as torch does
        codes[:, 0] = operations.MIX_BEGIN
        values[:, 0, 0] = own[:, 0]
        unused, slot = u[(2 + self.chains) * each :], 1
        for chain in range(self.chains):
            depth = np.full(n, self.depth)
            if not self.depth:
                depth = 1 + (unused[0] * _DEEPEST).astype(np.int64)
            for k in range(self._longest):
                drawn = unused[1 + 3 * k : 4 + 3 * k]
                self._step(codes[:, slot], values[:, slot], drawn, k < depth, w, h)
                slot += 1
            codes[:, slot] = operations.MIX_ADD
            values[:, slot, 0] = shares[:, chain]
            values[:, slot, 1] = chain + 1 == self.chains
            slot += 1
            unused = unused[1 + 3 * self._longest :]
        return codes, values

    def _step(
        self, codes: Array, values: Array, u: Array, there: Array, w: Array, h: Array
    ) -> None:
        """Fill a slot for the samples where ``there``."""
        chosen = (u[0] * len(self.steps)).astype(np.int64)
        bins = (u[1] * self.severity).astype(np.int64)
        for k, step in enumerate(self.steps):
            which = np.flatnonzero(there & (chosen == k))
            if not len(which):
                continue
            sides = w[which], h[which]
            magnitude = step.magnitude(bins[which], *sides)
            if step.signed:
                magnitude = np.where(u[2][which] < 0.5, -magnitude, magnitude)
            codes[which], values[which] = self._operation(step.name, magnitude, *sides)

    def _operation(self, name: str, magnitude: Array, w: Array, h: Array) -> tuple[int, Array]:
        """Code and values (n, 12) of an operation."""
        values = np.zeros((len(magnitude), WIDTH))
        v2 = self.look.v2
        values[:, 0] = magnitude
        if name == "Solarize":  # torch compares levels with it in float32
            values[:, 0] = magnitude.astype(np.float32)
        if name in _AS_THEY_ARE:
            return _AS_THEY_ARE[name], values
        if name == "AutoContrast":
            values[:, 0] = v2
            return operations.TORCH_AUTOCONTRAST, values
        if name in _AS_ON_TENSORS:
            values[:, 0] += 1.0
            values[:, 1] = v2 and name != "Brightness"
            return _AS_ON_TENSORS[name], values
        zero: Array = np.zeros(len(magnitude))
        angle, center, shear, move = zero, (zero, zero), (zero, zero), (zero, zero)
        if name == "Rotate":
            angle = -(np.mod(magnitude, 360.0) if v2 else magnitude)
        else:
            shear, move = shear_and_shift(name, magnitude)
        if name.startswith("Shear"):
            # the corner: matrices for tensors are relative to the centre
            center = (-w * 0.5, -h * 0.5)
        values[:, :6] = inverse(center, angle, move, zero + 1.0, shear, v2=v2)
        values[:, 6] = self.look.filter
        values[:, 7] = (1 + v2) * self.filled
        values[:, 8:11] = self.look.fill
        values[:, 11] = grid_is_fused(w, h)
        return operations.TORCH_AFFINE, values


def grid_is_fused(w: Array | int, h: Array | int) -> Array | bool:
    """Whether torch fuses the sums of the grid for an image of w x h pixels. See Note [Grid]."""
    return (6 * w * h >= _LOOPS) & (grid_rounding() == "fused")


def grid_rounding() -> str | None:
    """How torch rounds the grid of an affine map: "separate", "fused", or None: in another way.

    See Note [Grid].
    """
    if torch.is_autocast_enabled("cpu"):
        return None
    try:
        return _rounding_at(torch.get_float32_matmul_precision())
    except RuntimeError:  # torch's back ends have several precisions
        return None


@functools.cache
def _rounding_at(precision: str) -> str | None:
    """As ``grid_rounding``, at torch's present ``precision``. Takes 3 ms, once per process."""
    ways = {"separate", "fused"}
    for width, height in ((8, 8), (13, 11), (16, 16), (32, 32)):  # the largest by oneDNN, too
        x, y = (np.arange(side, dtype=np.float32) - 0.5 * (side - 1) for side in (width, height))
        base = np.ones((height, width, 3), np.float32)
        base[:, :, 0], base[:, :, 1] = x, y[:, None]
        points = torch.from_numpy(base.reshape(1, -1, 3))
        for k in range(4):
            angle = 0.1 + 0.2 * k
            cos, sin, move = math.cos(angle), math.sin(angle), 1 / (3 + k)
            matrix = np.array([[cos, -sin], [sin, cos], [move, -move]], np.float32)
            theirs = points.bmm(torch.from_numpy(matrix[None])).numpy()[0]
            across = base.reshape(-1, 3)[:, :1] * matrix[0]
            down = base.reshape(-1, 3)[:, 1:2].astype(np.float64) * matrix[1]
            sums = {
                "separate": across + down.astype(np.float32),
                "fused": (across + down).astype(np.float32),
            }
            if 6 * width * height < _LOOPS:
                sums["fused"] = sums["separate"]
            ways &= {name for name in ways if np.array_equal(sums[name] + matrix[2], theirs)}
    return min(ways, default=None)


def gamma_numbers(alpha: float) -> int:
    """Number of uniform numbers needed for each gamma-distributed number."""
    return 1 if alpha == 1 else 1 + 3 * _TRIES


def dirichlet(u: Array, alpha: float, count: int) -> Array:
    """float32 (n, count): weights with a Dirichlet distribution, ``alpha`` for each.

    ``u`` is (count * gamma_numbers(alpha), n).
    """
    each = gamma_numbers(alpha)
    logs = np.stack([_log_gamma(u[k * each : (k + 1) * each], alpha) for k in range(count)], axis=1)
    shares = np.exp(logs - logs.max(axis=1, keepdims=True))
    drawn: Array = (shares / shares.sum(axis=1, keepdims=True)).astype(np.float32)
    return drawn


def _log_gamma(u: Array, alpha: float) -> Array:
    """The logarithms of gamma-distributed numbers.

    Marsaglia and Tsang, "A simple method for generating gamma variables" (2000), with a fixed
    number of tries, each of which fails with a probability of at most 1/20. If all fail: log(d).
    """
    # 1 - u, because u may be 0
    exponent = -np.log1p(-u[0])
    if alpha == 1:
        logs: Array = np.log(np.maximum(exponent, 1e-300))
        return logs
    shape = alpha if alpha >= 1 else alpha + 1
    d = shape - 1 / 3
    drawn = np.full(u.shape[1], np.nan)
    for k in range(_TRIES):
        a, b, c = u[1 + 3 * k : 4 + 3 * k]
        x = np.sqrt(-2 * np.log1p(-a)) * np.cos(2 * np.pi * b)
        v = np.maximum(1 + x / math.sqrt(9 * d), 1e-300) ** 3
        log_v = np.log(np.maximum(v, 1e-300))
        good = (v > 1e-200) & (np.log1p(-c) < 0.5 * x * x + d - d * v + d * log_v)
        drawn = np.where(np.isnan(drawn) & good, math.log(d) + log_v, drawn)
    drawn = np.where(np.isnan(drawn), math.log(d), drawn)
    return drawn if alpha >= 1 else drawn - exponent / alpha
