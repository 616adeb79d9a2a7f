"""The geometry operations (crops, resizes, pads, flips), drawn for a whole batch at once.

A chain of operations is reduced to one *normal form* per sample (``crop_geometry``): cut a box out
of the source, resize it, cut a window out of that (pixels outside get the fill colour), flip.
``apply`` computes it as a pure function of (seed, epoch, index, position in the chain), in array
operations, without Python code per sample.

The distributions and the rounding are torchvision's (transforms/transforms.py, each class's
``get_params``; transforms/functional.py, ``_compute_resized_output_size`` and ``center_crop``).
Python's ``round`` and ``np.rint`` both round halves to even.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from ..._base import philox
from ..._base.value_class import value_class
from .crop_geometry import Array, Frame, Length

if TYPE_CHECKING:
    import numpy.typing as npt

MAX_SIDE = 1 << 24  # pixels of a resized side: fixing the shorter side makes a thin strip long


class Op(Protocol):
    """One operation. Frozen and hashable; all its random numbers are passed as ``u``."""

    blocks: ClassVar[int]  # Philox blocks of four numbers needed for each sample

    def apply(self, frame: Frame, u: Array) -> None:
        """Apply the operation to ``frame``. ``u`` is float64 (4, blocks, n), uniform in [0, 1)."""


@value_class()
class RandomResizedCrop:
    """A box of random area and aspect ratio, resized to ``size``.

    Up to ten times: area = scale x (w h), scale uniform in ``scale``; ln(aspect) uniform in
    ln(``ratio``); width = round(sqrt(area aspect)), height = round(sqrt(area / aspect)). The first
    that fits is placed uniformly over whole pixels. If none fits: the largest central box whose
    aspect ratio lies in ``ratio``. torchvision's ``RandomResizedCrop.get_params``.
    """

    size: tuple[int, int]  # (h, w)
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    blocks: ClassVar[int] = 10

    def apply(self, frame: Frame, u: Array) -> None:
        area = np.multiply(frame.w, frame.h, dtype=np.float64)
        area = area * (self.scale[0] + u[0] * (self.scale[1] - self.scale[0]))
        low, high = np.log(self.ratio)
        # sqrt(area * aspect) and sqrt(area / aspect), with one root and one exponential
        side = np.sqrt(area)
        stretch = np.exp(u[1] * ((high - low) / 2) + low / 2)
        tries_w = np.rint(side * stretch)
        tries_h = np.rint(side / stretch)
        fits = (tries_w <= frame.w) & (tries_h <= frame.h) & (tries_w > 0) & (tries_h > 0)
        first = fits.argmax(axis=0)
        chosen = (first, np.arange(len(first)))
        w, h = tries_w[chosen].astype(np.int64), tries_h[chosen].astype(np.int64)
        y = (u[2][chosen] * (frame.h - h + 1)).astype(np.int64)
        x = (u[3][chosen] * (frame.w - w + 1)).astype(np.int64)
        fitted = fits[chosen]
        if not fitted.all():
            central = self._central(*np.broadcast_arrays(frame.w, frame.h, w)[:2])
            x, y, w, h = (
                np.where(fitted, ours, theirs)
                for ours, theirs in zip((x, y, w, h), central, strict=True)
            )
        frame.crop(x, y, w, h, inside=True)
        frame.resize(self.size[1], self.size[0])

    def _central(self, width: Array, height: Array) -> tuple[Array, Array, Array, Array]:
        """The box (x, y, w, h) that is used if none of the ten tries fits."""
        aspect, low, high = width / height, min(self.ratio), max(self.ratio)
        w = np.where(aspect > high, np.rint(height * high), width).astype(np.int64)
        h = np.where(aspect < low, np.rint(width / low), height).astype(np.int64)
        # torchvision may round a side to 0 here, and Pillow then gives black pixels or fails
        w, h = np.maximum(w, 1), np.maximum(h, 1)
        return (width - w) // 2, (height - h) // 2, w, h


@value_class()
class Resize:
    """A resize to (h, w), or of the shorter side to an int, the longer in proportion, rounded down.

    ``max_size`` bounds the longer side; with ``size`` None the longer side becomes ``max_size``.
    torchvision's ``_compute_resized_output_size``.
    """

    size: tuple[int, int] | int | None
    max_size: int | None = None
    blocks: ClassVar[int] = 0

    def apply(self, frame: Frame, u: Array) -> None:
        if isinstance(self.size, tuple):
            frame.resize(self.size[1], self.size[0])
            return
        shorter = np.minimum(frame.w, frame.h)
        longer = np.maximum(frame.w, frame.h)
        if self.size is None:
            assert self.max_size is not None
            new_longer: Length = self.max_size
            new_shorter: Length = (self.max_size * shorter / longer).astype(np.int64)
        else:
            new_shorter = self.size
            new_longer = (self.size * longer / shorter).astype(np.int64)
            if self.max_size is not None:
                over = new_longer > self.max_size
                new_shorter = np.where(
                    over, (self.max_size * self.size / new_longer).astype(np.int64), self.size
                )
                new_longer = np.minimum(new_longer, self.max_size)
        portrait = np.less_equal(frame.w, frame.h)
        w = np.where(portrait, new_shorter, new_longer)
        h = np.where(portrait, new_longer, new_shorter)
        frame.refuse(
            (w < 1) | (h < 1) | (w > MAX_SIDE) | (h > MAX_SIDE),
            f"{self} gives an empty image, or a side above {MAX_SIDE}, for this {{w}}x{{h}} image; "
            "leave the image out or crop before the resize",
        )
        frame.resize(w, h, least=self.size if self.size and self.max_size is None else 1)


@value_class()
class CenterCrop:
    """A central crop to (h, w); a smaller image is padded first. torchvision's ``center_crop``.

    A side that is d pixels too long loses round(d / 2) pixels at its start, halves to even. A side
    that is d pixels too short gains d // 2 there.
    """

    size: tuple[int, int]
    blocks: ClassVar[int] = 0

    def apply(self, frame: Frame, u: Array) -> None:
        h, w = self.size
        inside = w <= frame.least[0] and h <= frame.least[1]
        x, y = centre(frame.w, w), centre(frame.h, h)
        frame.crop(x, y, w, h, inside=inside, centred=True)


def centre(length: Length, cut: int) -> Length:
    """Where a central crop of ``cut`` pixels begins; negative: so many are added there."""
    spare = np.asarray(length - cut)
    start = np.where(spare >= 0, np.rint(spare / 2).astype(np.int64), -(-spare // 2))
    return start if start.ndim else int(start)


@value_class()
class RandomCrop:
    """A crop to (h, w) at a uniform position, after padding by (left, top, right, bottom).

    ``pad_if_needed`` then adds the missing pixels at *both* ends of a side, as torchvision does.
    torchvision's ``RandomCrop.get_params`` and ``forward``.
    """

    size: tuple[int, int]
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    pad_if_needed: bool = False
    blocks: ClassVar[int] = 1

    def apply(self, frame: Frame, u: Array) -> None:
        h, w = self.size
        left, top, right, bottom = self.padding
        padded_w, padded_h = frame.w + (left + right), frame.h + (top + bottom)
        need_w: Length = 0
        need_h: Length = 0
        if self.pad_if_needed:
            need_w, need_h = np.maximum(w - padded_w, 0), np.maximum(h - padded_h, 0)
        else:
            frame.refuse(
                np.less(padded_w, w) | np.less(padded_h, h),
                f"RandomCrop of {w}x{h} pixels is larger than this image of {{w}}x{{h}} pixels "
                f"with padding {self.padding}; resize first, or use pad_if_needed=True",
            )
        x = (u[0, 0] * (padded_w + 2 * need_w - w + 1)).astype(np.int64) - left - need_w
        y = (u[1, 0] * (padded_h + 2 * need_h - h + 1)).astype(np.int64) - top - need_h
        enough = w <= frame.least[0] and h <= frame.least[1]
        inside = not any(self.padding) and (enough or not self.pad_if_needed)
        frame.crop(x, y, w, h, inside=inside)


@value_class()
class Pad:
    """Padding by (left, top, right, bottom) pixels."""

    padding: tuple[int, int, int, int]
    blocks: ClassVar[int] = 0

    def apply(self, frame: Frame, u: Array) -> None:
        left, top, right, bottom = self.padding
        w, h = frame.w + (left + right), frame.h + (top + bottom)
        frame.crop(-left, -top, w, h, inside=not any(self.padding))


@value_class()
class RandomHorizontalFlip:
    """A flip left to right with probability ``p``."""

    p: float = 0.5
    blocks: ClassVar[int] = 1

    def apply(self, frame: Frame, u: Array) -> None:
        frame.flip(u[0, 0] < self.p)


RESIZING = (Resize, RandomResizedCrop)
"""The operations that need a filter; ``bucket_crops.py`` has one more."""


class Fit(NamedTuple):
    """The properties of a chain that do not depend on the images.

    Attributes:
        size: (h, w) of the result, or None if it depends on the source image.
        padding: position of the operation that may reach outside the image and so needs a fill
            colour, or None. There is at most one.
    """

    size: tuple[int, int] | None
    padding: int | None


def fit(ops: Sequence[Op], start: tuple[int, int] | None = None) -> Fit:
    """Check that the operations have a normal form. Raises Unfit with the reason if not.

    ``start`` is the (h, w) of every image before them, if known.
    """
    none = np.empty(0, np.int64)
    h, w = (none, none) if start is None else start
    frame = Frame(w, h, none)
    padding = None
    for position, op in enumerate(ops):
        op.apply(frame, np.empty((4, op.blocks, 0)))
        if frame.outside and padding is None:
            padding = position
    return Fit(frame.size(), padding)


class Numbers(NamedTuple):
    """The random numbers of a batch, a pure function of these.

    Attributes:
        seed, epoch: any integers (modulo 2**64 and 2**32).
        indices: int64 (n,): the samples' indices in the dataset, below 2**40.
        repeats: int64 (n,): how often each was drawn before in this epoch; None: never.
    """

    seed: int
    epoch: int
    indices: npt.NDArray[np.int64]
    repeats: npt.NDArray[np.int64] | None = None

    def part(self, which: slice | npt.NDArray[Any]) -> Numbers:
        """Of some of the samples."""
        repeats = None if self.repeats is None else self.repeats[which]
        return Numbers(self.seed, self.epoch, self.indices[which], repeats)

    @property
    def _counters(self) -> npt.NDArray[np.int64]:
        if self.repeats is None:
            return self.indices
        return self.indices + (self.repeats << philox.REPEAT_BITS)

    def blocks(self, streams: Sequence[int]) -> Array:
        """float64 (4, b, n), uniform in [0, 1), of b streams of Philox."""
        if not streams:
            return np.empty((4, 0, len(self.indices)))
        words = philox.words(self.seed, self.epoch, self._counters, streams)
        u: Array = np.multiply(words.reshape(4, *words.shape[2:]), 2.0**-32)
        return u

    def uniform(self, position: int, count: int) -> Array:
        """float64 (count, n), uniform in [0, 1), of a position in the chain of transforms."""
        if not count:
            return np.empty((0, len(self.indices)))
        drawn = philox.uniform(self.seed, self.epoch, self._counters, position, count)
        return np.transpose(drawn)

    def key(self, position: int) -> npt.NDArray[np.uint64]:
        """(n,): a 64-bit key for each sample, from a separate block."""
        block = position * philox.BLOCKS_PER_POSITION + philox.BLOCKS_PER_POSITION - 1
        words = philox.words(self.seed, self.epoch, self._counters, [block])
        key: npt.NDArray[np.uint64] = words[0, 0, 0] | words[0, 1, 0] << np.uint64(32)
        return key


def apply(ops: Sequence[Op], frame: Frame, numbers: Numbers, *, position: int) -> None:
    """Apply the operations to ``frame``; the first has ``position`` in the chain.

    The random numbers of a position do not depend on the other operations.
    """
    streams: list[int] = []
    for op_position, op in enumerate(ops, position):
        first = op_position * philox.BLOCKS_PER_POSITION
        streams += range(first, first + op.blocks)
    u, start = numbers.blocks(streams), 0
    for op in ops:
        op.apply(frame, u[:, start : start + op.blocks])
        start += op.blocks
