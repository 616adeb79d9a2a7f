"""torchvision's v2 transforms on deferred images, in fewer steps: few programs import these.

``torchvision_transforms.py`` says what comes here.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import torch
import torchvision.transforms.v2.functional as functional_v2
from torch.utils._pytree import tree_flatten
from torchvision.transforms import InterpolationMode, v2

from ..._base.named import named
from ..._transforms.pixels.augmix import grid_is_fused, grid_rounding
from . import torch_blur, torch_resize
from . import torchvision_transforms as v1
from .guarded import Function
from .image import DeferredImage, sides_of, waiting
from .memory import LEAST_SIDE, Memory, bordered, channel_order, holds_levels, movable
from .operations import Layout, dtype_name
from .recording import Operation
from .slots import Size
from .tensor import DeferredTensor, DeferredTVImage, Draft, finished

# v2's transforms search any structure for images. A single image needs no search.

_LEAVES: Final = (DeferredImage, DeferredTensor, DeferredTVImage)


def _takes(transform: Any, value: object, needed: Function) -> bool:
    """Whether a transform of v2 changes ``value``, its only input."""
    if type(transform)._needs_transform_list is not needed:
        return False  # it has its own rules
    for kind in transform._transformed_types:
        if isinstance(value, kind) if isinstance(kind, type) else kind(value):
            return True
    return False


def forward(*, at_random: bool) -> Callable[[Function], Function]:
    """``forward`` of all transforms; ``at_random``: of those with a ``p``."""

    def make(original: Function) -> Function:
        needed = v2.Transform._needs_transform_list

        def forward(self: Any, *inputs: Any) -> Any:
            if (
                len(inputs) == 1
                and isinstance(inputs[0], _LEAVES)
                and _takes(self, inputs[0], needed)
            ):
                self.check_inputs([inputs[0]])
                if at_random and not v1.happens(self.p):
                    return inputs[0]
                return self.transform(inputs[0], self.make_params([inputs[0]]))
            return original(self, *inputs)

        return forward

    return make


# Of tensors. ``mine``: nobody else has the memory, which may be changed and given back.


def cast(memory: Memory, dtype: Any, scale: Any, mine: bool = False) -> Memory | None:
    """A tensor as ``to_dtype`` gives it; None: it is not recorded."""
    old_dtype = memory.layout.dtype
    if old_dtype == dtype:
        return memory
    if old_dtype != torch.uint8 and (scale or not old_dtype.is_floating_point):
        return None
    if dtype not in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        return None
    return memory.then(("to_dtype", dtype_name(dtype), bool(scale)), mine=mine)


def resized(
    memory: Memory,
    size: Any,
    interpolation: Any,
    max_size: Any,
    antialias: Any,
    mine: bool = False,
) -> Memory | None:
    """A tensor as ``resize`` gives it; None: it is not recorded."""
    if antialias is not True:
        return None
    levels = holds_levels(memory)
    if not levels and interpolation not in ("bilinear", InterpolationMode.BILINEAR):
        return None
    name = torch_resize.filter_of(interpolation) if levels else "bilinear"
    if name is None:
        return None
    after = torch_resize.size_after(memory.size, size, max_size)
    if after is None or after == memory.size:
        return None if after is None else memory
    w, h = after
    if not levels:
        return v1.resized_values(memory, w, h, v2=True)
    operation = _levels_resized(memory.layout, memory.gaps is not None, w, h, name)
    return None if operation is None else memory.then(operation, mine=mine)


def _levels_resized(layout: Layout, gaps: bool, w: int, h: int, name: str) -> Operation | None:
    """``gaps``: whether it is a part of a larger one."""
    contiguous = torch_resize.contiguous_after(layout.dtype, layout.contiguous, gaps)
    if contiguous is None or min(w, h) < LEAST_SIDE:
        return None
    return "resize_levels", w, h, name, contiguous


def recolored(memory: Memory, *values: Any, name: str) -> Memory | None:
    """Levels after an operation on them; None: it is not recorded."""
    if not holds_levels(memory) or not _TAKEN[name](memory.size, *values):
        return None
    return memory.then((name, *values))


def padded(memory: Memory, padding: Any, fill: Any, mode: Any) -> Memory | None:
    """Levels with a border of a colour, as ``pad`` gives them; None: it is not recorded."""
    border = tuple(padding) if type(padding) in (list, tuple) else padding
    levels = _fill(fill) if type(fill) in (list, tuple) and len(fill) == _CHANNELS else None
    sides = sides_of(border)
    if levels is None or sides is None or not any(sides) or mode != "constant":
        return None
    return memory.then(("border_levels", *sides, levels)) if holds_levels(memory) else None


def grayed(memory: Memory, channels: Any) -> Memory | None:
    """Levels of one channel, shown three times, as ``rgb_to_grayscale`` gives them."""
    if channels != 3 or not holds_levels(memory) or torch.get_default_dtype() is not torch.float32:
        return None
    gray = memory.then(("tensor_gray",))
    gray.gaps = 0, memory.size[0], 1
    gray.has_part = True
    return gray


def reordered(memory: Memory, order: Any) -> Memory | None:
    """Levels as ``permute_channels`` gives them; None: it is not recorded."""
    channels = channel_order(order)
    if channels is None or not holds_levels(memory):
        return None
    return memory.then(("tensor_order", *channels))


def blurred(memory: Memory, kernel_size: Any, sigma: Any) -> Memory | None:
    """Levels as ``gaussian_blur`` gives them; None: it is not recorded."""
    blur = torch_blur.recorded(memory.size, kernel_size, sigma, v2=True)
    if blur is None or not holds_levels(memory):
        return None
    return memory.then(("tensor_blur", memory.layout.contiguous, *blur))


def _is_factor(size: Size, factor: Any) -> bool:
    # Times an integer it would be bytes again.
    return type(factor) is float and factor >= 0 and torch.get_default_dtype() is torch.float32


def _is_contrast(size: Size, factor: Any) -> bool:
    w, h = size
    return _is_factor(size, factor) and (w * h * _WHITE <= _EXACT or _sums_closely())


@functools.cache
def _sums_closely() -> bool:
    """Whether torch's mean of many levels is as near the exact one as pixels/torch.cpp has it."""
    for side in _SUMMED:
        levels = torch.arange(side * side, device="cpu").mul(_PRIME).remainder(_WHITE + 1)
        for some in (levels, torch.full_like(levels, _WHITE)):
            exact = int(some.sum()) / (side * side)
            image = some.to(torch.float32).reshape(1, side, side)
            near = abs(torch.mean(image, dim=(-3, -2, -1)).item() - exact)
            if near > exact * _MEAN_OFF:
                return False
    return True


def _is_sharpness(size: Size, factor: Any) -> bool:
    if min(size) <= _BLURRED or torch.is_autocast_enabled("cpu"):
        return False  # torch gives it back, or blurs in bfloat16
    return _is_factor(size, factor)


def _is_hue(size: Size, amount: Any) -> bool:
    return type(amount) is float and -0.5 <= amount <= 0.5


def _are_bits(size: Size, bits: Any) -> bool:
    return type(bits) is int and 0 <= bits < _BITS  # with all of them torch gives the tensor back


def _is_threshold(size: Size, threshold: Any) -> bool:
    if type(threshold) is float and -_WHITE <= threshold <= _WHITE:
        # torch rounds it to float32, and no level may lie between.
        return math.ceil(threshold) == math.ceil(v1.as_float32(threshold))
    return type(threshold) is int and 0 <= threshold <= _WHITE


def _is_nothing(size: Size) -> bool:
    return True


def mapped(
    memory: Memory,
    angle: Any,
    translate: Any,
    scale: Any,
    shear: Any,
    interpolation: Any,
    fill: Any,
    center: Any,
) -> Memory | None:
    """Levels as ``affine`` gives them; None: it is not recorded."""
    pairs = [(0.0, 0.0) if center is None else center, translate, shear]
    if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs):
        return None
    if not _are_numbers(angle, scale, *itertools.chain(*pairs)) or scale <= 0:
        return None
    turned = angle, tuple(translate), scale, tuple(shear)
    center = None if center is None else tuple(center)
    arguments = (*zip(("angle", "translate", "scale", "shear"), turned), ("center", center))
    return _warped(memory, "affine_image", arguments, turned, interpolation, fill, center)


def rotated(
    memory: Memory, angle: Any, interpolation: Any, expand: Any, center: Any, fill: Any
) -> Memory | None:
    """Levels as ``rotate`` gives them; None: it is not recorded."""
    # Quarter turns torch makes without a map.
    if not _are_numbers(angle) or angle % 90 == 0 or expand is not False or center is not None:
        return None
    turned = -(angle % 360), (0.0, 0.0), 1.0, (0.0, 0.0)
    return _warped(memory, "rotate_image", (("angle", angle),), turned, interpolation, fill, None)


def _warped(
    memory: Memory,
    kernel: str,
    arguments: tuple[tuple[str, Any], ...],
    turned: tuple[Any, ...],
    interpolation: Any,
    fill: Any,
    center: tuple[float, float] | None,
) -> Memory | None:
    """``arguments``: the kernel's arguments; ``turned``: those of its matrix, after the centre."""
    mode = _mode(interpolation)
    if mode is None or not holds_levels(memory):
        return None
    filter, levels, inverse = _WARPS.get(mode), _fill(fill), _inverse()
    if filter is None or levels is None or inverse is None or grid_rounding() is None:
        return None
    around = [0.0, 0.0]
    if center is not None:
        around = [x - side * 0.5 for x, side in zip(center, memory.size, strict=True)]
    arguments += (("interpolation", mode), ("fill", levels or None))
    matrix, fused = tuple(inverse(around, *turned)), bool(grid_is_fused(*memory.size))
    return memory.then(("tensor_warp", kernel, arguments, matrix, filter, levels, fused))


def _mode(interpolation: Any) -> InterpolationMode | None:
    """The mode that is meant; None: torchvision has to say. Newer ones take names, too."""
    if type(interpolation) is str:
        return _modes_by_name().get(interpolation)
    return interpolation if type(interpolation) is InterpolationMode else None


@functools.cache
def _modes_by_name() -> dict[str, InterpolationMode]:
    """The names of modes that this release takes."""
    check = named("torchvision.transforms.v2.functional._geometry._check_interpolation")
    modes = {}
    for mode in InterpolationMode:
        with contextlib.suppress(TypeError, ValueError):  # another release, or no name of this one
            if check(mode.value) is mode:
                modes[mode.value] = mode
    return modes


def _are_numbers(*values: Any) -> bool:
    return all(type(value) in (int, float) and abs(value) <= _MOST for value in values)


def _fill(fill: Any) -> tuple[int, ...] | None:
    """The levels that ``fill`` is; (): of zeros without a mask. None: the core has them not."""
    if fill is None:
        return ()
    each = tuple(fill) if isinstance(fill, (list, tuple)) else (fill,)
    levels = each * 3 if len(each) == 1 else each
    usual = len(levels) == 3 and all(type(level) in (int, float) for level in levels)
    whole = usual and all(0 <= level <= _WHITE and level == int(level) for level in levels)
    return tuple(map(int, levels)) if whole else None


_WARPS: Final = {InterpolationMode.NEAREST: 0, InterpolationMode.BILINEAR: 2}
"""The core's numbers of the filters of a grid."""

_MOST: Final = 1e9  # of the numbers of a map


@functools.cache
def _inverse() -> Callable[..., list[float]] | None:
    """torchvision's matrix from output to source; None: this release has no such function."""
    function: Callable[..., list[float]] | None = named(
        "torchvision.transforms.v2.functional._geometry._get_inverse_affine_matrix"
    )
    return function


_CHANNELS: Final = 3
_WHITE: Final = 255
_SUMMED: Final = (260, 777, 2049)  # pixels of a side
_PRIME: Final = 7919
_MEAN_OFF: Final = 2.0**-22  # as a part of it: an eighth of what the core allows for
_BITS: Final = 8
_BLURRED: Final = 2  # pixels of a side that has no neighbours on both sides
_EXACT: Final = 1 << 24  # up to which a sum of levels is exact in float32, in whatever order

_TAKEN: Final[dict[str, Callable[..., bool]]] = {
    "tensor_brightness": _is_factor,
    "tensor_contrast": _is_contrast,
    "tensor_saturation": _is_factor,
    "tensor_hue": _is_hue,
    "tensor_sharpness": _is_sharpness,
    "tensor_posterize": _are_bits,
    "tensor_solarize": _is_threshold,
    "tensor_autocontrast": _is_nothing,
    "tensor_equalize": _is_nothing,
    "tensor_invert": _is_nothing,
}
"""Whether the core does an operation with these values to levels of a size."""


# Transforms that a Compose records without asking torchvision.


def _to_dtype(transform: Any, memory: Memory, mine: bool) -> Memory | None:
    if type(transform.dtype) is not torch.dtype:  # but a dict of them, by type
        return None
    result = cast(memory, transform.dtype, transform.scale, mine)
    # Of the same dtype it is another object.
    return result if mine or result is not memory else None


def _resize(transform: Any, memory: Memory, mine: bool) -> Memory | None:
    how = transform.interpolation, transform.max_size, transform.antialias
    result = resized(memory, transform.size, *how, mine)
    return result if mine or result is not memory else None  # as above


def _center_crop(transform: Any, memory: Memory, mine: bool) -> Memory | None:
    size, (w, h) = v1.height_and_width(transform.size), memory.size
    if size is None or size[0] > h or size[1] > w or min(size) < LEAST_SIDE:
        return None
    if memory.has_part or not movable(memory):
        return None
    return memory.part((round((w - size[1]) / 2), round((h - size[0]) / 2), size[1], size[0]))


_FILTERS: Final = {mode.value: mode for mode in InterpolationMode}


def _resized_crop(transform: Any, value: Any, mine: bool) -> Any:
    if type(value) is not Draft:
        name = transform.interpolation
        filter = _FILTERS.get(name) if type(name) is str else None
        return v1.resized_crop(transform, value, mine, filter)
    memory, size = value.memory, v1.height_and_width(transform.size)
    if size is None or transform.antialias is not True or memory.has_part:
        return None
    name = torch_resize.filter_of(transform.interpolation)
    if name is None or not holds_levels(memory):
        return None
    box = v1.random_box(transform, *memory.size)
    if box is None:
        return None
    left, top, w, h = box
    if min(w, h) >= LEAST_SIDE:
        if (h, w) == size:
            return Draft(memory.part(box), value.kind)
        gaps = memory.gaps_within((w, h)) is not None
        operation = _levels_resized(memory.layout, gaps, size[1], size[0], name)
        if operation is not None:
            new_memory = memory.then(("part", *box), operation, mine=mine)
            return value if new_memory is memory else Draft(new_memory, value.kind)
    # What was drawn is torchvision's to use.
    drawn = {"top": top, "left": left, "height": h, "width": w}
    return transform.transform(finished(value), drawn)


_Sides: TypeAlias = "tuple[int, int, int, int]"


def _padding(transform: Any) -> tuple[_Sides, float] | None:
    """Left, top, right and bottom that a ``RandomCrop`` adds, and the fill; None: not recorded."""
    left, right, top, bottom = transform.padding or (0, 0, 0, 0)
    sides, fills = (left, top, right, bottom), transform._fill
    fill: Any = fills["others"] if fills.keys() == {"others"} else None  # for any type
    usual = transform.padding_mode == "constant" and type(fill) in (int, float)
    if transform.pad_if_needed or not all(type(side) is int and side >= 0 for side in sides):
        return None
    return (sides, fill) if usual else None


def _random_crop(transform: Any, memory: Memory, mine: bool) -> Memory | None:
    size, padding = v1.height_and_width(transform.size), _padding(transform)
    if size is None or padding is None or memory.has_part or not movable(memory):
        return None
    sides, fill = padding
    if any(sides):
        padded = bordered(memory, *sides, float(fill))
        if padded is None or not movable(padded):
            return None
        memory = padded
    w, h = memory.size
    if size[0] > h or size[1] > w or min(size) < LEAST_SIDE:
        return None
    return memory if size == (h, w) else memory.part(_drawn_box(w, h, *size))


def _random_crop_of_image(transform: Any, image: Any, mine: bool) -> DeferredImage | None:
    size, padding = v1.height_and_width(transform.size), _padding(transform)
    if not waiting(image) or size is None or padding is None:
        return None
    sides, fill = padding
    padded = v1.with_padding(image, sides if any(sides) else None, fill, "constant")
    if padded is None:
        return None
    operations, w, h = padded
    if size[0] > h or size[1] > w:
        return None
    if size != (h, w):
        operations += (("crop", *_drawn_box(w, h, *size)),)
    return image._then(*operations, mine=mine) if operations else image


def _drawn_box(w: int, h: int, crop_h: int, crop_w: int) -> tuple[int, int, int, int]:
    """x, y, w and h. Of a side that is not cut nothing is drawn."""
    if w > crop_w and h > crop_h:
        y, x = v1.two_below(h - crop_h + 1, w - crop_w + 1)
        return x, y, crop_w, crop_h
    drawn = int(torch.randint(0, w - crop_w + h - crop_h + 1, size=()))
    return (drawn, 0, crop_w, crop_h) if w > crop_w else (0, drawn, crop_w, crop_h)


def _flipper(vertical: bool) -> v1.Recorder:
    def flipped(transform: Any, memory: Memory, mine: bool) -> Memory | None:
        if not movable(memory):
            return None
        return memory.then(("mirror", vertical), mine=mine) if v1.happens(transform.p) else memory

    return v1.on_tensors(flipped, v1.flipper(vertical))


def _jittered(transform: Any, value: Any, mine: bool) -> Any:
    if type(value) is not Draft:
        return v1.of_other_colors(transform, value, mine)
    memory, ranges = value.memory, v1.color_ranges(transform)
    if ranges is None or not (holds_levels(memory) and _is_contrast(memory.size, 0.0)):
        return None
    if any(ends is not None and ends[0] < 0 for ends in ranges[:3]):
        return None
    operations = v1.random_adjustments(ranges, of="tensor_")
    new_memory = memory.then(*operations, mine=mine) if operations else memory
    return value if new_memory is memory else Draft(new_memory, value.kind)


def _normalized(transform: Any, memory: Memory, mine: bool) -> Memory | None:
    if memory.size == v1.ONE_PIXEL or (transform.inplace and not mine):
        return None
    return v1.normalized(memory, transform.mean, transform.std, transform.inplace, mine)


def _pure(transform: Any, value: Any, mine: bool) -> Draft | None:
    return Draft(value.memory, DeferredTensor) if mine and type(value) is Draft else None


_METHODS: Final = (
    "forward", "check_inputs", "make_params", "transform", "_call_kernel", "_needs_transform_list",
    "_transformed_types",
)  # fmt: skip


APPLIES: Final[v1.Applies] = {**v1.APPLIES, v2.RandomApply: v1.happens}


def sample_of(inputs: tuple[Any, ...]) -> v1.ImageWithLabels | None:
    """The image and the labels that a transform is given; None: something else."""
    if len(inputs) < 2 and type(inputs[0]) not in (dict, list, tuple):
        return None
    leaves, spec = tree_flatten(inputs if len(inputs) > 1 else inputs[0])
    images = [index for index, leaf in enumerate(leaves) if isinstance(leaf, _IMAGES)]
    labels = sum(type(leaf) in _LABELS for leaf in leaves)
    return (
        v1.ImageWithLabels(leaves, spec, images[0])
        if len(images) == 1 == len(leaves) - labels
        else None
    )


_IMAGES: Final = (DeferredImage, DeferredTVImage)
_LABELS: Final = frozenset((bool, int, float, str, type(None), torch.Tensor))


def steps() -> tuple[v1.RecordedTransform, ...]:
    def step(kind: type, record: v1.Recorder, *calls: str) -> v1.RecordedTransform:
        # Labels that are tensors are left alone while an image is with them that is known as one.
        keeps_labels = kind is not v2.ToPureTensor
        return v1.RecordedTransform(kind, record, calls, _METHODS, functional_v2, keeps_labels)

    return (
        *v1.RECORDED_TRANSFORMS,
        step(v2.ToImage, v1.ending("to_image", DeferredTVImage), "to_image"),
        step(v2.ToPureTensor, _pure),
        step(v2.RandomResizedCrop, _resized_crop, "resized_crop"),
        step(v2.RandomCrop, v1.on_tensors(_random_crop, _random_crop_of_image), "pad", "crop"),
        step(v2.RandomHorizontalFlip, _flipper(vertical=False), "horizontal_flip"),
        step(v2.RandomVerticalFlip, _flipper(vertical=True), "vertical_flip"),
        step(v2.ColorJitter, _jittered, *v1.ADJUSTMENTS),
        step(v2.Resize, v1.on_tensors(_resize, v1.resized), "resize"),
        step(v2.CenterCrop, v1.on_tensors(_center_crop, v1.center_cropped), "center_crop"),
        step(v2.ToDtype, v1.on_tensors(_to_dtype), "to_dtype"),
        step(v2.Normalize, v1.on_tensors(_normalized), "normalize"),
    )
