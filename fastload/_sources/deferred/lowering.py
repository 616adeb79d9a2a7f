"""Lowering: from a recording to what the core does, for one image or for many at once.

A recording becomes stages: a crop-and-resize step (box, resize, window, mirror), operations on
pixels, another such step, and so on; then a table of output values, and erased rectangles. That is
the form of ``sample_params.SampleParams``, but with parameters that are known instead of drawn.

Note [Groups]
    One call of the core fills samples that agree in output size, table, fills, and the filters of
    later stages. What may differ from sample to sample does not split a group: boxes, the first
    filter, mirrors, which operations on pixels there are and in which order, and whether a
    rectangle is erased. A sample with fewer stages than others gets stages that do nothing. A
    filter that resizes nothing, and a fill where nothing is padded, agree with any other.
"""

from __future__ import annotations

import dataclasses
import functools
import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from PIL import Image, ImageFilter

from ..._transforms.geometry.crop_geometry import Geometry
from ..._transforms.pixels import operations as pixels
from ..._transforms.sample_params import SampleParams
from .operations import channels
from .recording import Argument, Opened, Operation, Recording
from .torch_blur import blurs_alike
from .torch_blur import values as torch_blur_values

if TYPE_CHECKING:
    import torch

Fill = tuple[int, int, int]

Step = tuple[int, int, int, int, int, int, int, int, int, int, int]
"""A crop-and-resize step: box (x, y, w, h), resized (w, h), window (x, y), flip, size (w, h)."""

Slot = tuple[int, tuple[float, ...]]
"""An operation on pixels: its code in ``pixels/operations.py``, and its values."""


class Erased(NamedTuple):
    """What a rectangle of a tensor is filled with.

    Attributes:
        value: one value for each channel, or one for all; None: each value is multiplied by zero.
        at: how many of the operations that make the table come before, or of those after a resize
            of values. The others see the value.
    """

    value: Argument
    at: int


# Modes that the core decodes with Pillow's bits, by format; it leaves single files to Pillow.
_DECODED: Final = {
    "JPEG": frozenset(("RGB", "L")),
    "PNG": frozenset(("RGB", "L")),
    "WEBP": frozenset(("RGB",)),
    "BMP": frozenset(("RGB",)),
}

# Modes that it decodes as what ``convert("RGB")`` makes of them.
_CONVERTED: Final = {"PNG": frozenset(("P", "LA", "RGBA")), "WEBP": frozenset(("RGBA",))}
_TO_RGB: Final = ("convert", "RGB")

# resample.h's numbers, by PIL.Image.Resampling.
_FILTERS: Final = {0: 0, 1: 5, 2: 2, 3: 4, 4: 1, 5: 3}

# Operations that give or change a tensor level by level, so that a table of 256 values says what
# they do. "contiguous" only moves values.
TABLED: Final = frozenset(
    (
        "to_tensor", "to_image", "to_dtype", "convert_dtype", "normalize",
        "mul", "div", "add", "sub", "contiguous",
    )
)  # fmt: skip

# Those that move what is in a tensor, which is the same before its values are looked up.
_MOVING: Final = frozenset(("part", "mirror", "resize_levels", "resize_values"))

# resample.h's numbers of v2's filters of uint8 tensors.
_LEVEL_FILTERS: Final = {"bilinear": 6, "bicubic": 7}

_MOST_WARPED = 1e9  # of the numbers of an affine or perspective map
_LONGEST = 65_535  # pixels of a side that the core resizes
_MOST_PIXELS = 1 << 28  # of an image between two stages


class Lowered(NamedTuple):
    """What the core does to one image.

    Attributes:
        steps: at least one.
        slots: operations between the steps: one list fewer than steps.
        filters: of each step; None: it resizes nothing.
        fills: of each step; None: it pads nothing.
        channels: of the result: 3, or 1 for gray.
        mode: "RGB" or "L": Pillow's mode of the image that becomes a tensor.
        table: the operations that ``TABLED`` names, which make the table.
        after: those behind a resize of values, which the last step is; None: there is none.
        erased: x, y, w, h of each rectangle.
        values: what it is filled with.
    """

    steps: tuple[Step, ...]
    slots: tuple[tuple[Slot, ...], ...]
    filters: tuple[int | None, ...]
    fills: tuple[Fill | None, ...]
    channels: int
    mode: str
    table: tuple[Operation, ...]
    after: tuple[Operation, ...] | None
    erased: tuple[tuple[int, int, int, int], ...]
    values: tuple[Erased, ...]


class _Unsupported(Exception):
    """The core cannot do this operation. Never leaves this module."""


class _Stages:
    """The stages of one image, while its operations are read in order.

    The rules of composing are those of ``crop_geometry.Frame``; where an operation does not fit
    the current step, another step begins.
    """

    __slots__ = (
        "box_h", "box_w", "cut", "fill", "fills", "filter", "filters", "flip", "h", "left",
        "outside", "resized_h", "resized_w", "slots", "steps", "top", "w", "x", "y",
    )  # fmt: skip

    def __init__(self, width: int, height: int) -> None:
        self.steps: list[Step] = []
        self.slots: list[list[Slot]] = []
        self.filters: list[int | None] = []
        self.fills: list[Fill | None] = []
        self._begin(width, height)

    def _begin(self, width: int, height: int) -> None:
        self.x = self.y = self.left = self.top = self.flip = 0
        self.w = self.box_w = self.resized_w = width
        self.h = self.box_h = self.resized_h = height
        self.cut = self.outside = False
        self.filter: int | None = None
        self.fill: Fill | None = None

    def _untouched(self) -> bool:
        return not (self.cut or self.outside or self.flip or self.filter is not None)

    def end(self) -> None:
        """End the current step; another one begins, with the image as it is now."""
        if max(self.w, self.h, self.resized_w, self.resized_h) > _LONGEST:
            raise _Unsupported
        self.steps.append(
            (self.x, self.y, self.box_w, self.box_h, self.resized_w, self.resized_h,
             self.left, self.top, self.flip, self.w, self.h)
        )  # fmt: skip
        self.filters.append(self.filter)
        self.fills.append(self.fill)

    def _next(self) -> None:
        self.end()
        if self.w * self.h > _MOST_PIXELS:
            raise _Unsupported
        self.slots.append([])
        self._begin(self.w, self.h)

    def _settle(self) -> None:
        """Make the window the box, so that the resized box is the whole image again."""
        if self.flip or self.filter is not None or self.outside:
            self._next()
        elif self.cut:
            self.x, self.y = self.x + self.left, self.y + self.top
            self.box_w = self.resized_w = self.w
            self.box_h = self.resized_h = self.h
            self.left = self.top = 0
            self.cut = False

    def crop(self, x: int, y: int, w: int, h: int) -> None:
        """Keep a box that lies inside the image."""
        if (x, y, w, h) == (0, 0, self.w, self.h):
            return
        if x < 0 or y < 0 or w < 1 or h < 1 or x + w > self.w or y + h > self.h:
            raise _Unsupported
        if self.flip:
            x = self.w - x - w
        if self.slots and not (self.cut or self.outside or self.filter is not None):
            if self._crop_earlier(x, y, w, h):
                return
        self.left += x
        self.top += y
        self.w, self.h = w, h
        self.cut = True

    def _crop_earlier(self, x: int, y: int, w: int, h: int) -> bool:
        """Crop before the operations that change each pixel by itself: it leaves them fewer.

        The others have to see the whole image. Of a contrast that is its mean.
        """
        slots = self.slots[-1]
        k = len(slots)
        while k and slots[k - 1][0] in _PIXEL_BY_PIXEL:
            k -= 1
        if k == 0:
            self._crop_step_before(x, y, w, h)
        elif slots[k - 1][0] == pixels.CONTRAST:
            slots[k - 1] = pixels.CONTRAST_CROP, (*slots[k - 1][1], x, y, w, h)
        elif slots[k - 1][0] == pixels.CONTRAST_CROP:
            factor, left, top, *_ = slots[k - 1][1]
            slots[k - 1] = pixels.CONTRAST_CROP, (factor, left + x, top + y, w, h)
        else:
            return False
        flip = self.flip
        self._begin(w, h)
        self.flip = flip
        return True

    def _crop_step_before(self, x: int, y: int, w: int, h: int) -> None:
        box_x, box_y, box_w, box_h, to_w, to_h, left, top, flip, width, _ = self.steps[-1]
        left, top = left + (width - x - w if flip else x), top + y
        if self.filters[-1] is None and self.fills[-1] is None:
            # The window is the box: nothing else needs to be decoded.
            box_x, box_y, box_w, box_h, to_w, to_h = box_x + left, box_y + top, w, h, w, h
            left = top = 0
        self.steps[-1] = (box_x, box_y, box_w, box_h, to_w, to_h, left, top, flip, w, h)

    def resize(self, w: int, h: int, filter: int) -> None:
        """As Pillow, which copies an image that has the size already.

        ``filter``: resample.h's number.
        """
        if (w, h) == (self.w, self.h):
            return
        if w < 1 or h < 1:
            raise _Unsupported
        self._settle()
        self.resized_w, self.resized_h = self.w, self.h = w, h
        self.filter = filter

    def resize_values(self, w: int, h: int) -> None:
        """The last step: it looks up values and resizes them, as torch does."""
        self._next()
        self.resized_w, self.resized_h = self.w, self.h = w, h
        self.filter = 0  # not used; but the step is not one that does nothing

    def pad(self, left: int, top: int, right: int, bottom: int, level: Fill) -> None:
        """Add a border of ``level``."""
        if min(left, top, right, bottom) < 0:
            raise _Unsupported
        if self.cut and (self.filter is not None or self.outside):
            self._next()  # what was cut off must not come back
        elif self.cut:
            self._settle()
        elif self.outside and self.fill != level:
            self._next()
        self.border(left, top, right, bottom)
        self.outside, self.fill = True, level

    def border(self, left: int, top: int, right: int, bottom: int) -> None:
        """Add a border of which nothing is said: it is erased, or ``pad`` fills it."""
        if self.flip:
            left, right = right, left
        self.left -= left
        self.top -= top
        self.w += left + right
        self.h += top + bottom

    def window(self, left: int, top: int, right: int, bottom: int) -> None:
        """Keep a box that may reach outside, where it is black, as in ``Image.crop``."""
        border = max(0, -left), max(0, -top), max(0, right - self.w), max(0, bottom - self.h)
        w, h = right - left, bottom - top
        if any(border):
            self.pad(*border, (0, 0, 0))
        self.crop(left + border[0], top + border[1], w, h)

    def mirror(self) -> None:
        """Left to right."""
        if self.slots and self._untouched() and _MIRRORED.issuperset(c for c, _ in self.slots[-1]):
            # The operations before it see no difference, and a resize after it needs no other step.
            step = self.steps[-1]
            self.steps[-1] = (*step[:8], 1 - step[8], *step[9:])
        else:
            self.flip ^= 1

    def pixels(self, code: int, *values: float) -> None:
        """An operation on pixels."""
        if not self.steps or not self._untouched():
            self._next()
        self.slots[-1].append((code, values))
        if code in (pixels.ROTATE_90, pixels.ROTATE_270):
            self._begin(self.h, self.w)
        elif code in (pixels.AFFINE_TO, pixels.PERSPECTIVE):
            self._begin(int(values[-2]), int(values[-1]))
        elif code == pixels.PAD:
            left, top, right, bottom = map(int, values[:4])
            self._begin(left + self.w + right, top + self.h + bottom)


@functools.lru_cache(256)
def _levels(mode: str, fill: Argument) -> Fill:
    """A fill as levels of R, G and B: as ``Image.new`` reads it."""
    if fill is None:
        return 0, 0, 0
    given = fill if isinstance(fill, tuple) else (fill,)
    if not all(type(level) is int and level >= 0 for level in given):
        raise _Unsupported
    if mode == "RGB" and len(given) == 1 and not isinstance(fill, tuple):
        value: int = given[0]  # type: ignore[assignment]
        given = value & 255, value >> 8 & 255, value >> 16 & 255  # 0xBBGGRR
    elif mode == "L" and len(given) == 1:
        given *= 3
    if len(given) != 3 or not all(level <= 255 for level in given):  # type: ignore[operator]
        raise _Unsupported
    return given  # type: ignore[return-value]


_ROTATIONS: Final = {1: pixels.ROTATE_90, 2: pixels.ROTATE_180, 3: pixels.ROTATE_270}

# Operations of the core that take their recorded arguments as they are.
_CODES: Final = {
    "brightness": pixels.BRIGHTNESS,
    "contrast": pixels.CONTRAST,
    "saturation": pixels.SATURATION,
    "sharpness": pixels.SHARPNESS,
    "invert": pixels.INVERT,
    "solarize": pixels.SOLARIZE,
    "posterize": pixels.POSTERIZE,
    "equalize": pixels.EQUALIZE,
    "autocontrast": pixels.AUTOCONTRAST,
}

# Operations that change each pixel by itself, wherever it is.
_PIXEL_BY_PIXEL: Final = frozenset(
    (
        pixels.BRIGHTNESS, pixels.SATURATION, pixels.HUE, pixels.GRAYSCALE, pixels.INVERT,
        pixels.SOLARIZE, pixels.POSTERIZE, pixels.LEVELS,
    )
)  # fmt: skip

# Operations that give the mirrored image for a mirrored one.
_MIRRORED: Final = _PIXEL_BY_PIXEL | {pixels.CONTRAST, pixels.EQUALIZE, pixels.AUTOCONTRAST}

_KNOWN: Final = frozenset(
    (
        *TABLED, *_MOVING, *_CODES, "crop", "resize", "flip", "convert", "grayscale", "expand",
        "window", "rot90", "affine", "perspective", "gaussian_blur", "box_blur", "kernel_blur",
        "kernel", "filter", "point", "hue", "copy", "pad", "erase", "zero", "fill", "border",
    )
)  # fmt: skip

_WARP_FILTERS: Final = (0, 2, 3)  # nearest, bilinear, bicubic: as Pillow numbers them


def _convert(stages: _Stages, mode: str, to: Argument) -> str:
    """The new mode. The core has three channels, which are equal in a gray image."""
    if to == mode:
        return mode
    if mode == "RGB" and to == "L":
        stages.pixels(pixels.GRAYSCALE)
        return "L"
    if mode == "L" and to == "RGB":
        return "RGB"
    raise _Unsupported


def _affine(
    stages: _Stages, mode: str, w: int, h: int, matrix: tuple[float, ...], filter: int, fill: Any
) -> None:
    values = _warp(mode, matrix, filter, fill)
    if (w, h) == (stages.w, stages.h):
        stages.pixels(pixels.AFFINE, *values)
    else:
        stages.pixels(pixels.AFFINE_TO, *values, w, h)


def _perspective(
    stages: _Stages, mode: str, w: int, h: int, numbers: tuple[float, ...], filter: int, fill: Any
) -> None:
    stages.pixels(pixels.PERSPECTIVE, *_warp(mode, numbers, filter, fill), w, h)


def _warp(mode: str, numbers: tuple[float, ...], filter: int, fill: Any) -> tuple[float, ...]:
    if filter not in _WARP_FILTERS or max(map(abs, numbers)) > _MOST_WARPED:
        raise _Unsupported
    return *map(float, numbers), filter, *_levels(mode, fill)


def _pad(stages: _Stages, left: int, top: int, right: int, bottom: int, mode: str) -> None:
    how = _PADDINGS[mode]
    # NumPy reflects more than once where the border is wider than the image.
    most_x, most_y = stages.w - (how == 1), stages.h - (how == 1)
    if how and (max(left, right) > most_x or max(top, bottom) > most_y):
        raise _Unsupported
    if max(left + stages.w + right, top + stages.h + bottom) > _LONGEST:
        raise _Unsupported
    stages.pixels(pixels.PAD, left, top, right, bottom, how)


# As pixels/pixels.h numbers them.
_PADDINGS: Final = {"edge": 0, "reflect": 1, "symmetric": 2}


def _blur(stages: _Stages, x: float, y: float, gaussian: bool) -> None:
    if max(x, y) > pixels.MOST_BLURRED:
        raise _Unsupported
    stages.pixels(pixels.BOX_BLUR, x, y, gaussian)


def _kernel_blur(
    stages: _Stages,
    mode: str,
    v2: bool,
    kernel: tuple[int, int],
    sigma: tuple[float, float],
    *weights: tuple[float, ...],
) -> None:
    # A gray image is another convolution for torch.
    if mode != "RGB" or not weights or not blurs_alike(v2, kernel, (stages.w, stages.h)):
        raise _Unsupported
    stages.pixels(pixels.TORCH_BLUR, *torch_blur_values(*weights))


def _kernel(
    stages: _Stages, side: int, scale: float, offset: float, weights: Sequence[float]
) -> None:
    if abs(scale) < 1e-6 or max(map(abs, (scale, offset, *weights))) > 1e9:
        raise _Unsupported
    stages.pixels(pixels.KERNEL, side, scale, offset, *weights)


def _constant_kernel(stages: _Stages, name: str) -> None:
    (side, _), scale, offset, weights = getattr(ImageFilter, name).filterargs
    _kernel(stages, side, scale, offset, weights)


def _point(stages: _Stages, table: tuple[int, ...]) -> None:
    packed = np.array(table, np.uint8).view("<u4").tolist()
    stages.pixels(pixels.LEVELS, len(table) // 256, *packed)


def lower(recording: Recording) -> Lowered | None:
    """What the core does for ``recording``; None: it can only be replayed.

    A recording that ends in an image, not in a tensor, is not lowered.
    """
    if not decodes(recording):
        return None
    opened, operations = recording.opened, recording.operations
    try:
        return _lowered(opened.size, opened.mode, _converts(recording), operations)
    except (_Unsupported, KeyError, TypeError, ValueError):
        return None  # an operation or an argument that is not known here


def may_lower(recording: Recording) -> bool:
    """Whether ``lower`` is worth a try: format, mode and operations are of those that it knows."""
    if not decodes(recording):
        return False
    for operation in recording.operations:
        if operation[0] not in _KNOWN:
            return False
    return True


def decodes(recording: Recording) -> bool:
    """Whether the core decodes images of this format and mode."""
    opened = recording.opened
    if opened.stored is not None:
        return True
    return opened.mode in _DECODED.get(opened.format, ()) or _converts(recording)


def _converts(recording: Recording) -> bool:
    """Whether decoding includes the first operation."""
    opened = recording.opened
    known = opened.mode in _CONVERTED.get(opened.format, ())
    return known and recording.operations[:1] == (_TO_RGB,)


# Of small images there are few different crops, so that most of an epoch are found again.
@functools.lru_cache(1024)
def _lowered(
    size: tuple[int, int], mode: str, converts: bool, operations: tuple[Operation, ...]
) -> Lowered | None:
    stages = _Stages(*size)
    if converts:
        operations, mode = operations[1:], "RGB"
    at, count = 0, len(operations)
    while at < count and operations[at][0] not in TABLED:
        mode = _on_image(stages, mode, operations[at])
        at += 1
    end = at
    table: list[Operation] = []
    after: list[Operation] | None = None
    last = max((k for k in range(at, count) if operations[k][0] in _FOLLOWING), default=at)
    while end < count:
        operation = operations[end]
        if operation[0] in TABLED:
            (table if after is None else after).append(operation)
        elif operation[0] in _MOVING or (operation[0] == "border" and end < last):
            if after is not None and not _ends(operation):
                raise _Unsupported  # the core only cuts and mirrors values
            _on_tensor(stages, mode, operation, table)
            if operation[0] == "resize_values":
                after = []
        else:
            break
        end += 1
    if not table:
        return None
    if after is not None and mode != "RGB":
        raise _Unsupported
    erased, values = _erased(stages, mode, operations[end:], table if after is None else after)
    stages.end()
    return Lowered(
        tuple(stages.steps),
        tuple(map(tuple, stages.slots)),
        tuple(stages.filters),
        tuple(stages.fills),
        1 if mode == "L" else 3,
        mode,
        tuple(table),
        None if after is None else tuple(after),
        tuple(erased),
        tuple(values),
    )


def _ends(operation: tuple[Any, ...]) -> bool:
    """Whether it cuts, or mirrors left to right: what a step ends with."""
    return operation[0] == "part" or operation == ("mirror", False)


def _erased(
    stages: _Stages, mode: str, operations: tuple[tuple[Any, ...], ...], table: list[Operation]
) -> tuple[list[tuple[int, int, int, int]], list[Erased]]:
    """The rectangles x, y, w, h that are erased at the end, and with what.

    What changes values after that is added to ``table``.
    """
    boxes: list[tuple[int, int, int, int]] = []
    values: list[Erased] = []
    value: Argument
    at = 0
    while at < len(operations):
        operation = operations[at]
        at += 1
        name, *given = operation
        if name in ("erase", "zero", "fill"):
            if name == "erase":
                y, x, h, w, value = given
            elif name == "zero":
                (y, x, h, w), value = given, None
            else:
                end = at - 1 + channels(mode)
                y, x, h, w, value = _of_all_channels(mode, operations[at - 1 : end])
                at = end
            boxes.append((x, y, w, h))
            values.append(Erased(value, len(table)))
        elif name == "border":
            left, top, right, bottom, value = given
            inside = left, top, stages.w, stages.h
            stages.border(left, top, right, bottom)
            around = _around(inside, stages.w, stages.h)
            boxes = [(left + x, top + y, w, h) for x, y, w, h in boxes] + around
            values += [Erased(value, len(table))] * len(around)
        elif name in TABLED:
            table.append(operation)
        else:
            raise _Unsupported
    return boxes, values


def _of_all_channels(mode: str, fills: tuple[tuple[Any, ...], ...]) -> tuple[Any, ...]:
    """y, x, h, w and values of a rectangle that is filled channel by channel."""
    rectangle = fills[0][2:6]
    wanted = [("fill", channel, *rectangle) for channel in range(channels(mode))]
    if [fill[:6] for fill in fills] != wanted:
        raise _Unsupported
    return *rectangle, tuple(fill[6] for fill in fills)


def _on_tensor(
    stages: _Stages, mode: str, operation: tuple[Any, ...], before: Sequence[Operation]
) -> None:
    """One of ``_MOVING``, done to the levels. ``before``: what gave the tensor its values."""
    name, *given = operation
    if name == "part":
        stages.crop(*given)
    elif name == "resize_levels":
        w, h, filter, _ = given
        if mode != "RGB" or not _LEVELS.issuperset(name for name, *_ in before):
            raise _Unsupported
        stages.resize(w, h, _LEVEL_FILTERS[filter])
    elif name == "resize_values":
        w, h, *_ = given
        stages.resize_values(w, h)
    elif name == "border":
        *sides, value = given
        level = border_level(before, value)
        if level is None:
            raise _Unsupported
        left, top, right, bottom = sides
        stages.pad(left, top, right, bottom, (level, level, level))
    elif given[0]:
        stages.pixels(pixels.UPSIDE_DOWN)
    else:
        stages.mirror()


def border_level(before: Sequence[Operation], value: float) -> int | None:
    """The level whose value is ``value`` in a tensor that ``before`` made; None: not known."""
    names = {name for name, *_ in before}
    if names <= _LEVELS:
        return int(value)
    return 0 if names <= _UNIT and value == 0 else None


# Operations that give a tensor of levels, and one of values from 0 to 1.
_LEVELS: Final = frozenset(("to_image", "contiguous"))
_UNIT: Final = frozenset(("to_tensor", "contiguous"))

# What may follow a border only if that is a border of the image.
_FOLLOWING: Final = (TABLED | _MOVING) - {"contiguous"}


def _around(
    box: tuple[int, int, int, int], width: int, height: int
) -> list[tuple[int, int, int, int]]:
    """The rectangles around ``box`` (x, y, w, h) in an image of ``width`` and ``height``."""
    x, y, w, h = box
    right, bottom = x + w, y + h
    sides = (
        (right, y, width - right, h),
        (0, bottom, width, height - bottom),
        (0, y, x, h),
        (0, 0, width, y),
    )
    return [side for side in sides if side[2] and side[3]]


def _on_image(stages: _Stages, mode: str, operation: tuple[Any, ...]) -> str:
    """One operation on an image; the mode after it."""
    name = operation[0]
    if name == "crop":
        _, x, y, w, h = operation
        stages.crop(x, y, w, h)
        return mode
    if name == "resize":
        _, w, h, filter = operation
        stages.resize(w, h, _FILTERS[filter])
        return mode
    given = operation[1:]
    code = _CODES.get(name)
    if code is not None:
        stages.pixels(code, *map(float, given))
    elif name == "flip":
        if given[0]:
            stages.pixels(pixels.UPSIDE_DOWN)
        else:
            stages.mirror()
    elif name == "convert":
        return _convert(stages, mode, given[0])
    elif name == "grayscale":
        _convert(stages, mode, "L")
        return "RGB"
    elif name == "expand":
        left, top, right, bottom, fill = given
        stages.pad(left, top, right, bottom, _levels(mode, fill))
    elif name == "window":
        stages.window(*given)
    elif name == "pad":
        _pad(stages, *given)
    elif name == "rot90":
        if given[0] % 4:
            stages.pixels(_ROTATIONS[given[0] % 4])
    elif name == "affine":
        _affine(stages, mode, *given)
    elif name == "perspective":
        _perspective(stages, mode, *given)
    elif name in ("gaussian_blur", "box_blur"):
        _blur(stages, given[0], given[1], name == "gaussian_blur")
    elif name == "kernel_blur":
        _kernel_blur(stages, mode, *given)
    elif name == "kernel":
        _kernel(stages, *given)
    elif name == "filter":
        _constant_kernel(stages, given[0])
    elif name == "point":
        _point(stages, given[0])
    elif name == "hue":
        if mode == "RGB":  # torchvision leaves other images as they are
            stages.pixels(pixels.HUE, int(given[0] * 255) & 255)
    elif name != "copy":
        raise _Unsupported
    return mode


# --- groups ---------------------------------------------------------------------------------------


@dataclasses.dataclass
class Group:
    """Samples that one call of the core fills. See Note [Groups].

    Attributes:
        places: their positions among the samples that were given.
        samples: what to do to each.
        filters: by stage, from the second on; None: any.
        fills: by stage; None: any.
        values: of the erased rectangles.
    """

    places: list[int]
    samples: list[Lowered]
    filters: list[int | None]
    fills: list[Fill | None]
    values: list[Erased]

    @property
    def first(self) -> Lowered:
        """One of the samples, for what they have in common."""
        return self.samples[0]

    @property
    def fill(self) -> Fill:
        """Of the first stage."""
        return self.fills[0] or (0, 0, 0)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the results."""
        return self.first.steps[-1][9:]

    def join(self, other: Group) -> bool:
        """Add the samples of ``other``, if one call can fill them too."""
        if _common(self.first) != _common(other.first):
            return False
        filters = _agreed(self.filters, other.filters)
        fills = _agreed(self.fills, other.fills)
        values = _agreed(self.values, other.values)
        if filters is None or fills is None or values is None:
            return False
        self.filters, self.fills, self.values = filters, fills, values
        self.places += other.places
        self.samples += other.samples
        return True

    def first_filters(self) -> np.ndarray:
        """uint8 (n,): of the first stage of each sample, as numbered in resample.h."""
        return np.array([sample.filters[0] or 0 for sample in self.samples], np.uint8)

    def geometry(self) -> Geometry:
        """The first stage of all samples, with the size of the finished ones."""
        steps = np.array([sample.steps[0] for sample in self.samples], np.int32)
        width, height = self.size
        return Geometry(
            box=np.ascontiguousarray(steps[:, :4]),
            resized=np.ascontiguousarray(steps[:, 4:6]),
            window=np.ascontiguousarray(steps[:, 6:8]),
            flip=np.ascontiguousarray(steps[:, 8], np.uint8),
            out_h=height,
            out_w=width,
        )

    def params(self) -> SampleParams | None:
        """What follows the first stage; None: nothing."""
        more = len(self.filters)
        if not more and not self.values:
            return None
        n = len(self.samples)
        counts = [
            max((len(one.slots[k]) for one in self.samples if k < len(one.slots)), default=0)
            for k in range(more)
        ]
        width = max(
            (len(values) for one in self.samples for some in one.slots for _, values in some),
            default=0,
        )
        codes, values = pixels.empty(n, sum(counts), width)
        steps = np.zeros((n, more, 11), np.int32)
        boxes = np.zeros((n, len(self.values), 4), np.int32)
        for i, one in enumerate(self.samples):
            at = 0
            for k in range(more):
                if k < len(one.slots):
                    for j, (code, given) in enumerate(one.slots[k], at):
                        codes[i, j] = code
                        values[i, j, : len(given)] = given
                    steps[i, k] = one.steps[k + 1]
                else:
                    w, h = self.size
                    steps[i, k] = (0, 0, w, h, w, h, 0, 0, 0, w, h)
                at += counts[k]
            if one.erased:
                boxes[i, : len(one.erased)] = one.erased
        settings = [
            [count, filter or 0, *(fill or (0, 0, 0))]
            for count, filter, fill in zip(counts, self.filters, self.fills[1:], strict=True)
        ]
        return SampleParams(
            first_size=np.array([one.steps[0][9:] for one in self.samples], np.int32),
            codes=codes,
            values=values,
            frames=steps,
            settings=np.array(settings, np.int32).reshape(-1, 5),
            boxes=boxes,
            keys=np.zeros((n, len(self.values)), np.uint64),
        )


def _common(one: Lowered) -> tuple[object, ...]:
    # A step that resizes values is the last one: no other follows that does nothing.
    count = 0 if one.after is None else len(one.steps)
    return one.steps[-1][9:], one.mode, one.table, one.after, count


def _agreed(one: Sequence[Any], other: Sequence[Any]) -> list[Any] | None:
    """What both can have, position by position, None being any; None: they differ."""
    if len(one) < len(other):
        one, other = other, one
    both = list(one)
    for k, value in enumerate(other):
        if both[k] is None:
            both[k] = value
        elif value is not None and value != both[k]:
            return None
    return both


def grouped(samples: Sequence[Lowered | None]) -> list[Group]:
    """The groups of ``samples``, without those that are None."""
    exact: dict[tuple[object, ...], Group] = {}
    for place, one in enumerate(samples):
        if one is None:
            continue
        later = one.filters[1:]
        key = (one.steps[-1][9:], later, one.fills, one.table, one.after, one.mode, one.values)
        group = exact.get(key)
        if group is None:
            exact[key] = Group([place], [one], list(later), list(one.fills), list(one.values))
        else:
            group.places.append(place)
            group.samples.append(one)
    groups: list[Group] = []
    for group in exact.values():
        if not any(known.join(group) for known in groups):
            groups.append(group)
    for group in groups:
        order = sorted(range(len(group.places)), key=group.places.__getitem__)
        group.places = [group.places[k] for k in order]
        group.samples = [group.samples[k] for k in order]
    return groups


# --- the table ------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def ramp(mode: str) -> Opened:
    """An image of 256 x 1 pixels that has each level once, in every channel."""
    levels = Image.frombytes("L", (256, 1), bytes(range(256)))
    stream = io.BytesIO()
    (levels if mode == "L" else Image.merge("RGB", [levels] * 3)).save(stream, "PNG")
    return Opened(None, stream.getvalue(), None, (256, 1), mode, "PNG")


def table_of(
    mode: str,
    operations: tuple[Operation, ...],
    replay: Callable[[Recording], Image.Image | torch.Tensor],
) -> torch.Tensor:
    """What the operations make of each level: (channels, 256), made by ``replay`` itself."""
    import torch

    if operations == (("to_image",),):  # which makes no use of torchvision
        return torch.arange(256, dtype=torch.uint8, device="cpu").expand(
            1 if mode == "L" else 3, 256
        )
    made = replay(Recording(ramp(mode), operations, (256, 1), mode))
    assert isinstance(made, torch.Tensor), "the operations end in a tensor"
    return made.reshape(made.shape[0], 256)
