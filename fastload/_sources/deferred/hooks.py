"""What functions of Pillow, torchvision and torch do with deferred objects.

They are redirected once, for the whole process (``switch.py``). ``PIL.Image.open`` looks at the
flag of its thread. The others look at what they are given: a deferred object, or anything else,
which goes to the original at once. So a thread that does not defer sees only what it is handed.
"""

from __future__ import annotations

import copy
import functools
import inspect
import operator
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageEnhance
import PIL.ImageOps
import torch
import torch.utils.data._utils.collate as torch_collate
import torchvision.transforms._functional_pil as pil_functional
import torchvision.transforms._functional_tensor as functional_tensor
import torchvision.transforms.functional as functional
import torchvision.transforms.v2._utils as v2_utils
import torchvision.transforms.v2.functional as functional_v2
import torchvision.transforms.v2.functional._geometry as v2_geometry
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2.functional._utils import _KERNEL_REGISTRY

from ..._base.pixel_limit import is_within
from . import torch_blur, torch_resize
from .image import PLAIN, DeferredImage, fits, keeps_no_color, sides_of, waiting
from .operations import channels, dtype_name
from .recording import Operation
from .redirect import redirect
from .switch import deferring, install
from .tensor import (
    LEAST_SIDE,
    DeferredTensor,
    DeferredTVImage,
    _Deferred,
    _stack,
    holds_levels,
    holds_values,
    known_values,
    of_image,
    padded,
    pending,
    plain,
    record,
    record_in_place,
    some_deferred,
)
from .thread_state import OF_MODE, THREAD, Cause, cause, materialised

__all__ = ["Cause", "deferring", "install", "materialised"]

Function = Callable[..., Any]

_BYTES = frozenset({"L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB"})


def redirect_all() -> None:
    """Redirect the functions, for ``switch.install``.

    v2's kernels for our types are added to its own, and stay: nobody else has such objects.
    """
    redirect(*_REDIRECTED)
    for kernels, kinds, make in _KERNELS:
        registry = _KERNEL_REGISTRY[kernels]
        for kind, base in kinds:
            registry[kind] = make(registry[base])
    for function, registry in _KERNEL_REGISTRY.items():
        image = registry.get(tv_tensors.Image)
        asks = function.__name__.startswith("get_")
        if image is not None and not asks and function not in _MADE_OF_RECORDED:
            registry.setdefault(DeferredTVImage, _on_real_images(function, image))


# Pillow. Each gets the original function and gives the new one.


def _blend(original: Function) -> Function:
    def blend(im1: Any, im2: Any, alpha: Any) -> Any:
        if waiting(im1) and waiting(im2) and type(alpha) in (int, float):
            name = _enhancement(im1, im2)
            if name is not None:
                new = im2._then((name, alpha))
                new._info = None if im1._info is None else im1._copy_info()
                return new
        return original(im1, im2, alpha)

    return blend


_DEGENERATE: dict[tuple[Operation, ...], str] = {
    (("black",),): "brightness",
    (("mean_gray",),): "contrast",
    (("convert", "L"), ("convert", "RGB")): "saturation",
    (("filter", "SMOOTH"),): "sharpness",
}


def _enhancement(degenerate: DeferredImage, image: DeferredImage) -> str | None:
    """Which of ImageEnhance's four blends these two; None: none of them."""
    count = len(image._operations)
    if degenerate._opened is not image._opened or image._mode not in PLAIN:
        return None
    if degenerate._mode != image._mode:
        return None
    if degenerate._operations[:count] != image._operations:
        return None
    tail = degenerate._operations[count:]
    if not tail:
        return "saturation" if image._mode == "L" else None
    return _DEGENERATE.get(tail)


def _enhancer(name: str) -> Callable[[Function], Function]:
    def make(original: Function) -> Function:
        def init(self: Any, image: Any) -> None:
            if waiting(image) and image._mode in PLAIN:
                self.image = image
                self.degenerate = image._then((name,))
            else:
                original(self, image)

        return init

    return make


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
                given, others = args[:numbers], args[numbers:]
                if all(map(operator.is_, others, defaults[len(defaults) - len(others) :])) and all(
                    type(v) in valid and (most is None or 1 <= v <= most) for v in given
                ):
                    return image._then((name, *given))
            return original(image, *args)

        return function

    return make


# torchvision on images.


def _pad(original: Function) -> Function:
    def pad(img: Any, padding: Any, fill: Any = 0, padding_mode: Any = "constant") -> Any:
        if (
            waiting(img)
            and img._mode in PLAIN
            and padding_mode in ("edge", "reflect", "symmetric")
            and isinstance(padding, (int, tuple, list))
        ):
            values = padding if isinstance(padding, int) else tuple(padding)
            if isinstance(values, tuple) and len(values) == 1:
                values = values[0]
            sides = sides_of(values)
            if sides is not None and (fill is None or isinstance(fill, (int, float, tuple, list))):
                w, h = img._size
                if is_within(w + sides[0] + sides[2], h + sides[1] + sides[3]):
                    return img._then(("pad", *sides, padding_mode))
        return original(img, padding, fill, padding_mode)

    return pad


def _adjust_hue(original: Function) -> Function:
    def adjust_hue(img: Any, hue_factor: Any) -> Any:
        if waiting(img) and img._mode == "RGB" and type(hue_factor) in (int, float):
            if -0.5 <= hue_factor <= 0.5:
                return img._then(("hue", hue_factor))
        return original(img, hue_factor)

    return adjust_hue


def _to_grayscale(original: Function) -> Function:
    def to_grayscale(img: Any, num_output_channels: Any) -> Any:
        if waiting(img) and img._mode in PLAIN and num_output_channels == 3:
            return img._then(("grayscale",))
        return original(img, num_output_channels)

    return to_grayscale


def _gaussian_blur(v2: bool) -> Callable[[Function], Function]:
    def make(original: Function) -> Function:
        def gaussian_blur(img: Any, kernel_size: Any, sigma: Any = None) -> Any:
            if waiting(img) and img._mode in PLAIN:
                found = _kernel(kernel_size, sigma)
                w, h = img._size
                if found is not None and found[0][0] // 2 < w and found[0][1] // 2 < h:
                    across, down = (
                        torch_blur.weights(v2, *one) for one in zip(*found, strict=True)
                    )
                    known = () if across is None or down is None else (across, down)
                    return img._then(("kernel_blur", v2, *found, *known))
            return original(img, kernel_size, sigma)

        return gaussian_blur

    return make


def _kernel(size: Any, sigma: Any) -> tuple[tuple[int, int], tuple[float, float]] | None:
    """Kernel size and sigma in x and y, if torchvision takes them."""
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


# torchvision, from images to tensors, and on those.


def _to_tensor(name: str) -> Callable[[Function], Function]:
    def make(original: Function) -> Function:
        def to_tensor(pic: Any) -> Any:
            if (
                waiting(pic)
                and pic._mode in _BYTES
                and (name == "to_image" or torch.get_default_dtype() == torch.float32)
            ):
                pic._first_load()
                if pic._real is None:
                    return of_image(pic._opened, pic._operations, pic._size, pic._mode, name)
            elif waiting(pic) and pic._mode not in _BYTES:
                with cause(f"{name}{OF_MODE}{pic._mode}"):
                    pic.materialise().load()
            return original(pic)

        return to_tensor

    return make


def _normalize(marked: bool) -> Callable[[Function], Function]:
    def make(original: Function) -> Function:
        def normalize(tensor: Any, mean: Any, std: Any, inplace: Any = False) -> Any:
            # Of one pixel v2 changes the strides, which mean nothing there.
            if pending(tensor) and not (marked and tensor._memory.size == (1, 1)):
                memory = tensor._memory
                operation = _normalization(mean, std, channels(memory.mode), memory.layout.dtype)
                if operation is not None and (memory.alone or not inplace):
                    if inplace:
                        record_in_place(tensor, operation)
                        if marked or not isinstance(tensor, DeferredTVImage):
                            return tensor
                        return DeferredTensor._of(memory)
                    return record(tensor, operation, marked=marked)
            return original(tensor, mean, std, inplace)

        return normalize

    return make


def _normalization(mean: Any, std: Any, bands: int, dtype: torch.dtype) -> Operation | None:
    try:
        return _valid_normalization(_numbers(mean), _numbers(std), bands, dtype)
    except TypeError:  # numbers that are not hashable are no plain ones
        return None


@functools.lru_cache(256)
def _valid_normalization(
    means: tuple[float, ...], stds: tuple[float, ...], bands: int, dtype: torch.dtype
) -> Operation | None:
    if not all(type(v) in (float, int) for v in (*means, *stds)):
        return None
    if not dtype.is_floating_point or {len(means), len(stds)} - {1, bands}:
        return None
    if bool((torch.tensor(stds, dtype=dtype) == 0).any()) or not all(stds):
        return None
    return "normalize", means, stds


def _numbers(values: Any) -> tuple[float, ...]:
    """What a sequence, an array or a tensor has in it; nothing where that is not certain."""
    if type(values) is tuple:
        return values
    if type(values) is list:
        return tuple(values)
    if isinstance(values, torch.Tensor) and not isinstance(values, _Deferred):
        plain_tensor = values.ndim == 1 and values.device.type == "cpu" and not values.requires_grad
        return tuple(values.tolist()) if plain_tensor else ()
    if isinstance(values, np.ndarray):
        return tuple(values.tolist()) if values.ndim == 1 else ()
    return (values,) if type(values) is float else ()


def _convert_dtype(original: Function) -> Function:
    def convert_image_dtype(image: Any, dtype: Any = torch.float) -> Any:
        if type(image) is DeferredTensor and pending(image):
            now = image._memory.layout.dtype
            if now == dtype:
                return image
            if now == torch.uint8 and dtype in (torch.float32, torch.float16, torch.float64):
                return record(image, ("convert_dtype", dtype_name(dtype)))
        return original(image, dtype)

    return convert_image_dtype


def _to_dtype(original: Function) -> Function:
    def to_dtype(image: Any, dtype: Any = torch.float, scale: Any = False) -> Any:
        if pending(image):
            now = image._memory.layout.dtype
            if now == dtype:
                # What torchvision's wrapper gives for a marked image is another object.
                return image
            if now == torch.uint8 or (not scale and now.is_floating_point):
                if dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
                    name = dtype_name(dtype)
                    return record(image, ("to_dtype", name, bool(scale)), marked=True)
        return original(image, dtype, scale)

    return to_dtype


def _erase(original: Function) -> Function:
    def erase(img: Any, i: Any, j: Any, h: Any, w: Any, v: Any, inplace: Any = False) -> Any:
        if pending(img):
            values = _erased(img, i, j, h, w, v)
            if values is not None and (img._memory.alone or not inplace):
                operation: Operation = ("erase", i, j, h, w, values)
                if inplace:
                    return record_in_place(img, operation)
                return record(img, operation, marked=True)
        return original(img, i, j, h, w, v, inplace)

    return erase


def _resize_image(original: Function) -> Function:
    def resize_image(
        image: Any,
        size: Any,
        interpolation: Any = functional.InterpolationMode.BILINEAR,
        max_size: Any = None,
        antialias: Any = True,
    ) -> Any:
        if pending(image) and antialias is True and holds_levels(image):
            name = torch_resize.filter_of(interpolation)
            memory = image._memory
            contiguous = torch_resize.contiguous_after(
                memory.layout.contiguous, memory.gaps is not None
            )
            if name is not None and contiguous is not None:
                w, h = torch_resize.size_after(memory.size, size, max_size)
                if (w, h) == memory.size:
                    return image
                if min(w, h) >= LEAST_SIDE:
                    return record(image, ("resize_levels", w, h, name, contiguous))
        elif pending(image) and antialias is True and _is_bilinear(interpolation):
            w, h = torch_resize.size_after(image._memory.size, size, max_size)
            if (w, h) == image._memory.size:
                return image
            made = _resized_values(image, w, h, v2=True)
            if made is not None:
                return made
        return original(image, size, interpolation, max_size, antialias)

    return resize_image


def _resize_tensor(original: Function) -> Function:
    """v1's, which gets the size that it ends with."""

    def resize(img: Any, size: Any, interpolation: Any = "bilinear", antialias: Any = True) -> Any:
        if pending(img) and antialias is True and _is_bilinear(interpolation):
            if type(size) in (list, tuple) and len(size) == 2:
                h, w = size
                if type(h) is int and type(w) is int:
                    made = _resized_values(img, w, h, v2=False)
                    if made is not None:
                        return made
        return original(img, size, interpolation, antialias)

    return resize


def _is_bilinear(interpolation: Any) -> bool:
    return interpolation == "bilinear" or interpolation is functional.InterpolationMode.BILINEAR


def _resized_values(image: DeferredTensor, w: int, h: int, v2: bool) -> DeferredTensor | None:
    """A float32 tensor that is resized in floating point; None: it is not recorded."""
    memory = image._memory
    if min(w, h) < LEAST_SIDE or not holds_values(image) or torch_resize.sums() is None:
        return None
    contiguous = torch_resize.values_contiguous_after(
        v2, memory.layout.contiguous, memory.gaps is not None
    )
    if contiguous is None:
        return None
    return record(image, ("resize_values", w, h, v2, contiguous))


def _pad_tensor(original: Function) -> Function:
    def pad(img: Any, padding: Any, fill: Any = 0, padding_mode: Any = "constant") -> Any:
        if pending(img) and padding_mode == "constant" and type(fill) in (int, float, type(None)):
            sides = sides_of(tuple(padding) if type(padding) is list else padding)
            if sides is not None:
                left, top, right, bottom = sides
                made = padded(img, (left, right, top, bottom), fill or 0)
                if made is not None:
                    return made
        return original(img, padding, fill, padding_mode)

    return pad


def _pad_image(original: Function) -> Function:
    def pad(image: Any, torch_padding: Any, fill: Any, padding_mode: Any) -> Any:
        if pending(image) and padding_mode == "constant" and type(fill) in (int, float):
            made = padded(image, torch_padding, fill)
            if made is not None:
                return made
        return original(image, torch_padding, fill, padding_mode)

    return pad


def _wrap(original: Function) -> Function:
    """What v2 makes of the result for a marked image: an image, deferred or not."""

    def wrap(wrappee: Any, like: Any, **kwargs: Any) -> Any:
        if isinstance(like, DeferredTVImage):
            return wrappee.as_subclass(tv_tensors.Image)
        return original(wrappee, like=like, **kwargs)

    return wrap


def _get_fill(original: Function) -> Function:
    """A value of a dict by type, where v2 looks up ``type(image)``."""

    def get_fill(fill_dict: Any, inpt_type: Any) -> Any:
        if inpt_type is DeferredImage and PIL.Image.Image in fill_dict:
            inpt_type = _class_of_input()
        elif issubclass(inpt_type, _Deferred):
            inpt_type = inpt_type.stands_for
        return original(fill_dict, inpt_type)

    return get_fill


def _class_of_input() -> type:
    """The class that the image which is transformed stands for: that of a file is another one."""
    frame = sys._getframe(3)  # of the transform that asks for a fill
    image = frame.f_locals.get("inpt", frame.f_locals.get("image"))
    return image.__class__ if type(image) is DeferredImage else PIL.Image.Image


def _to_dtype_by_type(original: Function) -> Function:
    """v2.ToDtype, which looks up ``type(image)`` in a dict of dtypes."""

    def transform(self: Any, inpt: Any, params: Any) -> Any:
        if isinstance(inpt, _Deferred) and isinstance(self.dtype, dict):
            kind = type(inpt).stands_for
            if kind in self.dtype:
                self = copy.copy(self)
                self.dtype = {**self.dtype, type(inpt): self.dtype[kind]}
        return original(self, inpt, params)

    return transform


def _on_real_images(function: Function, kernel: Function) -> Function:
    """A kernel that is not recorded: it gets the real image, and makes others like that."""

    def on_real_image(image: Any, *args: Any, **kwargs: Any) -> Any:
        if not pending(image):
            return kernel(image.materialise(), *args, **kwargs)
        with cause(f"v2.functional.{function.__name__}"):
            real = image.materialise()
        return kernel(real, *args, **kwargs)

    return on_real_image


def _erased(
    img: DeferredTensor, i: Any, j: Any, h: Any, w: Any, v: Any
) -> tuple[float, ...] | None:
    c, height, width = img.shape
    if not all(type(n) is int for n in (i, j, h, w)):
        return None
    if not (0 <= i and 0 <= j and 0 < h and 0 < w and i + h <= height and j + w <= width):
        return None
    if not isinstance(v, torch.Tensor) or isinstance(v, _Deferred) or v.device.type != "cpu":
        return None
    if v.dtype not in (torch.float32, torch.uint8) or tuple(v.shape) not in ((1, 1, 1), (c, 1, 1)):
        return None
    return known_values(v.flatten().tolist())


def _collate(original: Function) -> Function:
    def collate_tensor_fn(batch: Any, collate_fn_map: Any = None) -> Any:
        if some_deferred(batch):
            # Elsewhere nobody completes it: another loader over what a dataset has kept.
            stacked = _stack(batch) if THREAD.deferring else NotImplemented
            if stacked is not NotImplemented:
                return stacked
            with cause("default_collate"):
                batch = [plain(row) for row in batch]
        return original(batch, collate_fn_map=collate_fn_map)

    return collate_tensor_fn


# Before torchvision 0.21 it had another name.
_TO_DTYPE: Function = getattr(v2.ToDtype, "transform", None) or v2.ToDtype._transform

_REDIRECTED: list[tuple[Function, Callable[[Function], Function]]] = [
    (PIL.Image.blend, _blend),
    (PIL.ImageEnhance.Brightness.__init__, _enhancer("black")),
    (PIL.ImageEnhance.Contrast.__init__, _enhancer("mean_gray")),
    (PIL.ImageOps.expand, _expand),
    (PIL.ImageOps.invert, _pointwise("invert")),
    (PIL.ImageOps.solarize, _pointwise("solarize", 1)),
    (PIL.ImageOps.posterize, _pointwise("posterize", 1, most=8)),
    (PIL.ImageOps.equalize, _pointwise("equalize")),
    (PIL.ImageOps.autocontrast, _pointwise("autocontrast")),
    (pil_functional.pad, _pad),
    (pil_functional.adjust_hue, _adjust_hue),
    (pil_functional.to_grayscale, _to_grayscale),
    (functional.gaussian_blur, _gaussian_blur(v2=False)),
    (functional.to_tensor, _to_tensor("to_tensor")),
    (functional.pil_to_tensor, _to_tensor("to_image")),
    (functional.normalize, _normalize(marked=False)),
    (functional.convert_image_dtype, _convert_dtype),
    (functional.erase, _erase),
    (functional_v2.resize_image, _resize_image),
    (functional_tensor.resize, _resize_tensor),
    (functional_tensor.pad, _pad_tensor),
    (v2_geometry._pad_with_scalar_fill, _pad_image),
    (inspect.unwrap(tv_tensors.wrap), _wrap),  # within what keeps torch.compile out
    (v2_utils._get_fill, _get_fill),
    (_TO_DTYPE, _to_dtype_by_type),
    (torch_collate.collate_tensor_fn, _collate),
]

# v2 finds its functions by the type of what they are given, so ours are found by our types.
_TENSORS: list[tuple[type, type]] = [
    (DeferredTensor, torch.Tensor),
    (DeferredTVImage, tv_tensors.Image),
]
# Kernels of v2 that only cut, mirror and resize, so that what they call is recorded.
_MADE_OF_RECORDED: frozenset[Function] = frozenset(
    (
        functional_v2.crop,
        functional_v2.center_crop,
        functional_v2.horizontal_flip,
        functional_v2.vertical_flip,
        functional_v2.resize,
        functional_v2.resized_crop,
        functional_v2.pad,
    )
)
_KERNELS: list[tuple[Function, list[tuple[type, type]], Callable[[Function], Function]]] = [
    (functional_v2.normalize, _TENSORS, _normalize(marked=True)),
    (functional_v2.to_dtype, _TENSORS, _to_dtype),
    (functional_v2.erase, _TENSORS, _erase),
    (functional_v2.gaussian_blur, [(DeferredImage, PIL.Image.Image)], _gaussian_blur(v2=True)),
]
