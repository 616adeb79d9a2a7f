"""Detects modified transforms: hooks, replaced methods, settings changed after construction.

A torchvision transform may keep values derived from its arguments (``_fill`` from ``fill``,
``_log_ratio`` from ``ratio``) and then use only those. If only one of the two was changed later, it
is unclear which of them torchvision will use, so the transform is left to torchvision.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

THEIRS = ("torchvision.", "torch.", "timm.")
METHODS = (
    "__call__",
    "forward",
    "get_params",
    "make_params",
    "transform",
    "_get_params",
    "_transform",
)


def changed(transform: object) -> str | None:
    """Why a transform of torchvision, torch or timm may not do what its class does, or None."""
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
        if origin is not None and not f"{origin}.".startswith(THEIRS):
            return f"the {method} of {name} was replaced by one from {origin}"
    if "_fill" in state and not _agrees(state.get("fill"), state["_fill"]):
        return f"the fill of this {name} was changed after construction"
    if "_log_ratio" in state:
        if state["_log_ratio"].is_meta:
            return f"this {name} was made on the meta device, so its settings have no values"
        if not _is_log(state["_log_ratio"].tolist(), state["ratio"]):
            return f"the ratio of this {name} was changed after construction"
    return None


def _agrees(fill: Any, kept: object) -> bool:
    """Whether ``kept`` is what torchvision's v2 derives from ``fill``."""
    if isinstance(fill, Mapping):
        return bool(kept == fill)
    plain = fill is None or isinstance(fill, (int, float))
    return bool(kept == {"others": fill if plain else [float(level) for level in fill]})


def _is_log(kept: list[float], ratio: Iterable[float]) -> bool:
    """Whether ``kept`` is the logarithm of ``ratio``, up to the rounding of any float dtype."""
    made = [math.log(end) for end in ratio]
    return len(kept) == len(made) and all(
        math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-6)
        for one, other in zip(kept, made, strict=True)
    )
