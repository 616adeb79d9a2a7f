"""PixelOp: an operation on the pixels of a sample, with parameters drawn for a whole batch at once.

The distributions are torchvision's (transforms/transforms.py, each class's ``get_params`` and
``forward``; transforms/v2/_container.py).
"""

from __future__ import annotations

import abc
import dataclasses

import numpy as np
from typing_extensions import override

from ..geometry.crop_geometry import Array
from .operations import BLUR, HUE, NONE, Slots, empty, joined, uniform


class PixelOp(abc.ABC):
    """One operation on pixels. Frozen and hashable; all its random numbers are passed as ``u``."""

    @property
    def numbers(self) -> int:
        """How many uniform numbers it needs for each sample."""
        return 1

    @property
    def slots(self) -> int:
        """Number of slots it fills."""
        return 1

    @property
    @abc.abstractmethod
    def width(self) -> int:
        """Number of values of each slot."""

    @property
    def resizes(self) -> bool:
        """Whether it may change the size of an image."""
        return False

    @property
    def moves(self) -> bool:
        """Whether it may move pixels in another way than by a flip."""
        return False

    @abc.abstractmethod
    def draw(self, u: Array, w: Array, h: Array) -> Slots:
        """The slots of n samples of w x h pixels; ``u`` is (numbers, n), uniform in [0, 1)."""


@dataclasses.dataclass(frozen=True)
class Fixed(PixelOp):
    """The same operation for every sample."""

    code: int
    values: tuple[float, ...] = ()

    numbers = 0

    @property
    @override
    def width(self) -> int:
        return len(self.values)

    @override
    def draw(self, u: Array, w: Array, h: Array) -> Slots:
        codes, values = empty(len(w), 1, self.width)
        codes[:] = self.code
        values[:] = self.values
        return codes, values


@dataclasses.dataclass(frozen=True)
class Factor(PixelOp):
    """An operation with one value, uniform between ``low`` and ``high``."""

    code: int
    low: float
    high: float

    width = 1

    @override
    def draw(self, u: Array, w: Array, h: Array) -> Slots:
        codes, values = empty(len(w), 1, 1)
        codes[:] = self.code
        factor = uniform(self.low, self.high, u[0])
        if self.code == HUE:  # a fraction of the circle, truncated to 1/256
            factor = (factor * 255).astype(np.int32) & 255
        values[:, 0, 0] = factor
        return codes, values


@dataclasses.dataclass(frozen=True)
class Blur(PixelOp):
    """A Gaussian blur of ``radius`` (x, y) pixels; sigma is uniform between ``low`` and ``high``.

    Values: radius x, radius y, the weights of x from the centre out, those of y. torchvision's
    ``_get_gaussian_kernel1d``.
    """

    radius: tuple[int, int]
    low: float
    high: float

    @property
    @override
    def width(self) -> int:
        return 4 + sum(self.radius)

    @override
    def draw(self, u: Array, w: Array, h: Array) -> Slots:
        codes, values = empty(len(w), 1, self.width)
        codes[:] = BLUR
        values[:, 0, :2] = self.radius
        sigma = uniform(self.low, self.high, u[0])
        start = 2
        for radius in self.radius:
            weights = np.exp(-0.5 * (np.arange(radius + 1) / sigma[:, None]) ** 2)
            weights /= 2 * weights.sum(axis=1, keepdims=True) - weights[:, :1]
            values[:, 0, start : start + radius + 1] = weights.astype(np.float32)
            start += radius + 1
        return codes, values


@dataclasses.dataclass(frozen=True)
class _Several(PixelOp):
    ops: tuple[PixelOp, ...]

    @property
    @override
    def resizes(self) -> bool:
        return any(op.resizes for op in self.ops)

    @property
    @override
    def moves(self) -> bool:
        return any(op.moves for op in self.ops)

    @property
    @override
    def numbers(self) -> int:
        return sum(op.numbers for op in self.ops)

    @property
    @override
    def slots(self) -> int:
        return max((op.slots for op in self.ops), default=0)

    @property
    @override
    def width(self) -> int:
        return max((op.width for op in self.ops), default=0)

    def _drawn(self, u: Array, w: Array, h: Array) -> list[Slots]:
        drawn = []
        start = 0
        for op in self.ops:
            drawn.append(op.draw(u[start : start + op.numbers], w, h))
            start += op.numbers
        return drawn


@dataclasses.dataclass(frozen=True)
class Chain(_Several):
    """All operations, in order."""

    @property
    @override
    def slots(self) -> int:
        return sum(op.slots for op in self.ops)

    @override
    def draw(self, u: Array, w: Array, h: Array) -> Slots:
        return joined(self._drawn(u, w, h), len(w))


@dataclasses.dataclass(frozen=True)
class Chance(Chain):
    """All operations, in order, with probability ``p``; otherwise none."""

    p: float

    @property
    @override
    def numbers(self) -> int:
        return 1 + super().numbers

    @override
    def draw(self, u: Array, w: Array, h: Array) -> Slots:
        codes, values = super().draw(u[1:], w, h)
        codes[u[0] >= self.p] = NONE
        return codes, values


@dataclasses.dataclass(frozen=True)
class RandomOrder(_Several):
    """All operations in a random order, each order with the same probability."""

    @property
    @override
    def numbers(self) -> int:
        return len(self.ops) + super().numbers

    @property
    @override
    def slots(self) -> int:
        return len(self.ops) * super().slots  # so that any operation fits into any place

    @override
    def draw(self, u: Array, w: Array, h: Array) -> Slots:
        n, count, most = len(w), len(self.ops), super().slots
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
    @override
    def numbers(self) -> int:
        return 1 + super().numbers

    @override
    def draw(self, u: Array, w: Array, h: Array) -> Slots:
        codes, values = empty(len(w), self.slots, self.width)
        ends = np.cumsum(self.weights)
        chosen = np.searchsorted(ends, u[0] * ends[-1], side="right")
        chosen = np.minimum(chosen, len(self.ops) - 1)  # rounding may give the end itself
        for k, (part_codes, part_values) in enumerate(self._drawn(u[1:], w, h)):
            which = chosen == k
            codes[which, : part_codes.shape[1]] = part_codes[which]
            values[which, : part_codes.shape[1], : part_values.shape[2]] = part_values[which]
        return codes, values
