"""Operations on pixels out of torchvision's transforms: colour, filters, and choices.

``Stop`` says why a transform is not one that the engines can run; its message is for the user.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from ..override_check import changed
from . import operations
from .operations import Blur, Chain, Chance, Choice, Factor, Fixed, Order, PixelOp

PILLOW_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}

V2 = "torchvision.transforms.v2"

_MODULES = (
    "torchvision.transforms",
    V2,
    "torch.nn",
    "torchvision.transforms._presets",
)
_TIMM = ("timm.data.transforms", "timm.data.random_erasing", "timm.data.auto_augment")


UNREADABLE = (
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    ArithmeticError,
    NotImplementedError,
)
"""What settings of other types than torchvision's own raise where they are read: a number where a
pair is expected, a name where a filter is, a tensor without values. torchvision mostly fails on
them too, but says so."""


class Stop(Exception):
    """Ends the recognition; its message is the reason."""


def name_of(transform: Any) -> str:
    """How a message calls it."""
    kind = type(transform)
    return getattr(transform, "__name__", None) or f"{kind.__module__}.{kind.__qualname__}"


def is_of(transform: Any, module: str, name: str) -> bool:
    """Whether the type is exactly ``module.name``, of a module that the user has imported."""
    return type(transform) is getattr(sys.modules.get(module), name, None)


def kind_of(transform: Any) -> str:
    """The name of a transform of torchvision or torch.nn, or "timm." and the name of one of timm's.

    Raises Stop for anything else.
    """
    name = type(transform).__name__
    theirs = any(is_of(transform, module, name) for module in _TIMM)
    if not theirs and not any(is_of(transform, module, name) for module in _MODULES):
        raise Stop(f"{name_of(transform)} is not a transform fastload knows")
    why = changed(transform)
    if why is not None:
        raise Stop(why)
    return f"timm.{name}" if theirs else name


def filter_of(transform: Any) -> str:
    """The interpolation's name in lower case, however it was given."""
    chosen = transform.interpolation
    if isinstance(chosen, (list, tuple)):
        raise Stop("an interpolation chosen at random for each image; name one")
    name = PILLOW_FILTERS.get(chosen) if isinstance(chosen, int) else chosen
    return str(getattr(name, "value", name))


def pixel_op(transform: Any) -> PixelOp | None:
    """The operation on pixels that a transform is, or None where it is of another kind.

    Raises Stop where it is one, but not as the engines can run it.
    """
    kind = kind_of(transform)
    if kind in _WARPS:
        from ..geometry import warps

        return warps.READERS[kind](transform)
    reader = _READERS.get(kind)
    return None if reader is None else reader(transform)


def _inner(outer: str, transforms: Iterable[Any]) -> tuple[PixelOp, ...]:
    """Operations inside of a transform that decides about them sample by sample."""
    ops: list[PixelOp] = []
    for transform in transforms:
        kind = kind_of(transform)
        if kind in ("Identity", "RGB"):
            ops.append(Fixed(operations.NONE))
            continue
        op = _flip(transform) if kind == "RandomHorizontalFlip" else pixel_op(transform)
        if op is None:
            raise Stop(f"{kind} inside of {outer}; colour, flips and affine maps are recognised")
        ops.append(op)
    if any(map(operations.resizes, ops)) and (outer != "RandomApply" or len(ops) > 1):
        raise Stop(
            f"RandomRotation with expand=True beside others in {outer}, whose images it gives "
            "another size; by itself, and alone in RandomApply, it is recognised"
        )
    return tuple(ops)


def _compose(transform: Any) -> PixelOp:
    children = transform.transforms if hasattr(transform, "transforms") else transform.children()
    return Chain(_inner(kind_of(transform), children))


def _apply(transform: Any) -> PixelOp:
    return Chance(probability(transform), Chain(_inner("RandomApply", transform.transforms)))


def _choice(transform: Any) -> PixelOp:
    ops = _inner("RandomChoice", transform.transforms)
    weights = tuple(map(float, transform.p)) if transform.p is not None else (1.0,) * len(ops)
    if len(weights) != len(ops) or min(weights, default=0) < 0 or not 0 < sum(weights) < 1e30:
        raise Stop(f"RandomChoice with p={transform.p} for {len(ops)} transforms")
    return Choice(ops, weights)


def _order(transform: Any) -> PixelOp:
    return Order(_inner("RandomOrder", transform.transforms))


def probability(transform: Any) -> float:
    """Its ``p``. Raises Stop for what is none."""
    p = transform.p
    if isinstance(p, str) or not 0 <= float(p) <= 1:
        raise Stop(f"{type(transform).__name__} with p={p!r}, which is no probability")
    return float(p)


def _sometimes(code: int, *names: str) -> Callable[[Any], PixelOp]:
    """An operation with probability ``p``, its values under these names."""

    def read(transform: Any) -> PixelOp:
        values = [getattr(transform, name) for name in names]
        if not all(isinstance(value, (int, float)) and abs(value) < 1e30 for value in values):
            raise Stop(f"{type(transform).__name__} with {names[0]}={values[0]}")
        return Chance(probability(transform), Fixed(code, tuple(map(float, values))))

    return read


def _flip(transform: Any) -> PixelOp:
    return Chance(probability(transform), Fixed(operations.MIRROR))


def _posterize(transform: Any) -> PixelOp:
    bits = transform.bits
    if type(bits) is not int or not 1 <= bits <= 8:
        raise Stop(f"RandomPosterize with bits={bits}; Pillow takes 1 to 8")
    return Chance(probability(transform), Fixed(operations.POSTERIZE, (float(bits),)))


def _jitter(transform: Any) -> PixelOp:
    factors = []
    for name, code in (
        ("brightness", operations.BRIGHTNESS),
        ("contrast", operations.CONTRAST),
        ("saturation", operations.SATURATION),
        ("hue", operations.HUE),
    ):
        limits = getattr(transform, name)
        if limits is None:
            continue
        low, high = (float(end) for end in limits)
        least, most = (-0.5, 0.5) if name == "hue" else (0.0, 1e30)
        if not least <= low <= high <= most:
            raise Stop(f"ColorJitter with {name}={tuple(limits)}")
        factors.append(Factor(code, low, high))
    return Order(tuple(factors))


def _grayscale(transform: Any) -> PixelOp:
    if transform.num_output_channels != 3:
        raise Stop("Grayscale gives one channel; num_output_channels=3 is recognised")
    return Fixed(operations.GRAYSCALE)


def _blur(transform: Any) -> PixelOp:
    sizes = [int(size) for size in transform.kernel_size]
    low, high = (float(sigma) for sigma in transform.sigma)
    if len(sizes) != 2 or not all(0 < size < 512 and size % 2 for size in sizes) or low <= 0:
        raise Stop(f"GaussianBlur with kernel_size={tuple(sizes)}, sigma={(low, high)}")
    return Blur((sizes[0] // 2, sizes[1] // 2), low, high)


_READERS: dict[str, Callable[[Any], PixelOp]] = {
    "Compose": _compose,
    "Sequential": _compose,
    "RandomApply": _apply,
    "RandomChoice": _choice,
    "RandomOrder": _order,
    "RandomVerticalFlip": _sometimes(operations.UPSIDE_DOWN),
    "ColorJitter": _jitter,
    "Grayscale": _grayscale,
    "RandomGrayscale": _sometimes(operations.GRAYSCALE),
    "RandomInvert": _sometimes(operations.INVERT),
    "RandomSolarize": _sometimes(operations.SOLARIZE, "threshold"),
    "RandomPosterize": _posterize,
    "RandomAutocontrast": _sometimes(operations.AUTOCONTRAST),
    "RandomEqualize": _sometimes(operations.EQUALIZE),
    "RandomAdjustSharpness": _sometimes(operations.SHARPNESS, "sharpness_factor"),
    "GaussianBlur": _blur,
}

# In ``warps.py``, which a loader without them does not import.
_WARPS = frozenset(
    {
        "RandomRotation",
        "RandomAffine",
        "RandAugment",
        "TrivialAugmentWide",
        "AutoAugment",
        "AugMix",
        "timm.RandAugment",
    }
)
