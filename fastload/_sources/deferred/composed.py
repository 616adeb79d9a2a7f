"""Composed: what was recorded of some images, as the core does it, for all of them at once.

The operations come one after the other, each with its arguments for all the images. Together they
are frames (``crop_geometry.py``) with operations on pixels between them; then what makes a table of
output values, and erased rectangles. That is what ``sample_params.py`` makes of drawn numbers, but
these are known.

``operations.py`` says which of its methods composes an operation. An argument is a number
that all the images have in common, or an array with one for each of them. Settings, such as a
filter, they have in common.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from ..._transforms.geometry.crop_geometry import Array, Frame, Unfit
from ..._transforms.pixels import operations as pixels

if TYPE_CHECKING:
    from .recording import Argument, Operation

Fill = tuple[int, int, int]

Numbers: TypeAlias = "float | Array"
"""One for all images, or an array of one for each."""

Lengths: TypeAlias = "int | Array"
"""One integer for all images, or an array of one for each."""

# resample.h's numbers, by PIL.Image.Resampling; and those of v2's filters of uint8 tensors.
_FILTERS: Final = {0: 0, 1: 5, 2: 2, 3: 4, 4: 1, 5: 3}
_LEVEL_FILTERS: Final = {"bilinear": 6, "bicubic": 7}


LONGEST = 65_535  # pixels of a side that the core resizes
_MOST_PIXELS = 1 << 28  # of an image between two frames

# Operations that change each pixel by itself, wherever it is.
PIXEL_BY_PIXEL: Final = frozenset(
    (
        pixels.NONE, pixels.BRIGHTNESS, pixels.SATURATION, pixels.HUE, pixels.GRAYSCALE,
        pixels.INVERT, pixels.SOLARIZE, pixels.POSTERIZE, pixels.LEVELS, pixels.ORDER,
        pixels.TORCH_BRIGHTNESS, pixels.TORCH_SATURATION, pixels.TORCH_HUE,
    )
)  # fmt: skip

# Operations that give the mirrored image for a mirrored one.
_MIRRORED: Final = PIXEL_BY_PIXEL | {
    pixels.CONTRAST, pixels.EQUALIZE, pixels.AUTOCONTRAST, pixels.TORCH_CONTRAST,
    pixels.TORCH_AUTOCONTRAST,
}  # fmt: skip


class Unsupported(Exception):
    """The core cannot do this operation. Handled in ``lowering.py``."""


class Erased(NamedTuple):
    """What a rectangle of a tensor is filled with.

    Attributes:
        value: one value for each channel, or one for all; None: each value is multiplied by zero.
        operations_before: how many of the operations that make the table come before, or of those
            after a resize of values. The others see the value.
    """

    value: Argument
    operations_before: int


def every(condition: bool | np.bool_ | Array) -> bool:
    """Whether it is so for all images."""
    return bool(np.all(condition)) if isinstance(condition, np.ndarray) else bool(condition)


def some(condition: bool | np.bool_ | Array) -> bool:
    """Whether it is so for one of the images."""
    return bool(np.any(condition)) if isinstance(condition, np.ndarray) else bool(condition)


class Composed:
    """Some images, while what was recorded of them is read in order.

    Attributes:
        positions: their positions among those that are lowered.
        mode: Pillow's mode of them, as they are now: "RGB" or "L". The core has three channels,
            which are equal in a gray image.
        frames: one after the other.
        slots: operations on pixels: before each frame but the first.
        filters: of each frame; None: it resizes nothing.
        fills: of each frame; None: it pads nothing.
        table: the operations that make the table.
        after: those behind a resize of values, which the last frame is; None: there is none.
        boxes: x, y, w, h of the erased rectangles; of no width where there is none.
        values: what they are filled with.
    """

    def __init__(self, positions: list[int], w: Lengths, h: Lengths, mode: str) -> None:
        self.positions = positions
        self.mode = mode
        self.frames = [Frame(w, h, positions)]
        self.slots: list[list[pixels.Slots]] = []
        self.filters: list[int | None] = [None]
        self.fills: list[Fill | None] = [None]
        self.table: list[Operation] = []
        self.after: list[Operation] | None = None
        self.boxes: list[tuple[Lengths, Lengths, Lengths, Lengths]] = []
        self.values: list[Erased] = []

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    def end(self) -> None:
        frame = self.frame
        for side in (frame.w, frame.h, frame.resized_w, frame.resized_h):
            if some(side > LONGEST):
                raise Unsupported

    def _begin(self) -> None:
        """Begin another frame, with the images as they are now."""
        self.end()
        w, h = self.frame.w, self.frame.h
        if some(w * h > _MOST_PIXELS):
            raise Unsupported
        self.frames.append(Frame(w, h, self.positions))
        self.slots.append([])
        self.filters.append(None)
        self.fills.append(None)

    def _fit(self, change: Callable[[Frame], None]) -> None:
        """Do it to the current frame, or to another one where it does not fit."""
        try:
            change(self.frame)
        except Unfit:
            self._begin()
            change(self.frame)

    # Geometry.

    def crop(self, x: Lengths, y: Lengths, w: Lengths, h: Lengths) -> None:
        """Keep a box, which is black where it is outside of the image, as in ``Image.crop``."""
        frame = self.frame
        if every((x == 0) & (y == 0) & (w == frame.w) & (h == frame.h)):
            return
        if some((w < 1) | (h < 1)):
            raise Unsupported
        if some((x < 0) | (y < 0) | (x + w > frame.w) | (y + h > frame.h)):
            self._reach(x, y, w, h, (0, 0, 0))
        elif not (self.slots and frame.untouched and self._crop_earlier(x, y, w, h)):
            frame.crop(x, y, w, h, inside=True)

    def _crop_earlier(self, x: Lengths, y: Lengths, w: Lengths, h: Lengths) -> bool:
        """Crop before the operations that change each pixel by itself: it leaves them fewer.

        The others have to see the whole image. Of a contrast that is its mean.
        """
        slots, frame = self.slots[-1], self.frame
        x = frame.unmirrored(x, w)
        k = len(slots)
        while k and _are(slots[k - 1], PIXEL_BY_PIXEL):
            k -= 1
        if k == 0:
            before = self.frames[-2]
            before.crop(x, y, w, h, inside=True)
            if not (before.resampled or before.outside):
                before.narrow()  # nothing else needs to be decoded
        elif _are(slots[k - 1], (pixels.CONTRAST, pixels.CONTRAST_CROP)):
            codes, values = pixels.empty(len(self.positions), 1, 5)
            codes[:] = pixels.CONTRAST_CROP
            previous = slots[k - 1][1]  # the factor, and what a crop before this one keeps
            values[:, :, : previous.shape[2]] = previous
            values[:, 0, 1] += x
            values[:, 0, 2] += y
            values[:, 0, 3], values[:, 0, 4] = w, h
            slots[k - 1] = codes, values
        else:
            return False
        self.frames[-1] = Frame(w, h, self.positions)
        self.frames[-1].flipped = frame.flipped
        return True

    def resize(self, w: Lengths, h: Lengths, filter: int) -> None:
        """Resize as Pillow, which copies an image that has the size already."""
        self._resize(w, h, _FILTERS[filter])

    def resize_levels(self, w: Lengths, h: Lengths, filter: str, contiguous: bool) -> None:
        """Resize a tensor of levels as v2."""
        if not self.holds_levels:
            raise Unsupported
        self._resize(w, h, _LEVEL_FILTERS[filter])

    @property
    def holds_levels(self) -> bool:
        """Whether they are tensors of levels of three channels."""
        return self.mode == "RGB" and _LEVELS.issuperset(name for name, *_ in self.table)

    def _resize(self, w: Lengths, h: Lengths, filter: int) -> None:
        if every((w == self.frame.w) & (h == self.frame.h)):
            return
        if some((w < 1) | (h < 1)):
            raise Unsupported
        self._fit(lambda frame: frame.resize(w, h))
        self.filters[-1] = filter

    def resize_values(self, w: Lengths, h: Lengths, v2: bool, contiguous: bool) -> None:
        """The last frame: it looks up values and resizes them, as torch does."""
        self._begin()
        self.frame.resize(w, h)
        self.filters[-1] = 0  # not used; but the frame is not one that does nothing
        self.after = []

    def expand(
        self, left: Lengths, top: Lengths, right: Lengths, bottom: Lengths, fill: Argument
    ) -> None:
        self._pad(left, top, right, bottom, levels(self.mode, fill))

    def border(
        self, left: Lengths, top: Lengths, right: Lengths, bottom: Lengths, value: float
    ) -> None:
        """Add a border of one value to a tensor."""
        level = border_level(self.table, value)
        if level is None:
            raise Unsupported
        self._pad(left, top, right, bottom, (level, level, level))

    def _pad(
        self, left: Lengths, top: Lengths, right: Lengths, bottom: Lengths, fill: Fill
    ) -> None:
        if some((left < 0) | (top < 0) | (right < 0) | (bottom < 0)):
            raise Unsupported
        self._reach(-left, -top, left + self.frame.w + right, top + self.frame.h + bottom, fill)

    def _reach(self, x: Lengths, y: Lengths, w: Lengths, h: Lengths, fill: Fill) -> None:
        self._fit(lambda frame: frame.crop(x, y, w, h, inside=False))
        self.fills[-1] = fill

    def flip(self, vertical: bool) -> None:
        """Upside down, or left to right."""
        frame = self.frame
        if vertical:
            self.change(_slot(pixels.UPSIDE_DOWN))
        elif (
            self.slots
            and frame.untouched
            and frame.flipped is False
            and all(_are(slots, _MIRRORED) for slots in self.slots[-1])
        ):
            # The operations before it see no difference, and a resize after it needs no other
            # frame.
            self.frames[-2].flip()
        else:
            frame.flip()

    def change(self, slots: pixels.Slots) -> None:
        """Operations on pixels, which keep the size."""
        frame = self.frame
        if not self.slots or not frame.untouched or frame.flipped is not False:
            self._begin()
        self.slots[-1].append(slots)

    def resized_to(self, w: Lengths, h: Lengths) -> None:
        """Note the size that operations on pixels have given the images."""
        self.frames[-1] = Frame(w, h, self.positions)

    # Erased rectangles.

    def erase(self, y: Lengths, x: Lengths, h: Lengths, w: Lengths, value: Argument) -> None:
        self.boxes.append((x, y, w, h))
        self.values.append(Erased(value, self._operations_so_far()))

    def frame_in(
        self, left: Lengths, top: Lengths, right: Lengths, bottom: Lengths, value: float
    ) -> None:
        """Add a border that is erased: ``border``, if something else was erased before."""
        inner_w, inner_h = self.frame.w, self.frame.h
        w, h = left + inner_w + right, top + inner_h + bottom
        self.frame.crop(-left, -top, w, h, inside=True)
        around = (
            (left + inner_w, top, right, inner_h),
            (0, top + inner_h, w, bottom),
            (0, top, left, inner_h),
            (0, 0, w, top),
        )
        self.boxes = [(left + x, top + y, w, h) for x, y, w, h in self.boxes]
        for x, y, w, h in around:
            if some((w > 0) & (h > 0)):
                # No width says that there is none.
                self.boxes.append((x, y, np.where(h > 0, w, 0) if np.ndim(h) else w, h))
                self.values.append(Erased(value, self._operations_so_far()))

    def _operations_so_far(self) -> int:
        return len(self.table if self.after is None else self.after)


def _slot(code: int) -> pixels.Slots:
    codes, values = pixels.empty(1, 1, 0)
    codes[:] = code
    return codes, values


def _are(slots: pixels.Slots, kinds: Collection[int]) -> bool:
    """Whether all of these are of ``kinds``."""
    return all(code in kinds for code in set(slots[0].ravel().tolist()))


@functools.lru_cache(256)
def levels(mode: str, fill: Argument) -> Fill:
    """A fill as levels of R, G and B: as ``Image.new`` reads it."""
    if fill is None:
        return 0, 0, 0
    channels = fill if isinstance(fill, tuple) else (fill,)
    if not all(type(level) is int and level >= 0 for level in channels):
        raise Unsupported
    if mode == "RGB" and len(channels) == 1 and not isinstance(fill, tuple):
        value: int = channels[0]  # type: ignore[assignment]
        channels = value & 255, value >> 8 & 255, value >> 16 & 255  # 0xBBGGRR
    elif mode == "L" and len(channels) == 1:
        channels *= 3
    if len(channels) != 3 or not all(level <= 255 for level in channels):  # type: ignore[operator]
        raise Unsupported
    return channels  # type: ignore[return-value]


def border_level(before: Sequence[Operation], value: float) -> int | None:
    """The level whose value is ``value`` in a tensor that ``before`` made; None: not known."""
    names = {name for name, *_ in before}
    if names <= _LEVELS:
        return int(value)
    return 0 if names <= _UNIT and value == 0 else None


# Operations that give a tensor of levels, and one of values from 0 to 1.
_LEVELS: Final = frozenset(("to_image", "contiguous"))
_UNIT: Final = frozenset(("to_tensor", "contiguous"))
