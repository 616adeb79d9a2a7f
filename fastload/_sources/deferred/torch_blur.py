"""torchvision's Gaussian blur: its weights, and whether the core has torch's bits.

torchvision blurs with a convolution of torch's in float32, which adds the products row by row, each
with a fused multiplication and addition. The core does the same. But that order is not promised: a
build of torch for another processor may have another one. So before the core first blurs images of
a size with kernels of a size, both blur the same noise.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np
import PIL.Image
import torch

from ... import _native
from ..._base.named import named
from ..._transforms.pixels import operations as pixels
from .thread_state import eagerly

KernelSize = tuple[int, int]
Weights = tuple[float, ...]

# Levels that are compared. Another order of the sums rounds about 1 of 100,000 to another level.
_COMPARED: Final = 2_000_000
# Sizes of images and kernels that are compared, 0.1 s each. Where they vary, images are replayed.
_MOST_COMPARED: Final = 8
# Pixels of the smallest images that are compared. So many smaller ones would take seconds.
_LEAST_PIXELS: Final = 24 * 24

_SIGMA: Final = 1.3
_SIGMAS: Final = (_SIGMA, _SIGMA)

_alike: dict[tuple[bool, KernelSize, tuple[int, int], bool | None], bool] = {}


def recorded(size: tuple[int, int], kernel: Any, sigma: Any, v2: bool) -> tuple[Any, ...] | None:
    """KernelSize, sigma and, if they are known, the weights of x and y, of a blur of an image.

    None: torchvision does not take them for an image of ``size`` (w, h), or in this mode of torch
    it blurs otherwise.
    """
    axes = _kernel(kernel, sigma)
    if axes is None or torch.is_autocast_enabled("cpu"):  # in which it blurs in bfloat16
        return None
    if not all(taps // 2 < side for taps, side in zip(axes[0], size, strict=True)):
        return None
    across, down = (weights(v2, *axis) for axis in zip(*axes, strict=True))
    return axes if across is None or down is None else (*axes, across, down)


def _kernel(size: Any, sigma: Any) -> tuple[KernelSize, tuple[float, float]] | None:
    """KernelSize size and sigma in x and y, if torchvision takes them."""
    sizes = (size, size) if type(size) is int else size
    if not isinstance(sizes, (tuple, list)) or len(sizes) != 2:
        return None
    if not all(type(k) is int and k > 0 and k % 2 == 1 for k in sizes):
        return None
    if sigma is None:
        sigma = [k * 0.15 + 0.35 for k in sizes]
    sigmas = (sigma,) if type(sigma) in (int, float) else sigma
    if not isinstance(sigmas, (tuple, list)) or len(sigmas) not in (1, 2):
        return None
    if not all(type(s) in (int, float) and s > 0 for s in sigmas):
        return None
    return (sizes[0], sizes[1]), (float(sigmas[0]), float(sigmas[-1]))


@functools.lru_cache(256)
def weights(v2: bool, size: int, sigma: float) -> Weights | None:
    """The weights of one axis, as torchvision computes them; None: this version does it otherwise.

    ``size`` is their number, ``sigma`` is in pixels.
    """
    name = "v2.functional._misc" if v2 else "_functional_tensor"
    make = named(f"torchvision.transforms.{name}._get_gaussian_kernel1d")
    if make is None:
        return None
    kernel = make(size, sigma, torch.float32, torch.device("cpu"))
    return tuple(kernel.tolist())


def blurred(
    image: Any, v2: bool, kernel: KernelSize, sigma: tuple[float, float], *weights: Weights
) -> Any:
    """The image, or the tensor of one, as torchvision blurs it."""
    blur = named(f"torchvision.transforms.{'v2.' * v2}functional.gaussian_blur")
    return blur(image, list(kernel), list(sigma))


def values(across: Weights, down: Weights) -> Weights:
    """What the core's ``TORCH_BLUR`` takes."""
    return len(across) // 2, len(down) // 2, *across, *down


def blurs_alike(
    v2: bool, kernel: KernelSize, size: tuple[int, int], contiguous: bool | None = None
) -> bool:
    """Whether the core blurs RGB images of ``size`` (w, h) as torch does, with such a kernel.

    ``contiguous``: of tensors, whether they are, or are rows of pixels; None: of Pillow's images.
    """
    if size[0] * size[1] < _LEAST_PIXELS:
        return False
    key = v2, kernel, size, contiguous
    alike = _alike.get(key)
    if alike is None:
        if len(_alike) >= _MOST_COMPARED:
            return False
        alike = _alike[key] = _compared(*key)
    return alike


def _compared(v2: bool, kernel: KernelSize, size: tuple[int, int], contiguous: bool | None) -> bool:
    core, rng = _native.load(), np.random.default_rng(0)
    across, down = (weights(v2, taps, _SIGMA) for taps in kernel)
    if core is None or across is None or down is None:
        return False
    codes, numbers = np.array([pixels.TORCH_BLUR], np.int32), np.array([values(across, down)])
    with eagerly():
        for _ in range(-(-_COMPARED // (3 * size[0] * size[1]))):
            noise = rng.integers(0, 256, (size[1], size[0], 3), np.uint8)
            if contiguous is None:
                theirs = np.asarray(blurred(PIL.Image.fromarray(noise), v2, kernel, _SIGMAS))
            else:
                image = torch.from_numpy(noise.copy()).permute(2, 0, 1)
                tensor = blurred(image.contiguous() if contiguous else image, v2, kernel, _SIGMAS)
                theirs = tensor.permute(1, 2, 0).numpy()
            core.pixels(noise, codes, numbers)
            if not np.array_equal(noise, theirs):
                return False
    return True
