"""torchvision's resizes of tensors: whether the core has their values, and how the results lie.

v2 resizes levels in integers, which the core does, too (``Filter`` in resample/resample.h). Both
versions resize float32 in floating point (resample/values.h). How the result lies in memory, and
how a sum is rounded, depend on details of torch, of its compiler and of torchvision that nobody
promises. So small tensors are resized, and looked at.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

from ... import _native
from ..._base.named import named
from ..._transforms.in_integers import resizes_in_integers
from .operations import functional, functional_v2

_NAMES: Final = frozenset(("bilinear", "bicubic"))
_in_core: Final = functools.cache(resizes_in_integers)
_SIDES: Final = (9, 11)  # height and width of the tensor that is looked at
_RESIZED: Final = (4, 5)


def filter_of(interpolation: Any) -> str | None:
    """torchvision's name of a filter that the core has as torch has it here; None: another one."""
    kind = functional.InterpolationMode
    name = interpolation.value if type(interpolation) is kind else interpolation
    if type(name) is not str or name not in _NAMES:
        return None
    return name if _in_core(name) else None


def size_after(size: tuple[int, int], new_size: Any, max_size: Any) -> tuple[int, int] | None:
    """Width and height of an image of ``size`` (w, h) after ``resize(image, wanted, max_size)``.

    None: in this release nobody knows, or torch has to say what it makes of it.

    Raises:
        What torchvision raises, for sizes that it does not take.
    """
    output_size = _output_size()
    if output_size is None:
        return None
    height, width = output_size(size[::-1], size=new_size, max_size=max_size)
    return (width, height) if type(width) is type(height) is int else None


@functools.cache
def _output_size() -> Callable[..., tuple[int, int]] | None:
    function: Callable[..., tuple[int, int]] | None = named(
        "torchvision.transforms.v2.functional._geometry._compute_resized_output_size"
    )
    return function


@functools.cache
def contiguous_after(
    dtype: torch.dtype, contiguous: bool, gaps: bool, *, v2: bool = True
) -> bool | None:
    """Whether the resized tensor is contiguous, or rows of pixels; None: neither.

    ``contiguous`` says that of the tensor, ``gaps`` whether it is a part of a larger one.
    """
    resize: Callable[..., torch.Tensor] = functional_v2.resize_image if v2 else functional.resize
    h, w = _SIDES
    if contiguous:
        whole = torch.zeros((3, h, w), dtype=dtype, device="cpu")
    else:
        whole = torch.zeros((h, w, 3), dtype=dtype, device="cpu").permute(2, 0, 1)
    image = whole[:, 1:-1, 1:-1] if gaps else whole
    strides: tuple[int, ...] = resize(image, list(_RESIZED), antialias=True).stride()
    h, w = _RESIZED
    layouts: dict[tuple[int, ...], bool] = {(h * w, w, 1): True, (1, 3 * w, 3): False}
    return layouts.get(strides)


# Height and width before and after: fewer and more than four products in a sum, up and down.
_TRIED: Final = (
    ((90, 61), (7, 11)),
    ((40, 70), (31, 22)),
    ((23, 31), (40, 90)),
    ((64, 48), (9, 48)),
)


@functools.cache
def sums() -> int | None:
    """How this torch rounds a sum, as resample/values.h numbers it; None: in another way."""
    core = _native.load()
    if core is None:
        return None
    generator = torch.Generator().manual_seed(0)
    candidates = set(range(core.value_sums))
    for before, after in _TRIED:
        levels = torch.randint(
            0, 256, (3, *before), dtype=torch.uint8, device="cpu", generator=generator
        )
        expected = functional.resize(levels.float().div(255), list(after), antialias=True).numpy()
        for how in list(candidates):
            resized = np.empty((3, *after), np.float32)
            core.resize_values(levels.permute(1, 2, 0).contiguous().numpy(), _UNIT, resized, how)
            if not np.array_equal(resized.view(np.int32), expected.view(np.int32)):
                candidates.remove(how)
    return min(candidates, default=None)


# What ToTensor makes of each level, for three channels.
_UNIT: Final = np.tile((np.arange(256, dtype=np.float32) / np.float32(255)), (3, 1))
