"""What fastload exchanges in Pillow.

``PIL.Image.open`` and ``fromarray`` look at the flag of their thread. The others look at what they
are given: a deferred image, or anything else, which goes to the original at once.
"""

from __future__ import annotations

import io
import operator
from collections.abc import Callable
from typing import Any, Final

import PIL.ImageEnhance

from ...._base.pixel_limit import is_within
from ..from_array import from_array
from ..guarded import Function
from ..image import PLAIN, DeferredImage, fits, keeps_no_color, merged, sides_of, waiting
from ..openers import opener
from ..recording import Operation
from .patch import Patch
from .proof import ProofInputs, Same, jpeg

# Each gets the original function and gives the new one.


def _blend(original: Function) -> Function:
    def blend(im1: Any, im2: Any, alpha: Any) -> Any:
        if waiting(im2) and isinstance(im1, PIL.Image.Image):
            name, factor = _enhancement(im1, im2), _float(alpha)
            if name is not None and factor is not None:
                new = im2._then((name, factor))
                if waiting(im1):
                    new._info = None if im1._info is None else im1._copy_info()
                else:
                    new._info = {}
                return new
        return original(im1, im2, alpha)

    return blend


def _float(number: Any) -> float | None:
    """What Pillow takes a number for: a tensor of one element, a Fraction ...; None: it is none."""
    if type(number) in (int, float):
        return number  # type: ignore[no-any-return]
    if not (hasattr(number, "__float__") or hasattr(number, "__index__")):
        return None  # a str, for example
    try:
        return float(number)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


_DEGENERATE: dict[tuple[Operation, ...], str] = {
    (("mean_gray",),): "contrast",
    (("convert", "L"), ("convert", "RGB")): "saturation",
    (("filter", "SMOOTH"),): "sharpness",
}


def _enhancement(degenerate: PIL.Image.Image, image: DeferredImage) -> str | None:
    """Which of ImageEnhance's four blends these two; None: none of them."""
    if image._mode not in PLAIN or degenerate.mode != image._mode:
        return None
    if not waiting(degenerate):
        black = degenerate.size == image._size and degenerate.getbbox() is None
        return "brightness" if black and not degenerate.info else None
    count = len(image._operations)
    if degenerate._opened is not image._opened:
        return None
    if degenerate._operations[:count] != image._operations:
        return None
    tail = degenerate._operations[count:]
    if not tail:
        return "saturation" if image._mode == "L" else None
    return _DEGENERATE.get(tail)


def _contrast(original: Function) -> Function:
    def init(self: Any, image: Any) -> None:
        if waiting(image) and image._mode in PLAIN:
            self.image = image
            self.degenerate = image._then(("mean_gray",))
        else:
            original(self, image)

    return init


def _expand(original: Function) -> Function:
    def expand(image: Any, border: Any = 0, fill: Any = 0) -> Any:
        if waiting(image) and image._mode in PLAIN:
            sides = sides_of(border)
            if sides is not None and fits(image._mode, fill) and keeps_no_color(image):
                w, h = image._size
                if is_within(w + sides[0] + sides[2], h + sides[1] + sides[3]):
                    return image._then(("expand", *sides, fill))
        return original(image, border, fill)

    return expand


def _pointwise(
    name: str, numbers: int = 0, *, most: int | None = None
) -> Callable[[Function], Function]:
    """A function of ImageOps that is a table of 256 values for each band.

    Args:
        name: of the operation.
        numbers: how many of its parameters are recorded, which are numbers. The others are not:
            they have to be what they are where nobody gives them.
        most: the numbers are ints from 1 to this.
    """
    valid = (int,) if most is not None else (int, float)

    def make(original: Function) -> Function:
        defaults: tuple[Any, ...] = original.__defaults__ or ()

        def function(image: Any, *args: Any) -> Any:
            if waiting(image) and image._mode in PLAIN:
                values, others = args[:numbers], args[numbers:]
                if all(map(operator.is_, others, defaults[len(defaults) - len(others) :])) and all(
                    type(v) in valid and (most is None or 1 <= v <= most) for v in values
                ):
                    return image._then((name, *values))
            return original(image, *args)

        return function

    return make


def _merge(original: Function) -> Function:
    def merge(mode: Any, bands: Any) -> Any:
        image = merged(bands) if mode == "RGB" else None
        return original(mode, bands) if image is None else image

    return merge


def _black(inputs: ProofInputs) -> PIL.Image.Image:
    return PIL.Image.new("RGB", inputs.image.size)


def _enhanced(init: Function, inputs: ProofInputs) -> Any:
    """What the enhancer makes, since the core has no image that it blends with."""
    enhancer = object.__new__(PIL.ImageEnhance.Contrast)
    init(enhancer, inputs.image)
    return enhancer.enhance(0.4)


_PASSED_OVER: Final = "it asks for the pixels, which makes the image then and there, one at a time"
_TABLE: Final = "it makes a table of levels in Python, which would be recorded in its place"
_TABLES_COST: Final = "RandAugment on photos, CPU per image without these two 1.15"
_DECODED: Final = "photos: 9.9 times DataLoader with 0 workers, 6.3 with 2 (any-dataset, train)"
_AUGMENTED: Final = "the scripts with RandAugment (deit, ConvNeXt, Swin): 6 to 7 times DataLoader"

PATCHES: Final = [
    Patch(
        names=("PIL.Image.open",),
        ours=opener,
        why="it gives deferred images, on a thread that defers",
        kept_by=_DECODED,
        proof=Same(lambda open, inputs: open(io.BytesIO(jpeg())).convert("RGB")),
    ),
    Patch(
        names=("PIL.Image.fromarray",),
        ours=from_array,
        why="datasets in memory open their images with it",
        kept_by="CIFAR10 in memory: 22 times DataLoader (scripts, pytorch-cifar)",
        proof=Same(lambda fromarray, inputs: fromarray(inputs.array)),
    ),
    Patch(
        names=("PIL.Image.blend",),
        ours=_blend,
        why="ImageEnhance ends in it: " + _PASSED_OVER,
        kept_by=_AUGMENTED,
        proof=Same(lambda blend, inputs: blend(_black(inputs), inputs.image, 0.4)),
    ),
    Patch(
        names=("PIL.ImageEnhance.Contrast.__init__",),
        ours=_contrast,
        why=_PASSED_OVER,
        kept_by=_AUGMENTED,
        proof=Same(_enhanced),
    ),
    Patch(
        names=("PIL.Image.merge",),
        ours=_merge,
        why="RGB becomes BGR with it: " + _PASSED_OVER,
        kept_by="Proxy-Anchor (scripts)",
        proof=Same(lambda merge, inputs: merge("RGB", inputs.image.split()[::-1])),
    ),
    Patch(
        names=("PIL.ImageOps.expand",),
        ours=_expand,
        why="torchvision pads with it: " + _PASSED_OVER,
        kept_by="32x32 JPEGs, padded crop and flip: 4.2 times DataLoader (any-dataset)",
        proof=Same(lambda expand, inputs: expand(inputs.image, (1, 2, 3, 4), (5, 6, 7))),
    ),
    Patch(
        names=("PIL.ImageOps.solarize",),
        ours=_pointwise("solarize", 1),
        why=_TABLE,
        kept_by=_TABLES_COST,
        proof=Same(lambda solarize, inputs: solarize(inputs.image, 100)),
    ),
    Patch(
        names=("PIL.ImageOps.posterize",),
        ours=_pointwise("posterize", 1, most=8),
        why=_TABLE,
        kept_by=_TABLES_COST,
        proof=Same(lambda posterize, inputs: posterize(inputs.image, 3)),
    ),
    Patch(
        names=("PIL.ImageOps.equalize",),
        ours=_pointwise("equalize"),
        why=_PASSED_OVER,
        kept_by=_AUGMENTED,
        proof=Same(lambda equalize, inputs: equalize(inputs.image)),
    ),
    Patch(
        names=("PIL.ImageOps.autocontrast",),
        ours=_pointwise("autocontrast"),
        why=_PASSED_OVER,
        kept_by=_AUGMENTED,
        proof=Same(lambda autocontrast, inputs: autocontrast(inputs.image)),
    ),
]
"""Pillow's functions that are exchanged."""
