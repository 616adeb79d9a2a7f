"""What padding and erasing put into an image, read out of torchvision's transforms.

Note [Padding on a tensor]
    A crop that pads may come before or after ToTensor and Normalize. A plan applies its table last,
    so its fill is a level. Which one is found out by letting the user's own transform pad the ramp:
    the level whose value in the table so far is the value that came out, in each channel. Where
    there is none (zero after Normalize, mostly), the chain is not recognised.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .augmentations import Stop


def fill_level(kind: str, transform: Any, ramp: Any) -> tuple[int, int, int]:
    """The level of each channel that padding has. See Note [Padding on a tensor]."""
    if getattr(transform, "padding_mode", "constant") != "constant":
        raise Stop(f"{kind} with padding_mode={transform.padding_mode!r}; constant is recognised")
    try:
        padded = _padding(kind, transform)(ramp)
    except Exception as error:  # the user's own chain fails so on every image that is padded
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


def mask_fill(kind: str, transform: Any) -> int:
    """The level that padding has in a mask."""
    from torchvision import tv_tensors

    mask = tv_tensors.Mask(torch.zeros((1, 256), dtype=torch.int64, device="cpu"))
    try:
        return int(_padding(kind, transform)(mask)[0, 0])
    except Exception as error:  # the user's own chain fails so on every mask that is padded
        raise Stop(f"{kind} itself fails on masks: {error}") from error


def _padding(kind: str, transform: Any) -> Any:
    """The same transform, putting one pixel around 256 x 1: nothing is left to chance."""
    padded_size = (3, 258)
    if kind == "CenterCrop":
        return type(transform)(padded_size)
    if kind == "Pad":
        return type(transform)(1, fill=transform.fill)
    return type(transform)(padded_size, padding=1, fill=transform.fill)


def _ends(values: Any) -> tuple[float, float]:
    low, high = (float(end) for end in values)
    return low, high


Rectangle = tuple[float, tuple[float, float], tuple[float, float]]
"""Probability, range of the area, range of height / width."""


def erasing_of(transform: Any) -> tuple[Rectangle, list[float] | None]:
    """What torchvision's RandomErasing erases, and with which values; None: with noise."""
    value = transform.value
    rectangle = float(transform.p), _ends(transform.scale), _ends(transform.ratio)
    if value is None or value == "random":
        return rectangle, None
    return rectangle, [float(v) for v in ([value] if isinstance(value, (int, float)) else value)]


def timm_erasing(transform: Any) -> tuple[Rectangle, list[float] | None]:
    """The same for timm's, which is called on single samples too."""
    if transform.min_count != 1 or transform.max_count != 1 or transform.rand_color:
        raise Stop("timm's RandomErasing with several rectangles or mode='rand'")
    if str(transform.device) != "cpu":
        raise Stop(f"timm's RandomErasing with device={transform.device}; 'cpu' is recognised")
    low, high = np.exp(np.array(transform.log_aspect_ratio)).tolist()
    area = float(transform.min_area), float(transform.max_area)
    rectangle = float(transform.probability), area, (low, high)
    return rectangle, None if transform.per_pixel else [0.0]
