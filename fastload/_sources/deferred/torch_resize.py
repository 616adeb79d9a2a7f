"""torchvision's v2 resize of a uint8 tensor: whether the core has its values, and how it lies.

torch resizes levels in integers, which the core does, too (``Filter`` in resample/resample.h). How
the result lies in memory depends on details of torch and of torchvision that nobody promises. So a
small tensor is resized, and looked at.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2.functional import _geometry as theirs

from ..._transforms.reader import resizes_in_integers

_NAMES: Final = frozenset(("bilinear", "bicubic"))
_SIDES: Final = (9, 11)  # height and width of the tensor that is looked at
_RESIZED: Final = (4, 5)


def filter_of(interpolation: Any) -> str | None:
    """torchvision's name of a filter that the core has as torch has it here; None: another one."""
    name = interpolation.value if type(interpolation) is InterpolationMode else interpolation
    if type(name) is not str or name not in _NAMES:
        return None
    return name if _in_core(name) else None


@functools.cache
def _in_core(name: str) -> bool:
    return resizes_in_integers(name) and hasattr(theirs, "_compute_resized_output_size")


def size_after(size: tuple[int, int], wanted: Any, max_size: Any) -> tuple[int, int]:
    """Width and height of an image of ``size`` (w, h) after ``resize(image, wanted, max_size)``.

    Raises:
        What torchvision raises, for sizes that it does not take.
    """
    height, width = theirs._compute_resized_output_size(size[::-1], size=wanted, max_size=max_size)
    return width, height


@functools.cache
def contiguous_after(contiguous: bool, gaps: bool) -> bool | None:
    """Whether the resized tensor is contiguous, or rows of pixels; None: neither.

    Args:
        contiguous: whether the tensor is, or is made of rows of pixels.
        gaps: whether it is a part of a larger one.
    """
    h, w = _SIDES
    if contiguous:
        whole = torch.zeros((3, h, w), dtype=torch.uint8, device="cpu")
    else:
        whole = torch.zeros((h, w, 3), dtype=torch.uint8, device="cpu").permute(2, 0, 1)
    image = whole[:, 1:-1, 1:-1] if gaps else whole
    strides = theirs.resize_image(image, list(_RESIZED), antialias=True).stride()
    h, w = _RESIZED
    return {(h * w, w, 1): True, (1, 3 * w, 3): False}.get(strides)
