"""What fastload exchanges in torchvision's v2, where it is imported.

Its functions find their kernels by the type of what they are given: ours are added to its registry,
by our types, and stay there.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import PIL.Image
import torch
import torchvision.transforms.functional as functional
import torchvision.transforms.v2.functional as functional_v2
from torchvision import tv_tensors
from torchvision.transforms import v2

from ...._base.named import named
from .. import torchvision_transforms as fewer_steps
from .. import torchvision_v2
from ..guarded import Function, GuardedFunction, leave_out
from ..image import DeferredImage, waiting
from ..memory import channel_order
from ..tensor import Deferred, DeferredTensor, DeferredTVImage, like, pending
from ..thread_state import cause
from .patch import Patch, leave_out_all
from .proof import Proof, ProofInputs, Same
from .torchvision import BLURS, EXACT, SIZES, STEPS, gaussian_blurrer, normalizer


def _resized_crop(original: Function) -> Function:
    """What v2 makes of a crop and a resize, both of which are recorded."""

    def resized_crop(
        image: Any,
        top: Any,
        left: Any,
        height: Any,
        width: Any,
        size: Any,
        interpolation: Any = functional.InterpolationMode.BILINEAR,
        antialias: Any = True,
    ) -> Any:
        if not pending(image):
            return original(image, top, left, height, width, size, interpolation, antialias)
        cut = functional_v2.crop(image, top, left, height, width)
        return functional_v2.resize(cut, size, interpolation=interpolation, antialias=antialias)

    return resized_crop


def _get_fill(original: Function) -> Function:
    """A value of a dict by type, where v2 looks up ``type(image)``."""

    def get_fill(fill_dict: Any, inpt_type: Any) -> Any:
        if issubclass(inpt_type, (DeferredImage, Deferred)):
            inpt_type = inpt_type.stands_for
        return original(fill_dict, inpt_type)

    return get_fill


def _to_dtype_by_type(original: Function) -> Function:
    """v2.ToDtype, which looks up ``type(image)`` in a dict of dtypes."""

    def transform(self: Any, inpt: Any, params: Any) -> Any:
        if isinstance(inpt, Deferred) and isinstance(self.dtype, dict):
            kind = type(inpt).stands_for
            if kind in self.dtype:
                self = copy.copy(self)
                self.dtype = {**self.dtype, type(inpt): self.dtype[kind]}
        return original(self, inpt, params)

    return transform


def _recorder(
    name: str, record: Function, *, on_real: bool = True
) -> Callable[[Function], Function]:
    """A kernel whose result is recorded: ``record(memory, *arguments)``, which are the original's.

    ``on_real``: where that is None, the original gets the real image; else the deferred one, of
    which it calls what is recorded.
    """

    def make(original: Function) -> Function:
        _, *parameters = inspect.signature(original).parameters.values()
        names = [parameter.name for parameter in parameters]
        defaults = {parameter.name: parameter.default for parameter in parameters}
        otherwise = _on_real_images(name, original) if on_real else original

        def kernel(image: Any, *args: Any, **keywords: Any) -> Any:
            result, unset = None, names[len(args) :]
            values = [keywords.get(name, defaults[name]) for name in unset]
            usual = len(args) <= len(names) and keywords.keys() <= set(unset)
            if usual and pending(image) and not any(value is _MISSING for value in values):
                result = record(image._memory, *args, *values)
            if result is None:
                return otherwise(image, *args, **keywords)
            return like(image, result, marked=True)

        return kernel

    return make


_MISSING: Final = inspect.Parameter.empty


def _permute_channels_of_image(original: Function) -> Function:
    def permute_channels(image: Any, permutation: Any) -> Any:
        order = channel_order(permutation)
        is_rgb = waiting(image) and image._mode == "RGB"
        if not is_rgb or order is None or not fewer_steps.made_on_the_cpu():
            return original(image, permutation)
        permuted = image._then(("order", *order))
        permuted._info = {}
        return permuted

    return permute_channels


def _on_real_images(name: str, kernel: Function) -> Function:
    """A kernel that is not recorded: it gets the real image, and makes others like that."""

    def on_real_image(image: Any, *args: Any, **kwargs: Any) -> Any:
        with cause(f"v2.functional.{name}") if pending(image) else contextlib.nullcontext():
            real = image.materialise()
        result = kernel(real, *args, **kwargs)
        return image if result is real else result

    return on_real_image


# The list.


def _drawn(transform: Callable[[], Any]) -> Same:
    """The proof of what calls a transform that draws."""
    return Same(lambda call, inputs: call(transform(), inputs.image), seeds=(0, 1))


def _fill_by_type(get_fill: Function, inputs: ProofInputs) -> Any:
    fills = {tv_tensors.Image: 3, PIL.Image.Image: 4, "others": 5}
    return [
        get_fill(fills, type(value))
        for value in (inputs.marked().levels, inputs.image, inputs.tensor)
    ]


def _dtype_by_type(transform: Function, inputs: ProofInputs) -> Any:
    chosen = v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True)
    converted = transform(chosen, inputs.marked().levels, {})
    return str(converted.dtype), getattr(type(converted), "stands_for", type(converted)).__name__


def _composed(call: Function, inputs: ProofInputs) -> Any:
    """What every step of a Compose makes, with either outcome of those that are drawn."""
    end = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5, 0.4, 0.3], [0.2] * 3)]
    moved = [v2.RandomResizedCrop((6, 5), antialias=True), v2.RandomHorizontalFlip()]
    jitter = v2.ColorJitter(0.4, 0.4, 0.4, 0.1)
    drawn = [
        v2.RandomCrop((7, 6), (2, 3), fill=9),
        v2.RandomVerticalFlip(),
        v2.RandomApply([jitter]),
        jitter,
    ]
    chains = (
        [v2.ToImage(), *moved, *end],
        [*moved, v2.ToImage(), *end, v2.ToPureTensor()],
        [v2.ToImage(), v2.Resize(8, antialias=True), v2.CenterCrop((7, 6)), *end],
        [v2.ToImage(), *drawn, *end],
        [*drawn, v2.Resize(9), v2.CenterCrop((7, 6)), v2.ToImage()],
    )
    images = [inputs.image, *map(inputs.image.resize, SIZES)]
    results = [call(v2.Compose(chain), image) for chain in chains for image in images]
    with_label = call(v2.Compose(chains[3]), images[1], 7)
    with_name = call(v2.Compose(chains[0]), {"image": inputs.image, "name": "it"})
    return [*results, *with_label, *map(with_name.get, ("image", "name"))]


_CPU_V2: Final = "v2's crop and flip of 32x32: 81 us of CPU to record a sample, 105 without it"
_TYPES: Final = "it looks up the type of what it is given, and a deferred one is another type"

PATCHES: Final = [
    Patch(
        names=("torchvision.transforms.v2._utils._get_fill",),
        ours=_get_fill,
        why=_TYPES,
        kept_by=EXACT,
        proof=Same(_fill_by_type),
        needed=True,
    ),
    Patch(
        names=(
            "torchvision.transforms.v2.ToDtype.transform",
            "torchvision.transforms.v2.ToDtype._transform",  # before 0.21
        ),
        ours=_to_dtype_by_type,
        why=_TYPES,
        kept_by=EXACT,
        proof=Same(_dtype_by_type),
        needed=True,
    ),
    Patch(
        names=("torchvision.transforms.v2.Transform.forward",),
        ours=torchvision_v2.forward(at_random=False),
        why=STEPS,
        kept_by=_CPU_V2,
        proof=_drawn(lambda: v2.RandomCrop(6)),
    ),
    Patch(  # the forward of all transforms of v2 that have a ``p``
        names=("torchvision.transforms.v2.RandomHorizontalFlip.forward",),
        ours=torchvision_v2.forward(at_random=True),
        why=STEPS,
        kept_by=_CPU_V2,
        proof=_drawn(v2.RandomHorizontalFlip),
        in_usual_state=True,
    ),
    Patch(
        names=("torchvision.transforms.v2.Compose.forward",),
        ours=fewer_steps.composer(
            v2.Compose, torchvision_v2.steps, torchvision_v2.APPLIES, torchvision_v2.sample_of
        ),
        why=STEPS,
        kept_by="CPU per image without it: 2 on 32x32 JPEGs, where the chain begins with ToImage",
        proof=Same(_composed, seeds=(0, 1)),
        in_usual_state=True,
    ),
]
"""v2's functions that are exchanged."""


class V2Kernel(NamedTuple):
    """A function of v2 for our types.

    Attributes:
        name: of the function in ``torchvision.transforms.v2.functional``.
        kinds: ours, and those for which torchvision has its own.
        ours: as of a ``Patch``.
        proof: that of a ``Patch``, for tensors that v2 marks as images and for others.
        in_usual_state: as of a ``Patch``.
    """

    name: str
    kinds: tuple[tuple[type, type], ...]
    ours: Callable[[Function], Function]
    proof: Callable[[bool], Proof]
    in_usual_state: bool = False


_TENSORS: Final[tuple[tuple[type, type], ...]] = (
    (DeferredTensor, torch.Tensor),
    (DeferredTVImage, tv_tensors.Image),
)
_IMAGES: Final[tuple[tuple[type, type], ...]] = ((DeferredImage, PIL.Image.Image),)


def _same(call: Callable[[Function, ProofInputs], Any]) -> Callable[[bool], Proof]:
    return lambda marked: Same(call, marked=marked)


def _of_tensors(
    name: str,
    record: Function,
    call: Callable[[Function, Any], Any],
    *,
    on_real: bool = True,
    in_usual_state: bool = False,
) -> V2Kernel:
    """What is recorded, and proves itself by ``call(kernel, levels)`` of every layout."""

    def of_each(kernel: Function, inputs: ProofInputs) -> Any:
        each = inputs.levels, inputs.levels.contiguous(), inputs.levels[:, 1:8, 2:9]
        return [call(kernel, levels) for levels in each]

    ours = _recorder(name, record, on_real=on_real)
    return V2Kernel(name, _TENSORS, ours, _same(of_each), in_usual_state)


def _recolors(name: str, operation: str, *tried: float) -> V2Kernel:
    """An operation on levels, with each of the values ``tried``."""

    def call(recolor: Function, levels: Any) -> Any:
        return [recolor(levels, *value) for value in (zip(tried) if tried else [()])]

    record = functools.partial(torchvision_v2.recolored, name=operation)
    return _of_tensors(name, record, call, in_usual_state=True)


_MODES: Final = (functional.InterpolationMode.NEAREST, functional.InterpolationMode.BILINEAR)
_WAYS: Final = [{"interpolation": mode, "fill": fill} for mode in _MODES for fill in (None, 7)]


def _mapped(affine: Function, levels: Any) -> Any:
    moves = (0, [2, -3], 1.0, [0.0, 0.0]), (12.5, [0.0, 1.5], 0.8, [20.0, -10.0])
    results = [affine(levels, *move, **way) for move in moves for way in _WAYS]
    return [*results, affine(levels, 0.0, [0, 0], 1.0, [25.0, 0.0], center=[0, 0], fill=[1, 2, 3])]


def _rotated(rotate: Function, levels: Any) -> Any:
    return [rotate(levels, angle, **way) for angle in (30.0, -171) for way in _WAYS]


def _cast(to_dtype: Function, levels: Any) -> Any:
    return [to_dtype(levels, torch.float32, scale) for scale in (True, False)]


KERNELS: Final = [
    _recolors("adjust_brightness", "tensor_brightness", 0.0, 0.35, 1.0, 1.7),
    _recolors("adjust_contrast", "tensor_contrast", 0.0, 0.35, 1.0, 1.7),
    _recolors("adjust_saturation", "tensor_saturation", 0.0, 0.35, 1.0, 1.7),
    _recolors("adjust_hue", "tensor_hue", -0.5, -0.123, 0.0, 0.3, 0.5),
    _recolors("adjust_sharpness", "tensor_sharpness", 0.0, 0.35, 1.0, 1.7),
    _recolors("posterize", "tensor_posterize", 0, 3, 7),
    _recolors("solarize", "tensor_solarize", 0, 100, 127.6),
    _recolors("autocontrast", "tensor_autocontrast"),
    _recolors("equalize", "tensor_equalize"),
    _recolors("invert", "tensor_invert"),
    _of_tensors("affine", torchvision_v2.mapped, _mapped),
    _of_tensors("rotate", torchvision_v2.rotated, _rotated),
    _of_tensors("rgb_to_grayscale", torchvision_v2.grayed, lambda gray, levels: gray(levels, 3)),
    _of_tensors(
        "permute_channels",
        torchvision_v2.reordered,
        lambda permute, levels: permute(levels, [2, 0, 1]),
    ),
    _of_tensors(  # the images of a proof are too small to be blurred by the core: torch_blur.py
        "gaussian_blur",
        torchvision_v2.blurred,
        lambda blur, levels: blur(levels, [3, 5], [1.3, 0.7]),
    ),
    _of_tensors("to_dtype", torchvision_v2.cast, _cast, on_real=False),
    _of_tensors(
        "resize",
        torchvision_v2.resized,
        lambda resize, levels: resize(levels, [4, 5]),
        on_real=False,
    ),
    _of_tensors(
        "pad",
        torchvision_v2.padded,
        lambda pad, levels: pad(levels, [1, 0, 2, 3], [9, 0, 255.0]),
        on_real=False,
    ),
    V2Kernel(
        name="normalize",
        kinds=_TENSORS,
        ours=normalizer(marked=True),
        proof=_same(lambda normalize, inputs: normalize(inputs.tensor, [0.5, 0.4, 0.3], [0.2] * 3)),
    ),
    V2Kernel(
        name="resized_crop",
        kinds=_TENSORS,
        ours=_resized_crop,
        proof=_same(lambda resized_crop, inputs: resized_crop(inputs.levels, 1, 2, 5, 6, [4, 3])),
    ),
    V2Kernel(
        name="gaussian_blur",
        kinds=_IMAGES,
        ours=gaussian_blurrer(v2=True),
        proof=lambda _: BLURS,
    ),
    V2Kernel(
        name="permute_channels",
        kinds=_IMAGES,
        ours=_permute_channels_of_image,
        proof=_same(lambda permute, inputs: permute(inputs.image, torch.tensor([2, 0, 1]))),
    ),
]

# Kernels that only cut, mirror, resize and assign, so that what they call is recorded.
_MADE_OF_RECORDED: Final = frozenset(
    (
        "crop", "center_crop", "horizontal_flip", "vertical_flip", "resize", "resized_crop", "pad",
        "erase",
    )
)  # fmt: skip


def _add(
    kernel: V2Kernel, name: str, registry: dict[type, Function], kind: type, original: Function
) -> None:
    ours, proof = kernel.ours(original), kernel.proof(kind is DeferredTVImage)

    def settle(called: Function) -> None:
        registry[kind] = called

    registry[kind] = GuardedFunction(
        name, ours, original, lambda: proof(original, ours), settle, kernel.in_usual_state
    )


def add_kernels() -> None:
    """Add those that prove themselves to v2's own. Nobody else has objects of our types."""
    name = "torchvision.transforms.v2.functional._utils._KERNEL_REGISTRY"
    registries: dict[Function, dict[type, Function]] | None = named(name)
    if registries is None:
        leave_out_all(name)
        return
    for kernel in KERNELS:
        function_name = f"torchvision.transforms.v2.functional.{kernel.name}"
        registry = registries.get(named(function_name), {})
        for kind, base in kernel.kinds:
            if base in registry:
                _add(kernel, function_name, registry, kind, registry[base])
            else:
                leave_out(function_name, f"this release has none for {base.__name__}")
    for function, registry in registries.items():
        image = registry.get(tv_tensors.Image)
        asks = function.__name__.startswith("get_")
        if image is not None and not asks and function.__name__ not in _MADE_OF_RECORDED:
            registry.setdefault(DeferredTVImage, _on_real_images(function.__name__, image))
