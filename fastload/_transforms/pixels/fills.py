"""Reads the fill values of torchvision's paddings and erasings.

Note [Padding on a tensor]
    A crop that pads may come before or after ToTensor and Normalize. A plan applies its table last,
    so its fill is a level. It is found by letting the user's own transform pad the ramp: in each
    channel, the level whose value in the current table equals the padding. If there is no such
    level (mostly for zero after Normalize), the chain is not recognised.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..transform_class import Stop, Transform, two_numbers


def fill_level(kind: str, transform: Transform, ramp: Any) -> tuple[int, int, int]:
    """The level of padding in each channel. See Note [Padding on a tensor]."""
    if getattr(transform, "padding_mode", "constant") != "constant":
        raise Stop(f"{kind} with padding_mode={transform.padding_mode!r}; constant is recognised")
    try:
        padded = _padding(kind, transform)(ramp)
    except Exception as error:  # the user's chain fails in the same way on every padded image
        raise Stop(f"{kind} itself fails: {error}") from error
    if isinstance(padded, torch.Tensor):
        values, table = padded[:, 0, 0], ramp.reshape(len(ramp), 256)
    else:
        values = torch.tensor(padded.getpixel((0, 0)), device="cpu").reshape(-1)
        table = torch.arange(256, device="cpu").expand(len(values), 256)
    equal = table == values.reshape(-1, 1)
    if not bool(equal.any(dim=1).all()):
        raise Stop(
            f"{kind} pads with a value that no pixel can have at that point of the chain; put it "
            "before ToTensor and Normalize"
        )
    red, green, blue = (int(channel.nonzero()[0]) for channel in equal.expand(3, 256))
    return red, green, blue


def mask_fill(kind: str, transform: Transform) -> int:
    """The level of padding in a mask."""
    from torchvision import tv_tensors

    mask = tv_tensors.Mask(torch.zeros((1, 256), dtype=torch.int64, device="cpu"))
    try:
        return int(_padding(kind, transform)(mask)[0, 0])
    except Exception as error:  # the user's chain fails in the same way on every padded mask
        raise Stop(f"{kind} itself fails on masks: {error}") from error


def _padding(kind: str, transform: Transform) -> Any:
    """A transform of the same class that always pads 256 x 1 by one pixel on each side."""
    padded_size = (3, 258)
    if kind == "CenterCrop":
        return type(transform)(padded_size)
    if kind == "Pad":
        return type(transform)(1, fill=transform.fill)
    return type(transform)(padded_size, padding=1, fill=transform.fill)


Rectangle = tuple[float, tuple[float, float], tuple[float, float]]
"""Probability, range of the area, range of height / width."""


def erasing_of(transform: Transform) -> tuple[Rectangle, list[float] | None]:
    """The rectangle of torchvision's RandomErasing, and its values; None: noise."""
    value = transform.value
    rectangle = float(transform.p), two_numbers(transform.scale), two_numbers(transform.ratio)
    if value is None or value == "random":
        return rectangle, None
    return rectangle, [float(v) for v in ([value] if isinstance(value, (int, float)) else value)]


def timm_erasing(transform: Transform) -> tuple[Rectangle, list[float] | None]:
    """As ``erasing_of``, of timm's RandomErasing."""
    if transform.min_count != 1 or transform.max_count != 1 or transform.rand_color:
        raise Stop("timm's RandomErasing with several rectangles or mode='rand'")
    if str(transform.device) != "cpu":
        raise Stop(f"timm's RandomErasing with device={transform.device}; 'cpu' is recognised")
    low, high = np.exp(np.array(transform.log_aspect_ratio)).tolist()
    area = float(transform.min_area), float(transform.max_area)
    rectangle = float(transform.probability), area, (low, high)
    return rectangle, None if transform.per_pixel else [0.0]
