"""Reads affine maps and augmentation policies of torchvision and timm as operations on pixels."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..transform_class import V2, Stop, Transform, filter_of, is_of, two_numbers
from . import augmix, timm_policy
from .affine import Look, RandomAffine, RandomRotation
from .pixel_op import PixelOp
from .policies import NAMES, Policies, Step, Uniform, reach


def _look(transform: Transform) -> Look:
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
        raise Stop(
            f"{type(transform).__name__} with fill={fill}; one or three levels are recognised"
        )
    red, green, blue = (int(level) for level in (list(levels) * 3)[:3])
    if not 0 <= min(red, green, blue) <= max(red, green, blue) <= 255:
        raise Stop(f"{type(transform).__name__} with fill={fill}; levels are from 0 to 255")
    newer = is_of(transform, V2, type(transform).__name__)
    return Look(filters[name], (red, green, blue), newer)


def _center(transform: Transform) -> tuple[float, float] | None:
    return None if transform.center is None else two_numbers(transform.center)


def _rotation(transform: Transform) -> PixelOp:
    return RandomRotation(
        two_numbers(transform.degrees), _center(transform), _look(transform), bool(transform.expand)
    )


def _affine(transform: Transform) -> PixelOp:
    shear = [float(degrees) for degrees in transform.shear or (0.0, 0.0)]
    x0, x1, y0, y1 = (shear + [0.0, 0.0])[:4]
    return RandomAffine(
        two_numbers(transform.degrees),
        None if transform.translate is None else two_numbers(transform.translate),
        None if transform.scale is None else two_numbers(transform.scale),
        (x0, x1, y0, y1),
        _center(transform),
        _look(transform),
    )


def _steps(transform: Transform, bins: int) -> dict[str, Step]:
    """The operations of a policy, with their magnitudes."""
    kind = type(transform).__name__
    mixes = kind == "AugMix"
    sides = (331, 200), (662, 400)  # (h, w): a translation may depend on them
    if hasattr(transform, "_AUGMENTATION_SPACE"):  # v2
        space = transform._AUGMENTATION_SPACE
        if mixes and not transform.all_ops:
            space = transform._PARTIAL_AUGMENTATION_SPACE
        small, large = (
            {name: (make(bins, *side), signed) for name, (make, signed) in space.items()}
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
                table = tuple(255.0 * m for m in table)  # v2 gives fractions of the largest level
            if name == "Posterize" and not all((not mixes) <= bits <= 8 for bits in table):
                raise Stop(f"{kind} with Posterize to {min(table):g} bits")
        steps[name] = Step(name, table, bool(signed), share, bool(share) and mixes)
    return steps


def _rand_augment(transform: Transform) -> PixelOp:
    bins, magnitude, count = transform.num_magnitude_bins, transform.magnitude, transform.num_ops
    if not isinstance(magnitude, int) or not 0 <= magnitude < bins:
        raise Stop(f"RandAugment with magnitude={magnitude} of {bins} bins")
    if not isinstance(count, int) or count < 0:
        raise Stop(f"RandAugment with num_ops={count}")
    steps = tuple(_steps(transform, bins).values())
    return Uniform(steps, count, (magnitude, 1), _look(transform))


def _trivial_augment(transform: Transform) -> PixelOp:
    bins = transform.num_magnitude_bins
    return Uniform(tuple(_steps(transform, bins).values()), 1, (0, bins), _look(transform))


def _auto_augment(transform: Transform) -> PixelOp:
    steps = _steps(transform, 10)
    policies = transform._policies if hasattr(transform, "_policies") else transform.policies
    read = []
    for policy in policies:
        if len(policy) != 2 or not all(name in steps for name, _, _ in policy):
            raise Stop("AutoAugment with a custom policy")
        read.append(tuple((steps[name], float(p), bin or 0) for name, p, bin in policy))
    return Policies(tuple(read), _look(transform))


def _aug_mix(transform: Transform) -> PixelOp:
    chains, depth, alpha = transform.mixture_width, transform.chain_depth, float(transform.alpha)
    whole = isinstance(chains, int) and isinstance(depth, int)
    if not whole or not 1 <= chains <= 64 or depth > 64 or not 0.01 <= alpha <= 1e6:
        raise Stop(
            f"AugMix with mixture_width={chains}, chain_depth={depth}, alpha={alpha:g}; "
            "mixture_width from 1 to 64, chain_depth up to 64 and alpha from 0.01 to 1e6 are "
            "recognised"
        )
    look = _look(transform)
    if filter_of(transform) not in ("nearest", "bilinear"):
        raise Stop(
            f"AugMix with interpolation {filter_of(transform)!r}, which torchvision refuses on "
            "tensors"
        )
    if not 1 <= transform.severity <= 10:
        raise Stop(f"AugMix with severity={transform.severity}; torchvision takes 1 to 10")
    if augmix.grid_rounding() is None:
        raise Stop("AugMix, because torch multiplies matrices with an unknown rounding here")
    fill = transform.fill
    levels = [] if fill is None else [fill] if isinstance(fill, (int, float)) else fill
    if any(level != int(level) for level in levels):
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


READERS: dict[str, Callable[[Transform], PixelOp]] = {
    "RandomRotation": _rotation,
    "RandomAffine": _affine,
    "RandAugment": _rand_augment,
    "TrivialAugmentWide": _trivial_augment,
    "AutoAugment": _auto_augment,
    "AugMix": _aug_mix,
    "timm.RandAugment": timm_policy.read,
}
