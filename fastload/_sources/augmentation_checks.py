"""Checks of the seed and the transforms, made when a loader or dataset is created."""

from __future__ import annotations

import operator
from typing import SupportsIndex

from ..errors import UsageError

_MOST_EPOCHS = 1 << 62  # they are counted in int64


def check_seed(seed: object) -> None:
    """Raise UsageError for a seed that is neither an integer nor None."""
    if seed is not None and not is_integer(seed):
        raise UsageError(f"seed: expected an integer or None, got {seed!r}")


def check_augmentation(seed: object, transform: object, target_transform: object) -> None:
    """Raise UsageError for an invalid seed or transform, before a worker uses it."""
    check_seed(seed)
    views = transform if isinstance(transform, (list, tuple)) else [transform]
    if not views:
        raise UsageError("transform: expected a transform for each view, got an empty list")
    for view in views:
        if view is not None and not callable(view):
            raise UsageError(
                "transform: expected a callable that takes an image, such as "
                f"torchvision.transforms.ToTensor(), or a list of them, got {view!r}"
            )
        if isinstance(view, type) and view.__module__.startswith("torchvision.transforms."):
            raise UsageError(
                f"transform: expected a transform such as T.{view.__name__}(...), got its class"
            )
    if target_transform is not None and not callable(target_transform):
        raise UsageError(
            f"target_transform: expected a callable that takes a label, got {target_transform!r}"
        )


def epoch_number(epoch: SupportsIndex) -> int:
    """``epoch`` as an int. Raises UsageError for no integer, or one that is too large to count."""
    try:
        number = operator.index(epoch)
    except TypeError as error:
        raise UsageError(f"set_epoch: expected an integer, got {epoch!r}") from error
    if not -_MOST_EPOCHS < number < _MOST_EPOCHS:
        raise UsageError(f"set_epoch: expected an epoch below 2**62, got {number}")
    return number


def is_integer(value: object) -> bool:
    """Whether ``value`` is an integer of any type."""
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True
