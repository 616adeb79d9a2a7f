"""torchvision's Gaussian blur of an image: its weights, and whether the core has torch's bits.

torchvision blurs with a convolution of torch's in float32, which adds the products row by row, each
with a fused multiplication and addition. The core does the same. But that order is not promised: a
build of torch for another processor may have another one. So before the core first blurs images of
a size with kernels of a size, both blur the same noise.
"""

from __future__ import annotations

import functools
from typing import Final

import numpy as np
import PIL.Image
import torch

from ... import _native
from ..._base.named import named
from ..._transforms.pixels import operations as pixels
from .thread_state import eagerly

Kernel = tuple[int, int]
Weights = tuple[float, ...]

# Levels that are compared. Another order of the sums rounds about 1 of 100,000 to another level.
_COMPARED: Final = 2_000_000
# Sizes of images and kernels that are compared, 0.1 s each. Where they vary, images are replayed.
_MOST_COMPARED: Final = 8
# Pixels of the smallest images that are compared. So many smaller ones would take seconds.
_LEAST_PIXELS: Final = 24 * 24

_SIGMA: Final = 1.3

_alike: dict[tuple[bool, Kernel, tuple[int, int]], bool] = {}


@functools.lru_cache(256)
def weights(v2: bool, size: int, sigma: float) -> Weights | None:
    """The weights of one axis, as torchvision computes them; None: this version does it otherwise.

    ``size`` is their number, ``sigma`` is in pixels.
    """
    name = "v2.functional._misc" if v2 else "_functional_tensor"
    make = named(f"torchvision.transforms.{name}._get_gaussian_kernel1d")
    if make is None:
        return None
    made = make(size, sigma, torch.float32, torch.device("cpu"))
    return tuple(made.tolist())


def blurred(
    image: PIL.Image.Image,
    v2: bool,
    kernel: Kernel,
    sigma: tuple[float, float],
    *weights: Weights,
) -> PIL.Image.Image:
    """The image as torchvision blurs it."""
    blur = named(f"torchvision.transforms.{'v2.' * v2}functional.gaussian_blur")
    made: PIL.Image.Image = blur(image, list(kernel), list(sigma))
    return made


def values(across: Weights, down: Weights) -> Weights:
    """What the core's ``TORCH_BLUR`` takes."""
    return len(across) // 2, len(down) // 2, *across, *down


def blurs_alike(v2: bool, kernel: Kernel, size: tuple[int, int]) -> bool:
    """Whether the core blurs RGB images of ``size`` (w, h) as torch does, with such a kernel."""
    if size[0] * size[1] < _LEAST_PIXELS:
        return False
    known = _alike.get((v2, kernel, size))
    if known is None:
        if len(_alike) >= _MOST_COMPARED:
            return False
        known = _alike[v2, kernel, size] = _compared(v2, kernel, size)
    return known


def _compared(v2: bool, kernel: Kernel, size: tuple[int, int]) -> bool:
    core, rng = _native.load(), np.random.default_rng(0)
    across, down = (weights(v2, taps, _SIGMA) for taps in kernel)
    if core is None or across is None or down is None:
        return False
    codes, numbers = np.array([pixels.TORCH_BLUR], np.int32), np.array([values(across, down)])
    with eagerly():
        for _ in range(-(-_COMPARED // (3 * size[0] * size[1]))):
            noise = rng.integers(0, 256, (size[1], size[0], 3), np.uint8)
            image = PIL.Image.fromarray(noise)  # which has a copy
            theirs = np.asarray(blurred(image, v2, kernel, (_SIGMA, _SIGMA)))
            core.pixels(noise, codes, numbers)
            if not np.array_equal(noise, theirs):
                return False
    return True
