"""Which class of torchvision, torch or timm a transform is, and the settings that many share.

``Stop`` ends the recognition of a transform. Its message says why, to the user.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TypeAlias

from .buckets import BucketCrop
from .override_check import changed

Transform: TypeAlias = Any
"""A user's transform: any object. Its attributes are read only after ``kind_of`` told its class.

They have no types even then: a user may have set them to anything since. What reads them checks
them, and ``UNREADABLE`` is what that may raise."""

_PILLOW_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}

V2 = "torchvision.transforms.v2"

BUCKET_CROP = "fastload.BucketCrop"
"""What ``kind_of`` says of fastload's own transform."""

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
"""The errors that reading a setting of an unexpected type raises: a number instead of a pair, a
name instead of a filter, a tensor without values. torchvision mostly fails on these too, with its
own message."""


class Stop(Exception):
    """The engines cannot run a transform; the message is the reason."""


def name_of(transform: object) -> str:
    """The name of a transform for messages."""
    kind = type(transform)
    return getattr(transform, "__name__", None) or f"{kind.__module__}.{kind.__qualname__}"


def is_of(transform: object, module: str, name: str) -> bool:
    """Whether its type is exactly ``module.name``, from a module that the user has imported."""
    return type(transform) is getattr(sys.modules.get(module), name, None)


def kind_of(transform: object) -> str:
    """The class name of a transform of torchvision or torch.nn; timm's with the prefix "timm.".

    Raises Stop for anything else, but for ``Buckets.crop``.
    """
    if type(transform) is BucketCrop:
        return BUCKET_CROP
    name = type(transform).__name__
    theirs = any(is_of(transform, module, name) for module in _TIMM)
    if not theirs and not any(is_of(transform, module, name) for module in _MODULES):
        raise Stop(f"{name_of(transform)} is not a transform fastload knows")
    why = changed(transform)
    if why is not None:
        raise Stop(why)
    return f"timm.{name}" if theirs else name


def filter_of(transform: Transform) -> str:
    """The name of its interpolation in lower case, whether it was given as a name or a number."""
    chosen = transform.interpolation
    if isinstance(chosen, (list, tuple)):
        raise Stop("an interpolation chosen at random for each image; name one")
    name = _PILLOW_FILTERS.get(chosen) if isinstance(chosen, int) else chosen
    return str(getattr(name, "value", name))


def two_numbers(values: Iterable[float]) -> tuple[float, float]:
    """Two numbers, such as the ends of a range, as floats. Raises for more or fewer."""
    low, high = (float(end) for end in values)
    return low, high


def probability(transform: Transform) -> float:
    """Its ``p``. Raises Stop if that is not a probability."""
    p = transform.p
    if isinstance(p, str) or not 0 <= float(p) <= 1:
        raise Stop(f"{type(transform).__name__} with p={p!r}, which is not a probability")
    return float(p)
