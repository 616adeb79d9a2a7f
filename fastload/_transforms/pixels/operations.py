"""Operations on the pixels of a sample, with parameters drawn for a whole batch at once.

Between two frames of geometry (crop_geometry.py) a sample passes through *slots*. A slot is an
operation of the core: its code (numbered in pixels/pixels.h) and its values. Both may differ from
sample to sample, so a choice, an order or a probability only decides which code is in which slot.

The distributions are torchvision's (transforms/transforms.py, each class's ``get_params`` and
``forward``; transforms/v2/_container.py).
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np

from ..geometry.crop_geometry import Array

# pixels/pixels.h's PixelOp
NONE, BRIGHTNESS, CONTRAST, SATURATION, HUE, SHARPNESS, GRAYSCALE, INVERT = range(8)
SOLARIZE, POSTERIZE, AUTOCONTRAST, EQUALIZE, MIRROR, UPSIDE_DOWN = range(8, 14)
ROTATE_180, ROTATE_90, ROTATE_270, AFFINE, BLUR, AFFINE_TO, MIX_BEGIN, MIX_ADD = range(14, 22)
TORCH_BRIGHTNESS, TORCH_CONTRAST, TORCH_SATURATION, TORCH_SHARPNESS = range(22, 26)
TORCH_AUTOCONTRAST, TORCH_AFFINE, SOLARIZE_ADD, BOX_BLUR, PERSPECTIVE = range(26, 31)
LEVELS, KERNEL, TORCH_BLUR, CONTRAST_CROP, PAD = range(31, 36)

MOST_BLURRED = 65_535
"""Pixels: the largest radius of BOX_BLUR."""

Slots = tuple[Array, Array]
"""Codes int32 (n, slots) and values float64 (n, slots, width); n 1: the same for all samples."""


class PixelOp(Protocol):
    """One operation on pixels. Frozen and hashable; all its random numbers are passed as ``u``."""

    @property
    def numbers(self) -> int:
        """How many uniform numbers it needs for each sample."""

    @property
    def slots(self) -> int:
        """Number of slots it fills."""

    @property
    def width(self) -> int:
        """Number of values of each slot."""

    def draw(self, u: Array, w: Array, h: Array) -> Slots:
        """The slots of n samples of w x h pixels; ``u`` is (numbers, n), uniform in [0, 1)."""


def empty(n: int, slots: int, width: int) -> Slots:
    """Slots that do nothing."""
    return np.zeros((n, slots), np.int32), np.zeros((n, slots, width))


def joined(parts: list[Slots], n: int) -> Slots:
    """All slots of n samples, those of one part after those of the other."""
    codes, values = empty(
        n,
        sum(codes.shape[1] for codes, _ in parts),
        max((values.shape[2] for _, values in parts), default=0),
    )
    at = 0
    for part_codes, part_values in parts:
        end = at + part_codes.shape[1]
        codes[:, at:end] = part_codes
        values[:, at:end, : part_values.shape[2]] = part_values
        at = end
    return codes, values


def uniform(low: float | Array, high: float | Array, u: Array) -> Array:
    """float64 (n,): ``low + u * (high - low)``, rounded to float32 as by ``torch.Tensor.uniform_``.

    Even if both ends are equal, the value is rounded.
    """
    return (low + u * (high - low)).astype(np.float32).astype(np.float64)


def resizes(op: PixelOp) -> bool:
    """Whether an operation may change the size of an image."""
    return bool(getattr(op, "expand", False)) or any(map(resizes, inner(op)))


def inner(op: PixelOp) -> tuple[PixelOp, ...]:
    """The operations that ``op`` consists of; none: it is one."""
    if isinstance(op, Chance):
        return (op.op,)
    return op.ops if isinstance(op, _Several) else ()


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


@dataclasses.dataclass(frozen=True)
class Fixed:
    """The same operation for every sample."""

    code: int
    values: tuple[float, ...] = ()
    numbers: int = dataclasses.field(default=0, init=False)
    slots: int = dataclasses.field(default=1, init=False)

    @property
    def width(self) -> int:
        """The number of values."""
        return len(self.values)

    def draw(self, u: Array, w: Array, h: Array) -> Slots:
        """As in the protocol."""
        codes, values = empty(len(w), 1, self.width)
        codes[:] = self.code
        values[:] = self.values
        return codes, values


@dataclasses.dataclass(frozen=True)
class Factor:
    """An operation with one value, uniform between ``low`` and ``high``."""

    code: int
    low: float
    high: float
    numbers: int = dataclasses.field(default=1, init=False)
    slots: int = dataclasses.field(default=1, init=False)
    width: int = dataclasses.field(default=1, init=False)

    def draw(self, u: Array, w: Array, h: Array) -> Slots:
        """As in the protocol."""
        codes, values = empty(len(w), 1, 1)
        codes[:] = self.code
        factor = uniform(self.low, self.high, u[0])
        if self.code == HUE:  # a fraction of the circle, truncated to 1/256
            factor = (factor * 255).astype(np.int32) & 255
        values[:, 0, 0] = factor
        return codes, values


@dataclasses.dataclass(frozen=True)
class Blur:
    """A Gaussian blur of ``radius`` (x, y) pixels; sigma is uniform between ``low`` and ``high``.

    Values: radius x, radius y, the weights of x from the centre out, those of y. torchvision's
    ``_get_gaussian_kernel1d``.
    """

    radius: tuple[int, int]
    low: float
    high: float
    numbers: int = dataclasses.field(default=1, init=False)
    slots: int = dataclasses.field(default=1, init=False)

    @property
    def width(self) -> int:
        """Two radii, and the weights from the centre out."""
        return 4 + sum(self.radius)

    def draw(self, u: Array, w: Array, h: Array) -> Slots:
        """As in the protocol."""
        codes, values = empty(len(w), 1, self.width)
        codes[:] = BLUR
        values[:, 0, :2] = self.radius
        sigma = uniform(self.low, self.high, u[0])
        at = 2
        for radius in self.radius:
            weights = np.exp(-0.5 * (np.arange(radius + 1) / sigma[:, None]) ** 2)
            weights /= 2 * weights.sum(axis=1, keepdims=True) - weights[:, :1]
            values[:, 0, at : at + radius + 1] = weights.astype(np.float32)
            at += radius + 1
        return codes, values


@dataclasses.dataclass(frozen=True)
class Chance:
    """``op`` with probability ``p``."""

    p: float
    op: PixelOp

    @property
    def numbers(self) -> int:
        """Those of the operation, and one for the probability."""
        return 1 + self.op.numbers

    @property
    def slots(self) -> int:
        """Those of the operation."""
        return self.op.slots

    @property
    def width(self) -> int:
        """That of the operation."""
        return self.op.width

    def draw(self, u: Array, w: Array, h: Array) -> Slots:
        """As in the protocol."""
        codes, values = self.op.draw(u[1:], w, h)
        codes[u[0] >= self.p] = NONE
        return codes, values


@dataclasses.dataclass(frozen=True)
class _Several:
    ops: tuple[PixelOp, ...]

    @property
    def width(self) -> int:
        """The largest."""
        return max((op.width for op in self.ops), default=0)

    @property
    def _most(self) -> int:
        return max((op.slots for op in self.ops), default=0)

    def _drawn(self, u: Array, w: Array, h: Array) -> list[Slots]:
        parts = []
        at = 0
        for op in self.ops:
            parts.append(op.draw(u[at : at + op.numbers], w, h))
            at += op.numbers
        return parts


@dataclasses.dataclass(frozen=True)
class Chain(_Several):
    """All operations, in order."""

    @property
    def numbers(self) -> int:
        """Those of all."""
        return sum(op.numbers for op in self.ops)

    @property
    def slots(self) -> int:
        """Those of all."""
        return sum(op.slots for op in self.ops)

    def draw(self, u: Array, w: Array, h: Array) -> Slots:
        """As in the protocol."""
        return joined(self._drawn(u, w, h), len(w))


@dataclasses.dataclass(frozen=True)
class RandomOrder(_Several):
    """All operations in a random order, each order with the same probability."""

    @property
    def numbers(self) -> int:
        """Those of all, and one for each operation for the order."""
        return len(self.ops) + sum(op.numbers for op in self.ops)

    @property
    def slots(self) -> int:
        """As many as the largest for each, so that any operation fits into any place."""
        return len(self.ops) * self._most

    def draw(self, u: Array, w: Array, h: Array) -> Slots:
        """As in the protocol."""
        n, count, most = len(w), len(self.ops), self._most
        codes = np.zeros((n, count, most), np.int32)
        values = np.zeros((n, count, most, self.width))
        for k, (part_codes, part_values) in enumerate(self._drawn(u[count:], w, h)):
            codes[:, k, : part_codes.shape[1]] = part_codes
            values[:, k, : part_codes.shape[1], : part_values.shape[2]] = part_values
        order = np.argsort(u[:count], axis=0, kind="stable").T
        samples = np.arange(n)[:, None]
        return (
            codes[samples, order].reshape(n, count * most),
            values[samples, order].reshape(n, count * most, self.width),
        )


@dataclasses.dataclass(frozen=True)
class RandomChoice(_Several):
    """One of the operations, with probabilities proportional to ``weights``."""

    weights: tuple[float, ...]

    @property
    def numbers(self) -> int:
        """Those of all, and one for the choice."""
        return 1 + sum(op.numbers for op in self.ops)

    @property
    def slots(self) -> int:
        """As many as the largest."""
        return self._most

    def draw(self, u: Array, w: Array, h: Array) -> Slots:
        """As in the protocol."""
        codes, values = empty(len(w), self.slots, self.width)
        ends = np.cumsum(self.weights)
        chosen = np.searchsorted(ends, u[0] * ends[-1], side="right")
        chosen = np.minimum(chosen, len(self.ops) - 1)  # rounding may give the end itself
        for k, (part_codes, part_values) in enumerate(self._drawn(u[1:], w, h)):
            which = chosen == k
            codes[which, : part_codes.shape[1]] = part_codes[which]
            values[which, : part_codes.shape[1], : part_values.shape[2]] = part_values[which]
        return codes, values
