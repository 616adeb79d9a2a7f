"""The same of torchvision's v2, whose transforms are imported by few programs.

``torchvision_transforms.py`` says what comes here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
import torchvision.transforms.v2.functional as functional_v2
from torchvision.transforms import InterpolationMode, v2

from . import torch_resize
from . import torchvision_transforms as v1
from .image import DeferredImage, waiting
from .operations import Layout, dtype_name
from .recording import Operation
from .tensor import (
    LEAST_SIDE,
    DeferredTensor,
    DeferredTVImage,
    Draft,
    Memory,
    finished,
    holds_levels,
    movable,
)
from .trial import Function

# They take any structure. That a single image is none need not be found out.

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


def color_jitter_v2(original: Function) -> Function:
    unchanged = v1.unchanged_in(functional_v2, *v1.ADJUSTMENTS)

    def transform(self: Any, inpt: Any, params: Any) -> Any:
        if (
            waiting(inpt)
            and type(self) is v2.ColorJitter
            and v1.keeps_mode(inpt)
            and type(params) is dict
            and unchanged()
        ):
            factors = [params[f"{name}_factor"] for name in v1.COLORS]
            hue = factors[3]
            plain = all(factor is None or type(factor) is float for factor in factors)
            if plain and (hue is None or -0.5 <= hue <= 0.5):
                return v1.jittered(inpt, params["fn_idx"].tolist(), factors)
        return original(self, inpt, params)

    return transform


# Of tensors. ``mine``: nobody else has the memory, which may be changed and given back.


def cast(memory: Memory, dtype: Any, scale: Any, mine: bool = False) -> Memory | None:
    """A tensor as ``to_dtype`` gives it; None: it is not recorded."""
    now = memory.layout.dtype
    if now == dtype:
        return memory
    if now != torch.uint8 and (scale or not now.is_floating_point):
        return None
    if dtype not in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        return None
    return memory.then(("to_dtype", dtype_name(dtype), bool(scale)), mine=mine)


def resized(
    memory: Memory, size: Any, interpolation: Any, max_size: Any, mine: bool = False
) -> Memory | None:
    """A tensor as ``resize`` gives it with antialias; None: it is not recorded."""
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


# Transforms that a Compose records without asking torchvision.


def _to_dtype(transform: Any, memory: Memory, mine: bool) -> Memory | None:
    if type(transform.dtype) is not torch.dtype:  # but a dict of them, by type
        return None
    made = cast(memory, transform.dtype, transform.scale, mine)
    return made if mine or made is not memory else None  # of the same dtype it is another object


def _resize(transform: Any, memory: Memory, mine: bool) -> Memory | None:
    if transform.antialias is not True:
        return None
    made = resized(memory, transform.size, transform.interpolation, transform.max_size, mine)
    return made if mine or made is not memory else None  # as above


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
            made = memory.then(("part", *box), operation, mine=mine)
            return value if made is memory else Draft(made, value.kind)
    # What was drawn is torchvision's to use.
    drawn = {"top": top, "left": left, "height": h, "width": w}
    return transform.transform(finished(value), drawn)


def _flipped(transform: Any, memory: Memory, mine: bool) -> Memory | None:
    if not movable(memory):
        return None
    return memory.then(("mirror", False), mine=mine) if v1.happens(transform.p) else memory


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


def steps() -> tuple[v1.Step, ...]:
    def step(kind: type, record: v1.Recorder, *calls: str) -> v1.Step:
        return v1.Step(kind, record, calls, _METHODS, functional_v2)

    return (
        *v1.STEPS,
        step(v2.ToImage, v1.ending("to_image", DeferredTVImage), "to_image"),
        step(v2.ToPureTensor, _pure),
        step(v2.RandomResizedCrop, _resized_crop, "resized_crop"),
        step(v2.RandomHorizontalFlip, v1.on_tensors(_flipped, v1.flipped), "horizontal_flip"),
        step(v2.Resize, v1.on_tensors(_resize), "resize"),
        step(v2.CenterCrop, v1.on_tensors(_center_crop), "center_crop"),
        step(v2.ToDtype, v1.on_tensors(_to_dtype), "to_dtype"),
        step(v2.Normalize, v1.on_tensors(_normalized), "normalize"),
    )
