"""Masks, boxes and points, drawn over their image."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from .._transforms.targets.joint import FORMATS, Joint
from .._transforms.targets.moving import stored

if TYPE_CHECKING:
    from PIL import Image

    from ..storage.base import Store

_HUE = 0.618  # steps of the golden ratio: neighbouring numbers have different colours
_COLOURS = [
    tuple(round(255 * level) for level in colorsys.hsv_to_rgb(number * _HUE % 1, 0.9, 0.9))
    for number in range(256)
]


def as_stored(
    image: Image.Image, joint: Joint | None, store: Store, record: int, *, line: int = 1
) -> Image.Image:
    """``image``, which is a record's, with that record's fields of ``joint`` over it, if any.

    Raises DataError if a field is damaged.
    """
    if joint is None:
        return image
    return drawn(image, joint, stored(joint, store, record, image.size), line=line)


def drawn(
    image: Image.Image, joint: Joint, values: Mapping[str, torch.Tensor], *, line: int = 1
) -> Image.Image:
    """A copy of ``image``, RGB, with the fields of ``joint`` over it.

    Masks are see-through, except where they are 0; boxes are outlines, points small squares.
    ``values`` are one sample's: a mask (h, w) or (1, h, w), boxes (k, 4), points (..., 2).
    ``line`` is the least width of an outline in pixels, for an image that is scaled down later.
    """
    from PIL import Image, ImageDraw
    from torchvision.ops import box_convert

    levels = np.array(image)
    for name, _ in joint.named("mask"):
        numbers = values[name].squeeze(0).cpu().numpy().astype(np.int64)
        colours = np.array(_COLOURS, np.uint16)[numbers & 255]
        mixed = ((levels + colours) // 2).astype(np.uint8)
        levels = np.where((numbers == 0)[..., None], levels, mixed)
    image = Image.fromarray(levels)
    draw = ImageDraw.Draw(image)
    width = max(line, max(image.size) // 200)
    for number, (name, kind) in enumerate(joint.kinds):
        if kind in FORMATS:
            corners = box_convert(values[name].reshape(-1, 4).double(), kind, "xyxy").round()
            for left, top, right, bottom in corners.tolist():
                if right > left and bottom > top:
                    draw.rectangle(
                        (left, top, right - 1, bottom - 1), outline=_COLOURS[number], width=width
                    )
        elif kind == "points":
            for x, y in values[name].reshape(-1, 2).tolist():
                draw.rectangle((x - width, y - width, x + width, y + width), fill=_COLOURS[number])
    return image
