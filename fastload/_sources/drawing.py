"""What random order and augmentation are made of, checked where a loader or dataset is made."""

from __future__ import annotations

import operator
from typing import Any

from ..errors import UsageError


def check_drawing(seed: Any, transform: Any, target_transform: Any) -> None:
    """Raise UsageError for a seed or transforms that cannot be: in a worker it would be late."""
    if seed is not None and not is_whole(seed):
        raise UsageError(f"seed: expected an integer or None, got {seed!r}")
    several = isinstance(transform, (list, tuple))
    if several and not transform:
        raise UsageError("transform: expected a transform for each view, got an empty list")
    for one in transform if several else [transform]:
        if one is not None and not callable(one):
            raise UsageError(
                "transform: expected something to call with an image, such as "
                f"torchvision.transforms.ToTensor(), or a list of such, got {one!r}"
            )
    if target_transform is not None and not callable(target_transform):
        raise UsageError(
            f"target_transform: expected something to call with a label, got {target_transform!r}"
        )


def is_whole(value: Any) -> bool:
    """Whether ``value`` is an integer, of whichever type."""
    try:
        operator.index(value)
    except TypeError:
        return False
    return True
