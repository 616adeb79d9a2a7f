"""Reads torchvision's crops, resizes, pads and flips as geometry operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..transform_class import BUCKET_CROP, V2, Stop, Transform, is_of, probability, two_numbers
from . import draws
from .draws import Op


def _pair(size: int | Sequence[int]) -> tuple[int, int]:
    """(h, w) from an int or a sequence of one or two."""
    sides = [size] if isinstance(size, int) else list(size)
    if len(sides) not in (1, 2) or not all(isinstance(side, int) and side > 0 for side in sides):
        raise Stop(f"size {size} is not one or two positive integers")
    return sides[0], sides[-1]


def _two(transform: Transform) -> tuple[int, int]:
    """(h, w) of a class whose ``__init__`` turns ``size`` into a pair."""
    size = transform.size
    if not isinstance(size, (list, tuple)) or len(size) != 2:  # changed after construction
        raise Stop(f"{type(transform).__name__} with size={size}; a pair is recognised")
    return _pair(size)


def _range(name: str, value: Iterable[float]) -> tuple[float, float]:
    low, high = two_numbers(value)
    if not 0 < low <= high:
        raise Stop(f"RandomResizedCrop with {name}={tuple(value)}: expected 0 < least <= most")
    return low, high


def _random_resized_crop(transform: Transform) -> Op:
    return draws.RandomResizedCrop(
        _two(transform),
        _range("scale", transform.scale),
        _range("ratio", transform.ratio),
    )


def _resize(transform: Transform) -> Op:
    size, max_size = transform.size, transform.max_size
    if isinstance(size, (list, tuple)) and len(size) == 1:
        size = size[0]
    if size is None or isinstance(size, int):
        if max_size is not None and not isinstance(max_size, int):
            raise Stop(f"Resize with max_size={max_size}; an integer is recognised")
        if max_size is not None and (max_size < 1 or (size is not None and max_size <= size)):
            raise Stop(f"Resize with max_size={max_size} not above size={size}")
        if size is not None:
            _pair(size)
        return draws.Resize(size, max_size)
    if max_size is not None:
        raise Stop("Resize with max_size and two sizes; torchvision refuses it too")
    return draws.Resize(_pair(size))


def _center_crop(transform: Transform) -> Op:
    return draws.CenterCrop(_pair(transform.size))


def _random_crop(transform: Transform) -> Op:
    return draws.RandomCrop(_two(transform), _padding(transform), bool(transform.pad_if_needed))


def _pad(transform: Transform) -> Op:
    padding = transform.padding
    sides = [padding] if isinstance(padding, int) else list(padding)
    return draws.Pad(_four("Pad", sides, padding))


def _padding(transform: Transform) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) of a RandomCrop."""
    padding = transform.padding
    if padding is None:
        return (0, 0, 0, 0)
    sides = [padding] if isinstance(padding, int) else list(padding)
    if is_of(transform, V2, "RandomCrop"):
        left, right, top, bottom = sides  # v2 stores all four, in torch's order
        sides = [left, top, right, bottom]
    return _four("RandomCrop", sides, padding)


def _four(kind: str, sides: list[int], padding: object) -> tuple[int, int, int, int]:
    if not all(isinstance(side, int) and side >= 0 for side in sides):
        raise Stop(f"{kind} with padding={padding}; integers from zero up are recognised")
    if len(sides) not in (1, 2, 4):
        raise Stop(f"{kind} with padding={padding}: expected 1, 2 or 4 integers")
    left, top, right, bottom = (sides * 4)[:4]
    return left, top, right, bottom


def _bucket_crop(transform: Transform) -> Op:
    from .bucket_crops import CropToBucket, RandomCropToBucket

    kind = RandomCropToBucket if transform.random else CropToBucket
    return kind(transform.buckets)


def _flip(transform: Transform) -> Op:
    return draws.RandomHorizontalFlip(probability(transform))


GEOMETRY: dict[str, Callable[[Transform], Op]] = {
    "RandomResizedCrop": _random_resized_crop,
    "timm.RandomResizedCropAndInterpolation": _random_resized_crop,
    "Resize": _resize,
    "CenterCrop": _center_crop,
    "RandomCrop": _random_crop,
    "RandomHorizontalFlip": _flip,
    "Pad": _pad,
    BUCKET_CROP: _bucket_crop,
}
"""Readers by the name of the transform. They raise Stop for settings the engines do not have."""
