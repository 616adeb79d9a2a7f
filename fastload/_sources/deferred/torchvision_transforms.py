"""torchvision's transforms on deferred images, in fewer steps. Those of v2: ``torchvision_v2.py``.

On a deferred image a transform draws numbers and records an operation; the rest of what torchvision
does there is spent on finding out what it was given. Here the same numbers are drawn from the same
generator in the same order, and the same operations recorded.

Only torchvision's own classes with settings of the usual types come here. All others, and all other
images, take torchvision's way. That is decided before anything is drawn.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import PIL.Image
import torch
import torchvision.transforms.functional as functional
from torch.utils._pytree import TreeSpec, tree_unflatten
from torchvision import transforms
from torchvision.transforms.functional import InterpolationMode

from ..._base.named import named
from ..._base.pixel_limit import is_within
from . import torch_resize
from .guarded import Function, has_hook_of_all_modules
from .image import PLAIN, DeferredImage, fits, keeps_no_color, sides_of, waiting
from .memory import LEAST_SIDE, Memory, holds_values, of_image
from .operations import channels
from .recording import Argument, Operation
from .tensor import DeferredTensor, Draft, draft, finished, pending
from .thread_state import THREAD

_Border: TypeAlias = "tuple[str, int, int, int, int, Argument]"

functional_pil: Any = named("torchvision.transforms._functional_pil")

_FLOATS: Final = struct.Struct("f")

ONE_PIXEL: Final = (1, 1)  # where v2's normalize changes the strides, which mean nothing there


def unchanged_in(owner: ModuleType | type, *names: str) -> Callable[[], bool]:
    """Whether torchvision's functions of these names are still its own: programs replace them."""
    get = operator.attrgetter("__name__", *names)  # which wants one at least
    own = get(owner)
    return lambda: bool(get(owner) == own)


# Draws.


class _Scratch(threading.local):
    """Tensors to draw into: to allocate one takes longer than to draw.

    Attributes:
        real: float32 (1,).
        whole: int64 (2,).
    """

    def __init__(self) -> None:
        with torch.inference_mode(False):  # otherwise they could only be used in this mode
            self.real = torch.empty(1, dtype=torch.float32, device="cpu")
            self.whole = torch.empty(2, dtype=torch.int64, device="cpu")


_SCRATCH: Final = _Scratch()


def _draws_into_scratch() -> bool:
    """Whether the tensors that a transform would draw are float32 and on the CPU."""
    # A default device is a mode on this stack.
    no_mode = not torch._C._len_torch_function_stack()
    return no_mode and torch.get_default_dtype() is torch.float32 and _fills_alike()


def happens(p: Any) -> bool:
    """``torch.rand(1) < p``, which torch compares as float32."""
    if type(p) is float and _draws_into_scratch():
        return _SCRATCH.real.uniform_().item() < as_float32(p)
    return bool(torch.rand(1) < p)


def _reaches(p: Any) -> bool:
    """``not p < torch.rand(1)``."""
    if type(p) is float and _draws_into_scratch():
        return _SCRATCH.real.uniform_().item() <= as_float32(p)
    return not bool(p < torch.rand(1))


@functools.lru_cache(256)
def as_float32(p: float) -> float:
    value: float = _FLOATS.unpack(_FLOATS.pack(p))[0]
    return value


# Ranges of ``torch.randint`` for which all versions of torch take a number from 32 random bits.
_OF_32_BITS: Final = 1 << 28


def two_below(first: int, second: int) -> tuple[int, int]:
    """``torch.randint(0, first, size=(1,)).item()``, then the same with ``second``."""
    product = first * second
    if product >= _OF_32_BITS or not _draws_into_scratch():
        drawn, other = (torch.randint(0, end, size=(1,)).item() for end in (first, second))
        return int(drawn), int(other)
    # A number below ``end`` is the remainder of the random bits, and ``end`` divides ``product``:
    # so one call draws both.
    drawn, other = _SCRATCH.whole.random_(0, product).tolist()
    return drawn % first, other % second


_ENDS: Final = ((1, 1), (1, 2), (9, 9), (33, 1000), (65_535, 4096), (3, _OF_32_BITS // 4))


@functools.cache
def _fills_alike() -> bool:
    """Whether this version of torch fills a tensor with what ``rand`` and ``randint`` draw."""
    ours, theirs = (torch.Generator("cpu").manual_seed(1) for _ in range(2))
    for first, second in _ENDS * 3:
        drawn = torch.empty(2, dtype=torch.int64, device="cpu")
        low, high = drawn.random_(0, first * second, generator=ours).tolist()
        for end, value in ((first, low), (second, high)):
            if torch.randint(0, end, (1,), generator=theirs, device="cpu").item() != value % end:
                return False
        real = torch.empty(1, dtype=torch.float32, device="cpu").uniform_(generator=ours)
        if real.item() != torch.rand(1, generator=theirs, dtype=real.dtype, device="cpu").item():
            return False
    return torch.equal(ours.get_state(), theirs.get_state())


@functools.lru_cache(256)
def _log(ratio: tuple[float, float], device: torch.device) -> tuple[float, float]:
    """The logarithm of a range of aspect ratios, as torchvision's transforms make it."""
    low, high = torch.log(torch.tensor(ratio, dtype=torch.float32, device=device)).tolist()
    return low, high


def random_box(transform: Any, width: int, height: int) -> tuple[int, int, int, int] | None:
    """Left, top, width and height of a ``RandomResizedCrop``; None: nothing was drawn."""
    scale, ratio = _numbers(transform.scale), _numbers(transform.ratio)
    if scale is None or ratio is None or ratio[0] <= 0:
        return None
    drawn = _SCRATCH.real if _draws_into_scratch() else torch.empty(1)
    if drawn.dtype is not torch.float32:
        return None
    own: torch.Tensor | None = transform.__dict__.get("_log_ratio")  # v2's, made once
    area, logs = height * width, _log(ratio, drawn.device) if own is None else own.tolist()
    for _ in range(10):
        target_area = area * drawn.uniform_(*scale).item()
        aspect_ratio = drawn.uniform_(*logs).exp_().item()
        w = round(math.sqrt(target_area * aspect_ratio))
        h = round(math.sqrt(target_area / aspect_ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = two_below(height - h + 1, width - w + 1)
            return left, top, w, h
    w, h = width, height
    if width / height < min(ratio):
        h = round(w / min(ratio))
    elif width / height > max(ratio):
        w = round(h * max(ratio))
    return (width - w) // 2, (height - h) // 2, w, h


_Ranges: TypeAlias = "tuple[tuple[float, float] | None, ...]"
"""Of the factors of brightness, contrast and saturation, and of the hue. None: it stays."""


def random_factors(ranges: _Ranges) -> tuple[list[int], list[float | None]]:
    """The order and the factors of ``ColorJitter``."""
    order: list[int] = torch.randperm(4).tolist()
    drawn = _SCRATCH.real if _draws_into_scratch() else torch.empty(1)
    factors = [None if ends is None else drawn.uniform_(*ends).item() for ends in ranges]
    return order, factors


# Settings. None: not of the usual types, so that torchvision has to say what it makes of them.


_NUMBERS: Final = frozenset((int, float))


def _numbers(values: Any) -> tuple[float, float] | None:
    usual = type(values) in (tuple, list) and len(values) == 2
    return tuple(values) if usual and _NUMBERS.issuperset(map(type, values)) else None


def height_and_width(size: Any) -> tuple[int, int] | None:
    usual = type(size) in (tuple, list) and len(size) == 2
    return tuple(size) if usual and _all_int(size) and min(size) > 0 else None


def _all_int(values: Any) -> bool:
    return {int}.issuperset(map(type, values))


def _border(padding: Any, fill: Any, padding_mode: Any, mode: str) -> _Border | None:
    """The operation "expand" that ``functional.pad`` is for an image of ``mode``."""
    if padding_mode != "constant" or mode not in PLAIN:
        return None
    if type(padding) is not int:
        if type(padding) not in (tuple, list) or not _all_int(padding):
            return None
        padding = tuple(padding)
    if type(fill) is not int:
        if type(fill) not in (tuple, list) or not _all_int(fill):
            return None
        fill = tuple(fill)
    return _expansion(padding, fill, mode)


@functools.lru_cache(256)
def _expansion(
    padding: int | tuple[int, ...], fill: int | tuple[int, ...], mode: str
) -> _Border | None:
    sides = sides_of(padding)
    if sides is None:
        return None
    try:
        parsed = functional_pil._parse_fill(fill, PIL.Image.new(mode, (1, 1)), name="fill")
    except ValueError:  # not one value for each channel
        return None
    color: Any = parsed["fill"]
    return ("expand", *sides, color) if fits(mode, color) else None


# Functions of v1, which its transforms call, too, and programs by themselves.


def resize(original: Function) -> Function:
    """``functional.resize``, of images and of tensors."""
    unchanged = unchanged_in(functional, "get_dimensions", "_compute_resized_output_size")
    on_images = unchanged_in(functional_pil, "resize")

    def resize(
        img: Any,
        size: Any,
        interpolation: Any = InterpolationMode.BILINEAR,
        max_size: Any = None,
        antialias: Any = True,
    ) -> Any:
        # Without antialias torchvision warns.
        if waiting(img) and antialias is not False and unchanged() and on_images():
            filter = _filter(interpolation)
            new_size = _resized_to(img.size, size, max_size)
            if filter is not None and new_size is not None:
                return img if new_size == img.size else img.resize(new_size, filter)
        elif pending(img) and antialias is True and unchanged():
            old_size = img._memory.size
            new_size = _resized_to(old_size, size, max_size)
            if new_size is not None and _filter(interpolation) == PIL.Image.Resampling.BILINEAR:
                memory = img._memory
                new_memory = (
                    memory if new_size == old_size else resized_values(memory, *new_size, v2=False)
                )
                if new_memory is not None:
                    return img if new_memory is memory else DeferredTensor._of(new_memory)
        return original(img, size, interpolation, max_size, antialias)

    return resize


def resized_values(memory: Memory, w: int, h: int, v2: bool) -> Memory | None:
    """A float32 tensor that is resized in floating point; None: it is not recorded."""
    if min(w, h) < LEAST_SIDE or not holds_values(memory) or torch_resize.sums() is None:
        return None
    contiguous = torch_resize.contiguous_after(
        memory.layout.dtype, memory.layout.contiguous, memory.gaps is not None, v2=v2
    )
    if contiguous is None:
        return None
    return memory.then(("resize_values", w, h, v2, contiguous))


def _filter(interpolation: Any) -> int | None:
    """Pillow's number of a filter."""
    if type(interpolation) is InterpolationMode:
        return int(functional.pil_modes_mapping[interpolation])
    return interpolation if type(interpolation) is int and 0 <= interpolation <= 5 else None


def _resized_to(old_size: tuple[int, int], size: Any, max_size: Any) -> tuple[int, int] | None:
    """Width and height of an image of width and height ``old_size`` after ``functional.resize``."""
    if type(size) in (tuple, list) and len(size) == 2:
        new_size = height_and_width(size) if max_size is None else None
    else:
        side = [size] if type(size) is int else size
        if type(side) not in (tuple, list) or len(side) != 1 or type(side[0]) is not int:
            return None
        if max_size is not None and type(max_size) is not int:
            return None
        new_size = height_and_width(
            functional._compute_resized_output_size(old_size[::-1], side, max_size)
        )
    return None if new_size is None else new_size[::-1]


# Transforms of v1. Those in ``RECORDED_TRANSFORMS`` are recorded without asking torchvision.


Recorder: TypeAlias = "Callable[[Any, Any, bool], Any]"
"""As ``RecordedTransform.record``."""


class RecordedTransform(NamedTuple):
    """How a transform is recorded.

    Attributes:
        kind: its class.
        record: ``record(transform, value, mine)``: what comes of it, a ``Draft`` of a tensor; None:
            torchvision has to say. ``mine``: nobody else has ``value``, which may be changed and
            given back.
        calls: torchvision's functions that it stands for.
        methods: the same, of its class.
        module: that of ``calls``.
        keeps_labels: whether it takes labels with the image, and gives them back.
    """

    kind: type
    record: Recorder
    calls: tuple[str, ...]
    methods: tuple[str, ...]
    module: ModuleType = functional
    keeps_labels: bool = False

    def usual(self) -> Callable[[Any], bool]:
        """Makes a function: whether a transform's functions are still torchvision's own."""
        functions = unchanged_in(self.module, *self.calls)
        methods = unchanged_in(self.kind, *self.methods)
        own = {*self.methods, "get_params"}
        return lambda transform: functions() and methods() and own.isdisjoint(transform.__dict__)


Applies: TypeAlias = "Mapping[type, Callable[[Any], bool]]"
"""Classes as ``RandomApply``, and how each draws, for its ``p``, whether it applies its own."""


class ImageWithLabels(NamedTuple):
    """An image among labels, which are all that a transform of v2 is given.

    Attributes:
        leaves, spec: of torch's tree of them.
        image_index: of the image among the leaves.
    """

    leaves: list[Any]
    spec: TreeSpec
    image_index: int

    def with_image(self, image: Any) -> Any:
        leaves = [*self.leaves[: self.image_index], image, *self.leaves[self.image_index + 1 :]]
        return tree_unflatten(leaves, self.spec)


class _Chain(NamedTuple):
    """What is known of a ``Compose``.

    Attributes:
        transforms: its transforms then.
        recorders: of each of them.
        hooks: of those that are recorded.
        keeps_labels: whether it gives back any labels that come with an image.
    """

    transforms: list[Any]
    recorders: list[Recorder | _Applied | None]
    hooks: list[Any]
    keeps_labels: bool


def composer(
    kind: type[Any],
    steps: Callable[[], Sequence[RecordedTransform]],
    applies: Applies,
    sample_of: Callable[[tuple[Any, ...]], ImageWithLabels | None] = lambda _: None,
) -> Callable[[Function], Function]:
    """The call of a ``Compose``. What a step has made nobody else has: the next one may change it.

    Whether torchvision's functions are its own is found out once in a batch for each Compose,
    and again where a hook is registered.

    ``sample_of``: the sample that several inputs, or a container, are; None: another one.
    """
    applied_as_usual = {applied: unchanged_in(applied, "forward") for applied in applies}

    def make(original: Function) -> Function:
        usual = {step.kind: (step, step.usual()) for step in steps()}

        def recorder(transform: Any) -> Recorder | _Applied | None:
            own = getattr(transform, "__dict__", {})
            changed = "forward" in own or "_compiled_call_impl" in own
            if changed or has_hook_of_all_modules() or any(_hooks(transform)):
                return None
            inner = _applied(transform)
            if inner is not None and type(transform) in applies:
                if not applied_as_usual[type(transform)]():
                    return None
                return _Applied(applies[type(transform)], inner, list(map(recorder, inner)))
            step, is_usual = usual.get(type(transform), (None, None))
            return step.record if step is not None and is_usual and is_usual(transform) else None

        def keeps_labels(transform: Any, recorded: Recorder | _Applied | None) -> bool:
            if isinstance(recorded, _Applied):  # v1's takes an image only
                return type(transform) is not transforms.RandomApply and recorded.all(keeps_labels)
            return recorded is not None and usual[type(transform)][0].keeps_labels

        def chain_of(compose: Any) -> _Chain:
            current = list(compose.transforms)
            chain: _Chain | None = THREAD.batch.chains.get(compose)
            if chain is None or chain.transforms != current or any(chain.hooks):
                recorders = list(map(recorder, current))
                hooks = itertools.chain.from_iterable(
                    map(_hooks, itertools.compress(current, recorders))
                )
                # What may leave an image alone gives back the very sample.
                always = any(not hasattr(transform, "p") for transform in current)
                labels = always and all(map(keeps_labels, current, recorders))
                chain = _Chain(current, recorders, list(hooks), labels)
                THREAD.batch.chains[compose] = chain
            return chain

        def call(self: Any, *inputs: Any) -> Any:
            image = draft(inputs[0]) if len(inputs) == 1 else None
            alone = isinstance(image, (DeferredImage, Draft))
            sample = None if alone or type(self) is not kind else sample_of(inputs)
            if type(self) is not kind or (sample is None and not alone):
                return original(self, *inputs)
            chain = chain_of(self)
            if sample is not None:
                if not chain.keeps_labels:
                    return original(self, *inputs)
                image = draft(sample.leaves[sample.image_index])
            result, _ = _chained(chain.transforms, chain.recorders, image, False)
            return finished(result) if sample is None else sample.with_image(finished(result))

        return call

    return make


def _chained(
    steps: Sequence[Any], recorders: Sequence[Recorder | _Applied | None], img: Any, mine: bool
) -> tuple[Any, bool]:
    """What the steps make of ``img``, and whether nobody else has that."""
    for transform, recorded in zip(steps, recorders, strict=True):
        if isinstance(recorded, _Applied):
            img, mine = recorded.chained(transform, img, mine)
            continue
        result = recorded and recorded(transform, img, mine)
        if result is None:
            img, mine = draft(transform(finished(img))), False
        elif result is not img:
            img, mine = result, True
    return img, mine


class _Applied:
    """Records ``RandomApply``.

    Args:
        applies: as in ``Applies``.
        steps: its transforms when their recorders were found.
        recorders: of those.
    """

    def __init__(
        self,
        applies: Callable[[Any], bool],
        steps: list[Any],
        recorders: list[Recorder | _Applied | None],
    ) -> None:
        self._applies = applies
        self._steps = steps
        self._recorders = recorders

    def all(self, holds: Callable[[Any, Recorder | _Applied | None], bool]) -> bool:
        """Whether it holds of each of its transforms and its recorder."""
        return all(map(holds, self._steps, self._recorders))

    def chained(self, transform: Any, image: Any, mine: bool) -> tuple[Any, bool]:
        """As ``_chained``. A step may be the user's, and may keep what it gives."""
        recorded = waiting(image) or type(image) is Draft
        if not recorded or list(transform.transforms) != self._steps:
            return draft(transform(finished(image))), False
        if not self._applies(transform.p):
            return image, mine
        return _chained(self._steps, self._recorders, image, mine)


_SEQUENCES: Final = (list, tuple, torch.nn.ModuleList)


def _applied(transform: Any) -> list[Any] | None:
    """The transforms of what may be a ``RandomApply``; None: it has none."""
    inner = getattr(transform, "transforms", ())
    return list(inner) if inner and type(inner) in _SEQUENCES else None


def _hooks(transform: Any) -> list[Any]:
    """What has the hooks of a module, those too that are registered later."""
    own = getattr(transform, "__dict__", {})
    hooks = [own[name] for name in _HOOKS if name in own]
    for inner in _applied(transform) or ():
        hooks += _hooks(inner)
    return hooks


_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _cropped(transform: Any, image: Any, mine: bool) -> DeferredImage | None:
    if not waiting(image):
        return None
    padded = with_padding(image, transform.padding, transform.fill, transform.padding_mode)
    size = height_and_width(transform.size)
    if padded is None or size is None:
        return None
    operations, w, h = padded
    if size[0] > h or size[1] > w:
        return None
    if size != (h, w):
        y, x = two_below(h - size[0] + 1, w - size[1] + 1)
        operations += (("crop", x, y, size[1], size[0]),)
    return image._then(*operations, mine=mine)


def with_padding(
    image: DeferredImage, padding: Any, fill: Any, padding_mode: Any
) -> tuple[tuple[Operation, ...], int, int] | None:
    """How a ``RandomCrop`` pads an image, and its width and height then; None: not recorded."""
    w, h = image._size
    if padding is None:
        return (), w, h
    border = _border(padding, fill, padding_mode, image._mode)
    if border is None or not keeps_no_color(image):
        return None
    _, left, top, right, bottom, _ = border
    w, h = w + left + right, h + top + bottom
    if not is_within(w, h):
        return None
    if not image._loaded:
        image._first_load()  # fails before anything is drawn
    return (border,), w, h


def resized(transform: Any, image: Any, mine: bool) -> Any:
    if not waiting(image) or transform.antialias is False:
        return None
    new_size = _resized_to(image._size, transform.size, transform.max_size)
    filter = _filter(transform.interpolation)
    if new_size is None or filter is None:
        return None
    return image if new_size == image._size else image.resize(new_size, filter)


def center_cropped(transform: Any, image: Any, mine: bool) -> Any:
    size = height_and_width(transform.size)
    if not waiting(image) or size is None:
        return None
    (w, h), (crop_h, crop_w) = image._size, size
    if crop_h > h or crop_w > w:
        return None
    x, y = round((w - crop_w) / 2), round((h - crop_h) / 2)
    return image.crop((x, y, x + crop_w, y + crop_h))


def resized_crop(
    transform: Any, image: Any, mine: bool, interpolation: Any = None
) -> DeferredImage | None:
    """Records a ``RandomResizedCrop``, with this interpolation where it is v2's."""
    size = height_and_width(transform.size)
    interpolation = interpolation or transform.interpolation
    if (
        not waiting(image)
        or size is None
        or image.mode not in PLAIN
        or type(interpolation) is not InterpolationMode
        or transform.antialias is False  # of which torchvision warns
    ):
        return None
    box = random_box(transform, *image.size)
    if box is None:
        return None
    operations: list[Operation] = []
    if box != (0, 0, *image.size):
        operations.append(("crop", *box))
    if box[2:] != (size[1], size[0]):
        filter = int(functional.pil_modes_mapping[interpolation])
        operations.append(("resize", size[1], size[0], filter))
    return image._then(*operations, mine=mine)


def flipper(vertical: bool) -> Recorder:
    def flipped(transform: Any, image: Any, mine: bool) -> DeferredImage | None:
        if not waiting(image):
            return None
        return image._then(("flip", vertical), mine=mine) if happens(transform.p) else image

    return flipped


def of_other_colors(transform: Any, image: Any, mine: bool) -> DeferredImage | None:
    if not waiting(image) or not _keeps_mode(image):
        return None
    ranges = color_ranges(transform)
    if ranges is None:
        return None
    operations = random_adjustments(ranges)
    return image._then(*operations, mine=mine) if operations else image


ADJUSTMENTS: Final = ("adjust_brightness", "adjust_contrast", "adjust_saturation", "adjust_hue")
COLORS: Final = ("brightness", "contrast", "saturation", "hue")


def _keeps_mode(image: DeferredImage) -> bool:
    """Whether it is converted to gray and back without anything that Pillow looks up first."""
    return image.mode == "RGB" and keeps_no_color(image)


def color_ranges(transform: Any) -> _Ranges | None:
    ranges = []
    for name in COLORS:
        setting = getattr(transform, name)
        ends = None if setting is None else _numbers(setting)
        if ends is None and setting is not None:
            return None
        ranges.append(ends)
    hue = ranges[3]
    return None if hue is not None and not -0.5 <= hue[0] <= hue[1] <= 0.5 else tuple(ranges)


def random_adjustments(ranges: _Ranges, of: str = "") -> list[Operation]:
    """The operations of ``ColorJitter``, with ``of`` before their names."""
    order, factors = random_factors(ranges)
    drawn = [(of + COLORS[number], factors[number]) for number in order]
    return [(name, factor) for name, factor in drawn if factor is not None]


BYTES: Final = frozenset({"L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB"})


def to_tensor(image: DeferredImage, name: str) -> Memory | None:
    """The memory of what "to_tensor" or "to_image" makes; None: it is not recorded."""
    if image._mode not in BYTES:
        return None
    if name == "to_tensor" and torch.get_default_dtype() is not torch.float32:
        return None
    if name == "to_image" and not made_on_the_cpu():
        return None
    if not image._loaded:
        image._first_load()
    return None if image._real is not None else of_image(image, name)


def made_on_the_cpu() -> bool:
    """Whether ``torch.as_tensor`` makes tensors there. A default device is a mode on this stack."""
    no_mode = not torch._C._len_torch_function_stack()
    # Before 2.6, get_default_device does not know `with torch.device(...)`.
    return no_mode or torch.empty(0).device.type == "cpu"


def normalized(
    memory: Memory, mean: Any, std: Any, inplace: bool, mine: bool = False
) -> Memory | None:
    """A tensor normalised; None: it is not recorded."""
    operation = _normalization(mean, std, channels(memory.mode), memory.layout.dtype)
    if operation is None or (inplace and not memory.alone):
        return None
    return memory.then(operation, mine=mine or inplace)


def _normalization(mean: Any, std: Any, bands: int, dtype: torch.dtype) -> Operation | None:
    try:
        return _valid_normalization(_sequence(mean), _sequence(std), bands, dtype)
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


def _sequence(values: Any) -> tuple[float, ...]:
    """What a sequence, an array or a tensor has in it; nothing where that is not certain."""
    if type(values) is tuple:
        return values
    if type(values) is list:
        return tuple(values)
    if type(values) is torch.Tensor:
        plain_tensor = values.ndim == 1 and values.device.type == "cpu" and not values.requires_grad
        return tuple(values.tolist()) if plain_tensor else ()
    if isinstance(values, np.ndarray):
        return tuple(values.tolist()) if values.ndim == 1 else ()
    return (values,) if type(values) is float else ()


def ending(name: str, kind: type[DeferredTensor]) -> Recorder:
    """Records what makes a tensor of an image."""

    def record(transform: Any, image: Any, mine: bool) -> Draft | None:
        memory = to_tensor(image, name) if waiting(image) else None
        return None if memory is None else Draft(memory, kind)

    return record


def on_tensors(
    record: Callable[[Any, Memory, bool], Memory | None],
    on_image: Recorder = lambda *_: None,
    marked: bool = True,
) -> Recorder:
    """Records what makes a tensor of a tensor; ``marked``: it stays one that v2 marks."""

    def on_tensor(transform: Any, value: Any, mine: bool) -> Any:
        if type(value) is not Draft:
            return on_image(transform, value, mine)
        if not marked and value.kind is not DeferredTensor:
            return None
        memory = record(transform, value.memory, mine)
        if memory is None or memory is value.memory:
            return None if memory is None else value
        return Draft(memory, value.kind)

    return on_tensor


APPLIES: Final[Applies] = {transforms.RandomApply: _reaches}

RECORDED_TRANSFORMS: Final = (
    RecordedTransform(
        kind=transforms.RandomCrop,
        record=_cropped,
        calls=("pad", "crop", "get_dimensions"),
        methods=("forward", "get_params"),
    ),
    RecordedTransform(
        kind=transforms.Resize,
        record=resized,
        calls=("resize", "get_dimensions", "_compute_resized_output_size"),
        methods=("forward",),
    ),
    RecordedTransform(
        kind=transforms.CenterCrop,
        record=center_cropped,
        calls=("center_crop", "crop", "get_dimensions"),
        methods=("forward",),
    ),
    RecordedTransform(
        kind=transforms.RandomResizedCrop,
        record=resized_crop,
        calls=("resized_crop", "crop", "resize", "get_dimensions"),
        methods=("forward", "get_params"),
    ),
    RecordedTransform(
        kind=transforms.RandomHorizontalFlip,
        record=flipper(vertical=False),
        calls=("hflip",),
        methods=("forward",),
    ),
    RecordedTransform(
        kind=transforms.RandomVerticalFlip,
        record=flipper(vertical=True),
        calls=("vflip",),
        methods=("forward",),
    ),
    RecordedTransform(
        kind=transforms.ColorJitter,
        record=of_other_colors,
        calls=ADJUSTMENTS,
        methods=("forward", "get_params"),
    ),
    RecordedTransform(
        kind=transforms.ToTensor,
        record=ending("to_tensor", DeferredTensor),
        calls=("to_tensor",),
        methods=("__call__",),
    ),
    RecordedTransform(
        kind=transforms.Normalize,
        record=on_tensors(
            lambda own, memory, mine: normalized(memory, own.mean, own.std, own.inplace, mine),
            marked=False,
        ),
        calls=("normalize",),
        methods=("forward",),
    ),
)
