"""Reads torchvision's transforms of colour, its filters and its choices as operations on pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..transform_class import Stop, Transform, kind_of, probability, two_numbers
from . import operations
from .pixel_op import Blur, Chain, Chance, Factor, Fixed, PixelOp, RandomChoice, RandomOrder


def pixel_op(transform: Transform) -> PixelOp | None:
    """The operation on pixels that a transform does, or None if it is another kind of transform.

    Raises Stop if the engines do not have the operation with these settings.
    """
    kind = kind_of(transform)
    if kind in _WARPS:
        from . import warps

        return warps.READERS[kind](transform)
    reader = _READERS.get(kind)
    return None if reader is None else reader(transform)


def _inner(outer: str, transforms: Iterable[Transform]) -> tuple[PixelOp, ...]:
    """The operations inside a transform that chooses among them for each sample."""
    ops: list[PixelOp] = []
    for transform in transforms:
        kind = kind_of(transform)
        if kind in ("Identity", "RGB"):
            ops.append(Fixed(operations.NONE))
            continue
        op = _flip(transform) if kind == "RandomHorizontalFlip" else pixel_op(transform)
        if op is None:
            raise Stop(f"{kind} inside {outer}; colour, flips and affine maps are recognised")
        ops.append(op)
    if any(op.resizes for op in ops) and (outer != "RandomApply" or len(ops) > 1):
        raise Stop(
            f"RandomRotation with expand=True together with others in {outer}, because it changes "
            "the size of their images; alone, or alone in RandomApply, it is recognised"
        )
    return tuple(ops)


def _compose(transform: Transform) -> PixelOp:
    children = transform.transforms if hasattr(transform, "transforms") else transform.children()
    return Chain(_inner(kind_of(transform), children))


def _apply(transform: Transform) -> PixelOp:
    return Chance(p=probability(transform), ops=_inner("RandomApply", transform.transforms))


def _choice(transform: Transform) -> PixelOp:
    ops = _inner("RandomChoice", transform.transforms)
    weights = tuple(map(float, transform.p)) if transform.p is not None else (1.0,) * len(ops)
    if len(weights) != len(ops) or min(weights, default=0) < 0 or not 0 < sum(weights) < 1e30:
        raise Stop(f"RandomChoice with p={transform.p} for {len(ops)} transforms")
    return RandomChoice(ops, weights)


def _order(transform: Transform) -> PixelOp:
    return RandomOrder(_inner("RandomOrder", transform.transforms))


def _sometimes(code: int, *names: str) -> Callable[[Transform], PixelOp]:
    """The reader of an operation with probability ``p`` and values in the attributes ``names``."""

    def read(transform: Transform) -> PixelOp:
        values = [getattr(transform, name) for name in names]
        if not all(isinstance(value, (int, float)) and abs(value) < 1e30 for value in values):
            raise Stop(f"{type(transform).__name__} with {names[0]}={values[0]}")
        return Chance((Fixed(code, tuple(map(float, values))),), probability(transform))

    return read


def _flip(transform: Transform) -> PixelOp:
    return Chance((Fixed(operations.MIRROR),), probability(transform))


def _posterize(transform: Transform) -> PixelOp:
    bits = transform.bits
    if type(bits) is not int or not 1 <= bits <= 8:
        raise Stop(f"RandomPosterize with bits={bits}; Pillow takes 1 to 8")
    return Chance((Fixed(operations.POSTERIZE, (float(bits),)),), probability(transform))


def _jitter(transform: Transform) -> PixelOp:
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
        low, high = two_numbers(limits)
        least, most = (-0.5, 0.5) if name == "hue" else (0.0, 1e30)
        if not least <= low <= high <= most:
            raise Stop(f"ColorJitter with {name}={tuple(limits)}")
        factors.append(Factor(code, low, high))
    return RandomOrder(tuple(factors))


def _grayscale(transform: Transform) -> PixelOp:
    if transform.num_output_channels != 3:
        raise Stop("Grayscale gives one channel; num_output_channels=3 is recognised")
    return Fixed(operations.GRAYSCALE)


def _blur(transform: Transform) -> PixelOp:
    sizes = [int(size) for size in transform.kernel_size]
    low, high = two_numbers(transform.sigma)
    if len(sizes) != 2 or not all(0 < size < 512 and size % 2 for size in sizes) or low <= 0:
        raise Stop(f"GaussianBlur with kernel_size={tuple(sizes)}, sigma={(low, high)}")
    return Blur((sizes[0] // 2, sizes[1] // 2), low, high)


_READERS: dict[str, Callable[[Transform], PixelOp]] = {
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

# Read by ``warps.py``, which is imported only if a chain has one of them.
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
