"""What torchvision v2 makes of an image with masks, boxes and points, with the numbers it has."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import v2

import releases
import torchvision_oracle
from fastload._base import philox

COLOURS = ("ColorJitter", "RandomGrayscale", "GaussianBlur", "RandomErasing")


def sample(chain: Any, given: dict[str, Any], index: int, seed: int, epoch: int) -> dict[str, Any]:
    """The user's chain on a dict, each random transform made to draw what ``index`` has.

    Its image is the oracle's of images; all else comes through torchvision's own dispatch.
    """
    image = given["image"]
    steps, position, pixel = [], 0, torchvision_oracle.PIXELS

    def numbers(at: int, count: int) -> list[float]:
        return philox.uniform(seed, epoch, np.array([index]), at, count)[0].tolist()

    for leaf in torchvision_oracle.leaves(chain):
        name = type(leaf).__name__
        if name in COLOURS:
            pixel += name != "RandomErasing"
            continue
        if name == "RandomVerticalFlip":
            steps.append(v2.RandomVerticalFlip(1.0 if numbers(pixel, 1)[0] < leaf.p else 0.0))
            pixel += 1
        elif name in torchvision_oracle.GEOMETRIC:
            steps.append(fixed(leaf, numbers(position, 40)))
            position += 1
        else:
            steps.append(leaf)
            position += name == "SanitizeBoundingBoxes"
    made = v2.Compose(steps)(dict(given))
    plain = [  # sanitising has a position, and does nothing to an image
        v2.Pad(0) if type(leaf) is v2.SanitizeBoundingBoxes else leaf
        for leaf in torchvision_oracle.leaves(chain)
    ]
    made["image"] = torchvision_oracle.sample(v2.Compose(plain), image, index, seed, epoch)
    return {name: plain_tensor(value) for name, value in made.items()}


def plain_tensor(value: Any) -> Any:
    return value.as_subclass(torch.Tensor) if isinstance(value, torch.Tensor) else value


def fixed(leaf: Any, u: list[float]) -> Any:
    """A transform of geometry that draws the numbers ``u``."""
    name = type(leaf).__name__
    if name == "RandomHorizontalFlip":
        return v2.RandomHorizontalFlip(1.0 if u[0] < leaf.p else 0.0)
    if name not in ("RandomResizedCrop", "RandomCrop"):
        return leaf
    drawn = copy.copy(leaf)

    def parameters(inputs: list[Any]) -> dict[str, Any]:
        (picture,) = [value for value in inputs if isinstance(value, Image.Image)]
        if name == "RandomResizedCrop":
            box = torchvision_oracle.resized_crop_box(picture.size, leaf.scale, leaf.ratio, u)
            return dict(zip(("top", "left", "height", "width"), box, strict=True))
        found = getattr(type(leaf), releases.MAKE_PARAMS)(leaf, inputs)
        left, top, right, bottom = found["padding"]
        width, height = picture.width + left + right, picture.height + top + bottom
        found["left"] = int(u[0] * (width - found["width"] + 1))
        found["top"] = int(u[1] * (height - found["height"] + 1))
        found["needs_crop"] = True
        return found

    setattr(drawn, releases.MAKE_PARAMS, parameters)
    return drawn
