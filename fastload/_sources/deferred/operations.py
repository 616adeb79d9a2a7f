"""The operations that are recorded: their effect on size and mode, what the library makes of them
when they are replayed, and what the core does.

The one table that recording, replaying and lowering share. What it has under a name takes the
arguments that follow the name in a recorded operation.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, cast

import PIL.Image
import PIL.ImageEnhance
import PIL.ImageFilter
import PIL.ImageMode
import PIL.ImageOps
import torch
from PIL.Image import Image

from ..._transforms.pixels import operations as pixels
from . import slots, torch_blur
from .composed import Composed
from .recording import Argument, Recording
from .slots import Size, Slot


class _Module:
    """A module that is imported when it is first used: not every program has torchvision."""

    def __init__(self, name: str) -> None:
        self._name = name

    @functools.cached_property
    def _module(self) -> Any:
        return importlib.import_module(self._name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


pil_functional = _Module("torchvision.transforms._functional_pil")
functional = _Module("torchvision.transforms.functional")
functional_v2 = _Module("torchvision.transforms.v2.functional")

Effect: TypeAlias = "Callable[..., tuple[Size, str]]"
Compose: TypeAlias = "Callable[..., None]"


class ImageOperation(NamedTuple):
    """An operation that makes an image of an image.

    Attributes:
        replay: ``replay(image, *arguments)``: what the user's code would have got from Pillow.
        effect: ``effect(size, mode, *arguments)``: size and mode after it; None: as before.
        compose: ``compose(images, *arguments)``: what the core does, of geometry.
        numbers: how many of the arguments are numbers, which may differ among images that are
            composed together.
        slot: ``slot(size, mode, *arguments)``: what the core does to pixels; None: nothing.
            Without it and ``compose`` the core cannot do the operation.
        by_pixel: whether it changes each pixel by itself, wherever it is.
        keeps_info: whether the new image has the old one's ``info``.
    """

    replay: Callable[..., Image]
    effect: Effect | None = None
    compose: Compose | None = None
    numbers: int = 0
    slot: Callable[..., Slot | None] | None = None
    by_pixel: bool = False
    keeps_info: bool = True


class Layout(NamedTuple):
    """The layout of a tensor of an image.

    Attributes:
        dtype: its dtype.
        contiguous: (channels, height, width) in memory; else rows of pixels, as Pillow has them.
    """

    dtype: torch.dtype
    contiguous: bool


class TensorOperation(NamedTuple):
    """An operation that makes a tensor (channels, height, width) of an image or of such a tensor.

    Attributes:
        replay: ``replay(value, *arguments)``: what the user's code would have got from torch.
        layout: ``layout(before, *arguments)``: the layout after it; None: as before. ``before`` is
            None for an image.
        size: ``size(before, *arguments)``: width and height after it; None: as before.
        compose, numbers, slot: as of an image; ``slot`` keeps the size. Without both, a table of
            256 values says what it does, because it gives or changes them level by level.
        erases: whether it writes over values, which is done after everything else.
    """

    replay: Callable[..., torch.Tensor]
    layout: Callable[..., Layout] | None = None
    size: Callable[..., Size] | None = None
    compose: Compose | None = None
    numbers: int = 0
    slot: Callable[..., Slot | None] | None = None
    erases: bool = False


def _resized(size: Size, mode: str, w: int, h: int, *others: Argument) -> tuple[Size, str]:
    return (w, h), mode


def _turned(size: Size, mode: str, turns: int) -> tuple[Size, str]:
    return (size if turns % 2 == 0 else (size[1], size[0])), mode


def _expanded(
    size: Size, mode: str, left: int, top: int, right: int, bottom: int, fill: Argument = None
) -> tuple[Size, str]:
    return (left + size[0] + right, top + size[1] + bottom), mode


_QUARTERS = {
    1: PIL.Image.Transpose.ROTATE_90,
    2: PIL.Image.Transpose.ROTATE_180,
    3: PIL.Image.Transpose.ROTATE_270,
}


def _flip(image: Image, vertical: bool) -> Image:
    return image.transpose(
        PIL.Image.Transpose.FLIP_TOP_BOTTOM if vertical else PIL.Image.Transpose.FLIP_LEFT_RIGHT
    )


def _transform(method: PIL.Image.Transform) -> Callable[..., Image]:
    def replay(
        image: Image, w: int, h: int, data: tuple[float, ...], resample: int, fill: Any
    ) -> Image:
        return image.transform((w, h), method, data, resample, fillcolor=fill)

    return replay


def _enhance(enhancer: type[Any]) -> Callable[[Image, float], Image]:
    return lambda image, factor: cast(Image, enhancer(image).enhance(factor))


def _rectangle(image: Image, left: int, top: int, right: int, bottom: int, fill: Any) -> Image:
    from PIL import ImageDraw  # not every program has it

    drawn = image.copy()
    ImageDraw.Draw(drawn).rectangle((left, top, right, bottom), fill)
    return drawn


def _radius(x: float, y: float) -> Any:
    return x if x == y else (x, y)  # older versions of Pillow take one number only


IMAGE_OPERATIONS: dict[str, ImageOperation] = {
    # Mode.
    "convert": ImageOperation(
        lambda image, mode: image.convert(mode),
        lambda size, mode, to: (size, to),
        slot=slots.convert,
        by_pixel=True,
    ),
    "order": ImageOperation(  # which channel each one comes from
        lambda image, *order: PIL.Image.merge("RGB", [image.getchannel(band) for band in order]),
        slot=slots.of(pixels.ORDER),
        by_pixel=True,
    ),
    # Geometry.
    "band": ImageOperation(  # its number; the core makes the image, and NumPy takes the band
        lambda image, band: image.getchannel(band), lambda size, mode, band: (size, "L")
    ),
    "copy": ImageOperation(lambda image: image.copy(), slot=slots.copy, by_pixel=True),
    "crop": ImageOperation(  # a box, which may reach beyond the image: x, y, w, h
        lambda image, x, y, w, h: image.crop((x, y, x + w, y + h)),
        lambda size, mode, x, y, w, h: ((w, h), mode),
        Composed.crop,
        numbers=4,
    ),
    "resize": ImageOperation(  # w, h, filter
        lambda image, w, h, resample: image.resize((w, h), resample),
        _resized,
        Composed.resize,
        numbers=2,
    ),
    "resize_box": ImageOperation(  # w, h, filter, box: replayed in threads, with the batch
        lambda image, w, h, resample, box: image.resize((w, h), resample, box), _resized
    ),
    "flip": ImageOperation(_flip, None, Composed.flip),
    "rot90": ImageOperation(  # quarter turns: 1 to 3
        lambda image, turns: image.transpose(_QUARTERS[turns]), _turned, slot=slots.rot90
    ),
    "affine": ImageOperation(  # w, h, 6 numbers, filter, fill
        _transform(PIL.Image.Transform.AFFINE), _resized, slot=slots.affine
    ),
    "perspective": ImageOperation(  # w, h, 8 numbers, filter, fill
        _transform(PIL.Image.Transform.PERSPECTIVE), _resized, slot=slots.perspective
    ),
    "expand": ImageOperation(  # left, top, right, bottom, fill
        lambda image, left, top, right, bottom, fill: PIL.ImageOps.expand(
            image, (left, top, right, bottom), fill
        ),
        _expanded,
        Composed.expand,
        numbers=4,
        keeps_info=False,
    ),
    "pad": ImageOperation(  # left, top, right, bottom, "edge", "reflect" or "symmetric"
        lambda image, left, top, right, bottom, mode: pil_functional.pad(
            image, [left, top, right, bottom], padding_mode=mode
        ),
        _expanded,
        slot=slots.pad,
        keeps_info=False,
    ),
    # Colour. The four enhancers blend an image with one of the "degenerate" images after them.
    "brightness": ImageOperation(
        _enhance(PIL.ImageEnhance.Brightness),
        slot=slots.of(pixels.BRIGHTNESS),
        by_pixel=True,
        keeps_info=False,
    ),
    "contrast": ImageOperation(
        _enhance(PIL.ImageEnhance.Contrast), slot=slots.of(pixels.CONTRAST), keeps_info=False
    ),
    "saturation": ImageOperation(
        _enhance(PIL.ImageEnhance.Color), slot=slots.of(pixels.SATURATION), by_pixel=True
    ),
    "sharpness": ImageOperation(
        _enhance(PIL.ImageEnhance.Sharpness), slot=slots.of(pixels.SHARPNESS)
    ),
    "mean_gray": ImageOperation(
        lambda image: PIL.ImageEnhance.Contrast(image).degenerate, keeps_info=False
    ),
    "hue": ImageOperation(
        lambda image, factor: pil_functional.adjust_hue(image, factor),
        slot=slots.hue,
        by_pixel=True,
        keeps_info=False,
    ),
    "point": ImageOperation(  # 256 levels for every band, or as many for each
        lambda image, table: image.point(
            list(table) * (len(image.getbands()) if len(table) == 256 else 1)
        ),
        slot=slots.point,
        by_pixel=True,
    ),
    "solarize": ImageOperation(  # threshold
        PIL.ImageOps.solarize, slot=slots.of(pixels.SOLARIZE), by_pixel=True
    ),
    "posterize": ImageOperation(  # bits
        PIL.ImageOps.posterize, slot=slots.of(pixels.POSTERIZE), by_pixel=True
    ),
    "equalize": ImageOperation(PIL.ImageOps.equalize, slot=slots.of(pixels.EQUALIZE)),
    "autocontrast": ImageOperation(PIL.ImageOps.autocontrast, slot=slots.of(pixels.AUTOCONTRAST)),
    "rectangle": ImageOperation(  # left, top, right, bottom, which are in it; fill
        _rectangle, slot=slots.rectangle
    ),
    # Filters.
    "filter": ImageOperation(  # the name of one of ImageFilter's constant kernels
        lambda image, name: image.filter(getattr(PIL.ImageFilter, name)),
        slot=slots.constant_kernel,
    ),
    "kernel": ImageOperation(  # side, scale, offset, weights
        lambda image, side, scale, offset, weights: image.filter(
            PIL.ImageFilter.Kernel((side, side), weights, scale, offset)
        ),
        slot=slots.kernel,
    ),
    "gaussian_blur": ImageOperation(  # Pillow's: radius x, radius y
        lambda image, x, y: image.filter(PIL.ImageFilter.GaussianBlur(_radius(x, y))),
        slot=slots.gaussian_blur,
    ),
    "box_blur": ImageOperation(
        lambda image, x, y: image.filter(PIL.ImageFilter.BoxBlur(_radius(x, y))),
        slot=slots.box_blur,
    ),
    "kernel_blur": ImageOperation(
        torch_blur.blurred, slot=slots.kernel_blur, keeps_info=False
    ),  # torchvision's: v2, kernel, sigma; weights of x and y, for the core, if they are known
}
"""Operations on images, by name."""


@functools.cache
def dtype_named(name: str) -> torch.dtype:
    """``torch.float32`` for "float32"."""
    return cast(torch.dtype, getattr(torch, name))


@functools.cache
def dtype_name(dtype: torch.dtype) -> str:
    """ "float32" for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def _cast(before: Layout, name: str, scale: bool = False) -> Layout:
    return Layout(dtype_named(name), before.contiguous)


def _to_dtype(tensor: torch.Tensor, name: str, scale: bool) -> torch.Tensor:
    dtype = dtype_named(name)
    return (
        cast(torch.Tensor, functional_v2.to_dtype(tensor, dtype, True))
        if scale
        else tensor.to(dtype)
    )


def _quotient(before: Layout, by: float) -> Layout:
    return before if before.dtype.is_floating_point else Layout(torch.float32, before.contiguous)


def _erase(
    tensor: torch.Tensor, y: int, x: int, h: int, w: int, values: tuple[float, ...] | None
) -> torch.Tensor:
    erased = tensor.clone()
    box = erased[:, y : y + h, x : x + w]
    if values is None:
        box.mul_(0)
    else:
        box[:] = torch.tensor(values, dtype=torch.float64)[:, None, None]
    return erased


def _fill(
    tensor: torch.Tensor, y: int, x: int, h: int, w: int, values: tuple[float, ...]
) -> torch.Tensor:
    filled = tensor.clone()
    filled[: len(values)] = _erase(tensor[: len(values)], y, x, h, w, values)
    return filled


def _border(
    tensor: torch.Tensor, left: int, top: int, right: int, bottom: int, value: float
) -> torch.Tensor:
    c, h, w = tensor.shape
    bordered = torch.full(
        (c, top + h + bottom, left + w + right), value, dtype=tensor.dtype, device="cpu"
    )
    bordered[:, top : top + h, left : left + w] = tensor
    return bordered


def _resize_values(
    tensor: torch.Tensor, w: int, h: int, v2: bool, contiguous: bool
) -> torch.Tensor:
    resize = functional_v2.resize_image if v2 else functional.resize
    return cast(torch.Tensor, resize(tensor, [h, w], antialias=True))


def _contiguous(before: Layout, *arguments: Argument) -> Layout:
    return Layout(before.dtype, contiguous=True)


def _recolored(
    kernel: str, code: int, *more: float, layout: Callable[..., Layout] | None = None
) -> TensorOperation:
    """v2's, of levels of three channels; the core takes ``more`` values than are recorded."""
    return TensorOperation(
        lambda tensor, *arguments: getattr(functional_v2, kernel)(tensor, *arguments),
        layout,
        slot=lambda size, mode, *arguments: (code, (*arguments, *more)),
    )


_FUSED = 1  # as v2's arithmetic; see pixels/torch.cpp
_CERTAIN = 1  # contrast: declined where torch's sum of a large image could be another one


def _look_up(tensor: torch.Tensor, values: bytes) -> torch.Tensor:
    table = torch.frombuffer(bytearray(values), dtype=torch.float32).reshape(len(tensor), 256)
    looked_up = torch.empty_like(tensor, dtype=torch.float32)
    for channel, levels, row in zip(looked_up, tensor, table, strict=True):
        channel.copy_(row[levels.long()])
    return looked_up


LEVEL_OPERATIONS = {
    "tensor_brightness": _recolored("adjust_brightness_image", pixels.TORCH_BRIGHTNESS),
    "tensor_contrast": _recolored("adjust_contrast_image", pixels.TORCH_CONTRAST, _FUSED, _CERTAIN),
    "tensor_saturation": _recolored("adjust_saturation_image", pixels.TORCH_SATURATION, _FUSED),
    "tensor_hue": _recolored("adjust_hue_image", pixels.TORCH_HUE, layout=_contiguous),
    "tensor_sharpness": _recolored("adjust_sharpness_image", pixels.TORCH_SHARPNESS, _FUSED),
    "tensor_posterize": _recolored("posterize_image", pixels.POSTERIZE),
    "tensor_solarize": _recolored("solarize_image", pixels.SOLARIZE),
    "tensor_autocontrast": _recolored("autocontrast_image", pixels.TORCH_AUTOCONTRAST, _FUSED),
    "tensor_equalize": _recolored("equalize_image", pixels.EQUALIZE, layout=_contiguous),
    "tensor_invert": _recolored("invert_image", pixels.INVERT),
    "tensor_gray": TensorOperation(  # three channels, which are one in memory
        lambda tensor: functional_v2.rgb_to_grayscale_image(tensor, 3),
        _contiguous,
        slot=lambda size, mode: (pixels.TORCH_SATURATION, (0.0, _FUSED)),
    ),
    "tensor_order": TensorOperation(  # which channel each one comes from
        lambda tensor, *order: functional_v2.permute_channels_image(tensor, list(order)),
        _contiguous,
        slot=slots.of(pixels.ORDER),
    ),
    "tensor_blur": TensorOperation(  # contiguous before, and as of an image
        lambda tensor, contiguous, *blur: torch_blur.blurred(tensor, True, *blur),
        _contiguous,
        slot=slots.tensor_blur,
    ),
    "tensor_warp": TensorOperation(  # a function of v2, its arguments; matrix, filter, fill, fused
        lambda tensor, kernel, keywords, *others: getattr(functional_v2, kernel)(
            tensor, **dict(keywords)
        ),
        _contiguous,
        slot=slots.grid_map,
    ),
}
"""Operations on the levels of a tensor."""

TENSOR_OPERATIONS: dict[str, TensorOperation] = {
    **LEVEL_OPERATIONS,
    "to_tensor": TensorOperation(
        lambda image: functional.to_tensor(image),
        lambda before: Layout(torch.float32, contiguous=True),
    ),
    "to_image": TensorOperation(
        lambda image: functional.pil_to_tensor(image),
        lambda before: Layout(torch.uint8, contiguous=False),
    ),
    "to_dtype": TensorOperation(_to_dtype, _cast),  # dtype, scale: v2's
    "normalize": TensorOperation(  # mean, std
        lambda tensor, mean, std: functional.normalize(tensor, list(mean), list(std))
    ),
    "look_up": TensorOperation(  # float32 (channels, 256): the value of each level
        _look_up, lambda before, values: Layout(torch.float32, before.contiguous)
    ),
    # y, x, h, w, values: one, or one for each channel; None: multiplied by 0, which keeps the sign
    "erase": TensorOperation(_erase, compose=Composed.erase, numbers=4, erases=True),
    # The same, of the first channels: an "erase" once the last one has its value, too.
    "fill": TensorOperation(_fill, erases=True),
    "border": TensorOperation(  # left, top, right, bottom, value: what is stored there
        _border,
        _contiguous,
        lambda before, *border: _expanded(before, "", *border)[0],
        Composed.border,
        numbers=4,
    ),
    "border_levels": TensorOperation(  # left, top, right, bottom; the level of each channel
        lambda tensor, left, top, right, bottom, fill: functional_v2.pad_image(
            tensor, [left, top, right, bottom], list(fill)
        ),
        _contiguous,
        lambda before, *border: _expanded(before, "", *border)[0],
        Composed.expand,
        numbers=4,
    ),
    "part": TensorOperation(  # a box: x, y, w, h; not a view, which ``Memory.part`` makes
        lambda tensor, x, y, w, h: tensor[:, y : y + h, x : x + w].clone(),
        size=lambda before, x, y, w, h: (w, h),
        compose=Composed.crop,
        numbers=4,
    ),
    "mirror": TensorOperation(  # upside down, or left to right
        lambda tensor, vertical: tensor.flip(-2 if vertical else -1), compose=Composed.flip
    ),
    "resize_levels": TensorOperation(  # v2's of uint8: w, h, filter, whether it ends contiguous
        lambda tensor, w, h, name, contiguous: functional_v2.resize_image(
            tensor, [h, w], functional.InterpolationMode(name), antialias=True
        ),
        lambda before, w, h, name, contiguous: Layout(before.dtype, contiguous),
        lambda before, w, h, name, contiguous: (w, h),
        Composed.resize_levels,
        numbers=2,
    ),
    "resize_values": TensorOperation(  # float32, bilinear: w, h, v2's, ends contiguous
        _resize_values,
        lambda before, w, h, v2, contiguous: Layout(before.dtype, contiguous),
        lambda before, w, h, v2, contiguous: (w, h),
        Composed.resize_values,
        numbers=2,
    ),
    "mul": TensorOperation(lambda tensor, by: tensor.mul(by)),
    "div": TensorOperation(lambda tensor, by: tensor.div(by), _quotient),
    "add": TensorOperation(lambda tensor, by: tensor.add(by)),
    "sub": TensorOperation(lambda tensor, by: tensor.sub(by)),
    "rsub": TensorOperation(lambda tensor, of: torch.rsub(tensor, of)),
    "clamp": TensorOperation(lambda tensor, least, most: tensor.clamp(least, most)),
    "contiguous": TensorOperation(lambda tensor: tensor.contiguous(), _contiguous),
}
"""Operations that end in a tensor, and those on it, by name."""


@functools.cache
def channels(mode: str) -> int:
    """The number of bands of an image of this mode."""
    return len(PIL.ImageMode.getmode(mode).bands)


def layout(recording: Recording) -> Layout | None:
    """The layout of the tensor that a recording ends in; None where it ends in an image."""
    tensor_layout: Layout | None = None
    for name, *arguments in recording.operations:
        operation = TENSOR_OPERATIONS.get(name)
        if operation is not None and operation.layout is not None:
            tensor_layout = operation.layout(tensor_layout, *arguments)
    return tensor_layout


@functools.lru_cache(1024)
def shape_and_strides(
    size: Size, mode: str, contiguous: bool
) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Shape (channels, height, width) and strides, in elements, of the tensor of an image."""
    w, h = size
    c = channels(mode)
    if contiguous and c > 1 and w * h > 1:
        return (c, h, w), (h * w, w, 1)
    return (c, h, w), (1, w * c, c)  # which with one channel or one pixel is contiguous, too
