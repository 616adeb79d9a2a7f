"""What was done to a transform that its type does not tell: hooks, methods, settings set later.

A transform of torchvision may keep what it made of its arguments beside them (``_fill``,
``_log_ratio``), and then works with that alone. Where somebody has set one of the two since, no
reader could say which of them counts in the next version.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

THEIRS = ("torchvision.", "torch.", "timm.")
METHODS = ("__call__", "forward", "get_params", "make_params", "transform")


def changed(transform: Any) -> str | None:
    """What was changed about a transform whose type is torchvision's, torch's or timm's, in words.

    None: nothing.
    """
    kind, state = type(transform), vars(transform)
    name = kind.__name__
    if state.get("_forward_hooks") or state.get("_forward_pre_hooks"):
        return f"this {name} has a hook"
    if state.get("_compiled_call_impl") is not None:
        return f"this {name} was compiled, for torch to run; the engines read it without compile()"
    for own in state:
        if hasattr(kind, own):
            return f"this {name} has a {own} of its own"
    for method in METHODS:
        origin = getattr(getattr(kind, method, None), "__module__", None)
        if origin is not None and not f"{origin}.".startswith(THEIRS):
            return f"{name} has another {method}, of {origin}"
    if "_fill" in state and not _agrees(state.get("fill"), state["_fill"]):
        return f"this {name} has a fill that was set after it was made"
    if "_log_ratio" in state:
        if state["_log_ratio"].is_meta:
            return f"this {name} was made on the meta device, where its settings have no values"
        if not _is_log(state["_log_ratio"].tolist(), state.get("ratio")):
            return f"this {name} has a ratio that was set after it was made"
    return None


def _agrees(fill: Any, kept: Any) -> bool:
    """Whether ``kept`` is what torchvision's v2 makes of ``fill``."""
    if isinstance(fill, Mapping):
        return bool(kept == fill)
    plain = fill is None or isinstance(fill, (int, float))
    return bool(kept == {"others": fill if plain else [float(level) for level in fill]})


def _is_log(kept: list[float], ratio: Any) -> bool:
    """Whether ``kept`` is the logarithm of ``ratio``, by whatever dtype and device it was made."""
    made = [math.log(end) for end in ratio]
    return len(kept) == len(made) and all(
        math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-6)
        for one, other in zip(kept, made, strict=True)
    )
