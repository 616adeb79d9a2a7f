"""Which class of torchvision, torch or timm a transform is, and the settings that many share.

``Stop`` ends the recognition of a transform. Its message says why, to the user.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

Transform: TypeAlias = Any
"""A user's transform: any object. Its attributes are read only after ``kind_of`` told its class.

They have no types even then: a user may have set them to anything since. What reads them checks
them, and ``UNREADABLE`` is what that may raise."""

_PILLOW_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}

V2 = "torchvision.transforms.v2"

_BUCKETS = f"{__package__}.buckets"
BUCKET_CROP = "fastload.BucketCrop"
"""What ``kind_of`` says of fastload's own transform."""

_MODULES = (
    "torchvision.transforms",
    V2,
    "torch.nn",
    "torchvision.transforms._presets",
)
_TIMM = ("timm.data.transforms", "timm.data.random_erasing", "timm.data.auto_augment")

METHODS = (
    "__call__",
    "forward",
    "get_params",
    "make_params",
    "transform",
    "_get_params",
    "_transform",
)
"""What torchvision's and timm's transforms do, by name."""

_THEIRS = ("torchvision.", "torch.", "timm.")

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
    if is_of(transform, _BUCKETS, "BucketCrop"):
        return BUCKET_CROP
    name = type(transform).__name__
    theirs = any(is_of(transform, module, name) for module in _TIMM)
    if not theirs and not any(is_of(transform, module, name) for module in _MODULES):
        raise Stop(f"{name_of(transform)} is not a transform fastload knows")
    why = _changed(transform)
    if why is not None:
        raise Stop(why)
    return f"timm.{name}" if theirs else name


def _changed(transform: object) -> str | None:
    """Why a transform of torchvision, torch or timm may not do what its class does, or None.

    A hook, a replaced method, or a setting that was changed after construction: torchvision may
    keep values derived from its arguments (``_fill`` from ``fill``, ``_log_ratio`` from ``ratio``)
    and then use only those. If only one of the two was changed later, it is unclear which of them
    it will use, so the transform is left to torchvision.
    """
    kind, state = type(transform), vars(transform)
    name = kind.__name__
    if state.get("_forward_hooks") or state.get("_forward_pre_hooks"):
        return f"this {name} has a hook"
    if state.get("_compiled_call_impl") is not None:
        return f"this {name} was compiled, so only torch can run it; leave out compile()"
    for own in state:
        if hasattr(kind, own):
            return f"this {name} has its own {own}, set on the instance"
    for method in METHODS:
        origin = getattr(getattr(kind, method, None), "__module__", None)
        if origin is not None and not f"{origin}.".startswith(_THEIRS):
            return f"the {method} of {name} was replaced by one from {origin}"
    if "_fill" in state and not _agrees(state.get("fill"), state["_fill"]):
        return f"the fill of this {name} was changed after construction"
    if "_log_ratio" in state:
        if state["_log_ratio"].is_meta:
            return f"this {name} was made on the meta device, so its settings have no values"
        if not _is_log(state["_log_ratio"].tolist(), state["ratio"]):
            return f"the ratio of this {name} was changed after construction"
    return None


def _agrees(fill: Any, derived: object) -> bool:
    """Whether ``derived`` is what torchvision's v2 derives from ``fill``."""
    if isinstance(fill, Mapping):
        return bool(derived == fill)
    plain = fill is None or isinstance(fill, (int, float))
    return bool(derived == {"others": fill if plain else [float(level) for level in fill]})


def _is_log(derived: list[float], ratio: Iterable[float]) -> bool:
    """Whether ``derived`` is the logarithm of ``ratio``, up to the rounding of any float dtype."""
    logarithms = [math.log(end) for end in ratio]
    return len(derived) == len(logarithms) and all(
        math.isclose(end, logarithm, rel_tol=1e-5, abs_tol=1e-6)
        for end, logarithm in zip(derived, logarithms, strict=True)
    )


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
