"""Crops of images, resized, cut and mirrored with torch, where they are.

For decoders that only decode. A resize is torch's antialiased one, in float32: bilinear comes
within 1 of 255 of Pillow's, which rounds between its two passes; bicubic differs by more where
Pillow cuts off what overshoots between them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..._transforms.geometry.crop_geometry import Geometry

FILTERS = {2: "bilinear", 4: "bicubic"}
"""Torch's names of Pillow's filters, by resample.h's numbers; it has no other of them."""

_MOST_SHRINK = 32
"""How much smaller an image can get: torch's kernel keeps the weights of a pixel in 48 KiB."""


def can_shrink(geometry: Geometry) -> np.ndarray:
    """Which samples torch can resize on any device, bool (n,)."""
    return np.asarray((geometry.box[:, 2:] <= _MOST_SHRINK * geometry.resized).all(axis=1))


def windows(
    crops: Sequence[torch.Tensor],
    geometry: Geometry,
    which: np.ndarray,
    filter: int | None,
    fill: torch.Tensor,
) -> torch.Tensor:
    """What ``geometry`` says of the samples ``which``: uint8 (n, out_h, out_w, 3).

    On a GPU everything is put into the current stream; the host waits for nothing but the flips'
    way to the device.

    Args:
        crops: the pixels of their boxes, uint8 (h, w, 3), on one device.
        filter: of ``FILTERS``; None: nothing is resized.
        fill: uint8 (3, 1, 1), on that device: where a window reaches outside.
    """
    size = geometry.out_w, geometry.out_h
    places = np.concatenate([geometry.resized, geometry.window], axis=1)[which].tolist()
    made = [
        _window(crop.permute(2, 0, 1), (w, h), (x, y), size, filter, fill)
        for crop, (w, h, x, y) in zip(crops, places, strict=True)
    ]
    images = torch.stack(made)
    flip = geometry.flip[which].astype(bool)
    if flip.any():
        mirrored = torch.from_numpy(flip).to(images.device).view(-1, 1, 1, 1)
        images = torch.where(mirrored, images.flip(3), images)
    if images.dtype != torch.uint8:
        images = images.add_(0.5).clamp_(0, 255).to(torch.uint8)
    return images.permute(0, 2, 3, 1)


def _window(
    image: torch.Tensor,
    resized: tuple[int, int],
    at: tuple[int, int],
    size: tuple[int, int],
    filter: int | None,
    fill: torch.Tensor,
) -> torch.Tensor:
    """One image (3, h, w) as its window: uint8 as it came, or float32 where images are resized."""
    w, h = resized
    if filter is not None:
        image = image.float()
        if image.shape[1:] != (h, w):
            image = torch.nn.functional.interpolate(
                image[None], (h, w), mode=FILTERS[filter], align_corners=False, antialias=True
            )[0]
    (x, y), (out_w, out_h) = at, size
    left, top, right, bottom = max(x, 0), max(y, 0), min(x + out_w, w), min(y + out_h, h)
    inside = image[:, top : max(bottom, top), left : max(right, left)]
    if inside.shape[1:] == (out_h, out_w):
        return inside
    window = fill.to(image.dtype).expand(3, out_h, out_w).clone()
    if inside.numel():
        window[:, top - y : bottom - y, left - x : right - x] = inside
    return window
