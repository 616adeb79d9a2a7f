"""Operations on pixels out of torchvision's transforms: colour, filters, policies, and choices.

``Stop`` says why a transform is not one that the engines can run; its message is for the user.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from fastload._transforms import augmix, pixels, timm_policy
from fastload._transforms.affine import Look, RandomAffine, RandomRotation
from fastload._transforms.changed import changed
from fastload._transforms.pixels import Blur, Chain, Chance, Choice, Factor, Fixed, Order, PixelOp
from fastload._transforms.policies import NAMES, Policies, Step, Uniform, reach

PILLOW_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}

_MODULES = (
    "torchvision.transforms",
    "torchvision.transforms.v2",
    "torch.nn",
    "torchvision.transforms._presets",
)
_TIMM = ("timm.data.transforms", "timm.data.random_erasing", "timm.data.auto_augment")


UNREADABLE = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError)
"""What settings of other types than torchvision's own raise where they are read: a number where a
pair is expected, a name where a filter is. torchvision mostly fails on them too, but says so."""


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
    reader = _READERS.get(kind_of(transform))
    return None if reader is None else reader(transform)


def moves(op: PixelOp) -> bool:
    """Whether an operation on pixels may move them otherwise than by a flip."""
    if isinstance(op, (RandomRotation, RandomAffine, Uniform, Policies, *_MIXED)):
        return True
    inner = (*getattr(op, "ops", ()), *([op.op] if isinstance(op, Chance) else []))
    return any(map(moves, inner))


def _inner(outer: str, transforms: Iterable[Any]) -> tuple[PixelOp, ...]:
    """Operations inside of a transform that decides about them sample by sample."""
    ops: list[PixelOp] = []
    for transform in transforms:
        kind = kind_of(transform)
        if kind in ("Identity", "RGB"):
            ops.append(Fixed(pixels.NONE))
            continue
        op = _flip(transform) if kind == "RandomHorizontalFlip" else pixel_op(transform)
        if op is None:
            raise Stop(f"{kind} inside of {outer}; colour, flips and affine maps are recognised")
        ops.append(op)
    if any(map(pixels.resizes, ops)) and (outer != "RandomApply" or len(ops) > 1):
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
    return Chance(probability(transform), Fixed(pixels.MIRROR))


def _posterize(transform: Any) -> PixelOp:
    bits = transform.bits
    if type(bits) is not int or not 1 <= bits <= 8:
        raise Stop(f"RandomPosterize with bits={bits}; Pillow takes 1 to 8")
    return Chance(probability(transform), Fixed(pixels.POSTERIZE, (float(bits),)))


def _jitter(transform: Any) -> PixelOp:
    factors = []
    for name, code in (
        ("brightness", pixels.BRIGHTNESS),
        ("contrast", pixels.CONTRAST),
        ("saturation", pixels.SATURATION),
        ("hue", pixels.HUE),
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
    return Fixed(pixels.GRAYSCALE)


def _blur(transform: Any) -> PixelOp:
    sizes = [int(size) for size in transform.kernel_size]
    low, high = (float(sigma) for sigma in transform.sigma)
    if len(sizes) != 2 or not all(0 < size < 512 and size % 2 for size in sizes) or low <= 0:
        raise Stop(f"GaussianBlur with kernel_size={tuple(sizes)}, sigma={(low, high)}")
    return Blur((sizes[0] // 2, sizes[1] // 2), low, high)


def _look(transform: Any) -> Look:
    name = filter_of(transform)
    filters = {"nearest": 0, "nearest-exact": 0, "bilinear": 2, "bicubic": 3}
    if name not in filters:
        raise Stop(
            f"{type(transform).__name__} with interpolation {name!r}; nearest, bilinear and "
            "bicubic are recognised"
        )
    fill = transform.fill
    levels = [fill] * 3 if isinstance(fill, (int, float)) else [0] * 3 if fill is None else fill
    if not isinstance(levels, (list, tuple)) or len(levels) not in (1, 3):
        raise Stop(f"{type(transform).__name__} with fill={fill}; a level or three are recognised")
    red, green, blue = (int(level) for level in (list(levels) * 3)[:3])
    if not 0 <= min(red, green, blue) <= max(red, green, blue) <= 255:
        raise Stop(f"{type(transform).__name__} with fill={fill}; levels are 0 to 255")
    newer = is_of(transform, _MODULES[1], type(transform).__name__)
    return Look(filters[name], (red, green, blue), newer)


def _center(transform: Any) -> tuple[float, float] | None:
    if transform.center is None:
        return None
    x, y = (float(at) for at in transform.center)
    return x, y


def _range(values: Any) -> tuple[float, float]:
    low, high = (float(end) for end in values)
    return low, high


def _rotation(transform: Any) -> PixelOp:
    return RandomRotation(
        _range(transform.degrees), _center(transform), _look(transform), bool(transform.expand)
    )


def _affine(transform: Any) -> PixelOp:
    shear = [float(degrees) for degrees in transform.shear or (0.0, 0.0)]
    x0, x1, y0, y1 = (shear + [0.0, 0.0])[:4]
    return RandomAffine(
        _range(transform.degrees),
        None if transform.translate is None else _range(transform.translate),
        None if transform.scale is None else _range(transform.scale),
        (x0, x1, y0, y1),
        _center(transform),
        _look(transform),
    )


def _steps(transform: Any, bins: int) -> dict[str, Step]:
    """The operations that a policy knows, with the magnitudes that it has for them."""
    kind = type(transform).__name__
    mixes = kind == "AugMix"
    sides = (331, 200), (662, 400)  # (h, w): a translation may depend on them
    if hasattr(transform, "_AUGMENTATION_SPACE"):  # v2
        known = transform._AUGMENTATION_SPACE
        if mixes and not transform.all_ops:
            known = transform._PARTIAL_AUGMENTATION_SPACE
        small, large = (
            {name: (make(bins, *side), signed) for name, (make, signed) in known.items()}
            for side in sides
        )
    else:
        relative = kind != "TrivialAugmentWide"
        small, large = (
            transform._augmentation_space(bins, *([side] if relative else [])) for side in sides
        )
    steps = {}
    for name, (magnitudes, signed) in small.items():
        if name not in (augmix.NAMES if mixes else NAMES):
            raise Stop(f"{kind} with {name}, which fastload does not know")
        table: tuple[float, ...] = ()
        share = 0
        if magnitudes is not None and magnitudes.ndim > 0:
            table = tuple(float(m) for m in magnitudes.tolist())
            if not torch.equal(magnitudes, large[name][0]):
                side = sides[0][1] if name == "TranslateX" else sides[0][0]
                expected = torch.linspace(0.0, reach(side, mixes), bins)
                if not name.startswith("Translate") or not torch.equal(magnitudes, expected):
                    raise Stop(f"{kind} with a {name} of an unknown size")
                share, table = bins, ()
            if name == "Solarize" and hasattr(transform, "_AUGMENTATION_SPACE"):
                table = tuple(255.0 * m for m in table)  # v2 has shares of the largest level
            if name == "Posterize" and not all((not mixes) <= bits <= 8 for bits in table):
                raise Stop(f"{kind} with Posterize to {min(table):g} bits")
        steps[name] = Step(name, table, bool(signed), share, bool(share) and mixes)
    return steps


def _rand_augment(transform: Any) -> PixelOp:
    bins, magnitude, count = transform.num_magnitude_bins, transform.magnitude, transform.num_ops
    if not isinstance(magnitude, int) or not 0 <= magnitude < bins:
        raise Stop(f"RandAugment with magnitude={magnitude} of {bins} bins")
    if not isinstance(count, int) or count < 0:
        raise Stop(f"RandAugment with num_ops={count}")
    steps = tuple(_steps(transform, bins).values())
    return Uniform(steps, count, (magnitude, 1), _look(transform))


def _trivial_augment(transform: Any) -> PixelOp:
    bins = transform.num_magnitude_bins
    return Uniform(tuple(_steps(transform, bins).values()), 1, (0, bins), _look(transform))


def _auto_augment(transform: Any) -> PixelOp:
    steps = _steps(transform, 10)
    policies = transform._policies if hasattr(transform, "_policies") else transform.policies
    read = []
    for policy in policies:
        if len(policy) != 2 or not all(name in steps for name, _, _ in policy):
            raise Stop("AutoAugment with a policy of its own")
        read.append(tuple((steps[name], float(p), bin or 0) for name, p, bin in policy))
    return Policies(tuple(read), _look(transform))


def _aug_mix(transform: Any) -> PixelOp:
    chains, depth, alpha = transform.mixture_width, transform.chain_depth, float(transform.alpha)
    whole = isinstance(chains, int) and isinstance(depth, int)
    if not whole or not 1 <= chains <= 64 or depth > 64 or not 0.01 <= alpha <= 1e6:
        raise Stop(
            f"AugMix with mixture_width={chains}, chain_depth={depth}, alpha={alpha:g}: out of "
            "what is recognised"
        )
    look = _look(transform)
    if filter_of(transform) not in ("nearest", "bilinear"):
        raise Stop(
            f"AugMix with interpolation {filter_of(transform)!r}, which torchvision refuses on "
            "tensors"
        )
    if not 1 <= transform.severity <= 10:
        raise Stop(f"AugMix with severity={transform.severity}; torchvision has 1 to 10")
    fill = transform.fill
    parts = [] if fill is None else [fill] if isinstance(fill, (int, float)) else fill
    if any(level != int(level) for level in parts):
        raise Stop(f"AugMix with fill={fill}; whole levels are recognised")
    return augmix.AugMix(
        tuple(_steps(transform, 10).values()),
        int(transform.severity),
        chains,
        max(0, depth),
        alpha,
        fill is not None,
        look,
    )


def _timm_rand_augment(transform: Any) -> PixelOp:
    found = timm_policy.read(transform)
    if isinstance(found, str):
        raise Stop(found)
    return found


_MIXED = (augmix.AugMix, timm_policy.RandAugment)

_READERS: dict[str, Callable[[Any], PixelOp]] = {
    "Compose": _compose,
    "Sequential": _compose,
    "RandomApply": _apply,
    "RandomChoice": _choice,
    "RandomOrder": _order,
    "RandomVerticalFlip": _sometimes(pixels.UPSIDE_DOWN),
    "ColorJitter": _jitter,
    "Grayscale": _grayscale,
    "RandomGrayscale": _sometimes(pixels.GRAYSCALE),
    "RandomInvert": _sometimes(pixels.INVERT),
    "RandomSolarize": _sometimes(pixels.SOLARIZE, "threshold"),
    "RandomPosterize": _posterize,
    "RandomAutocontrast": _sometimes(pixels.AUTOCONTRAST),
    "RandomEqualize": _sometimes(pixels.EQUALIZE),
    "RandomAdjustSharpness": _sometimes(pixels.SHARPNESS, "sharpness_factor"),
    "GaussianBlur": _blur,
    "RandomRotation": _rotation,
    "RandomAffine": _affine,
    "RandAugment": _rand_augment,
    "TrivialAugmentWide": _trivial_augment,
    "AutoAugment": _auto_augment,
    "AugMix": _aug_mix,
    "timm.RandAugment": _timm_rand_augment,
}
