"""Images with a side that is too long for the core's resize: Pillow resizes them, step by step.

The core does what is between the steps. A thin strip of 300x1 pixels comes here when its shorter
side is made 224 pixels long.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image

from .. import _native
from ..errors import DecodeError
from .image_engine import PixelEngine
from .kernel import BatchRequest

# resample/resample.h's Filter -> Pillow's
_FILTERS = {
    0: Image.Resampling.NEAREST,
    1: Image.Resampling.BOX,
    2: Image.Resampling.BILINEAR,
    3: Image.Resampling.HAMMING,
    4: Image.Resampling.BICUBIC,
    5: Image.Resampling.LANCZOS,
}
_TORCH_MODES = {6: "bilinear", 7: "bicubic"}
# Pixels of a resized image. Of a larger one (a thin strip, enlarged) only the needed part is made.
_WHOLE = 1 << 24


def fill(engine: PixelEngine, sample: BatchRequest, pixels: np.ndarray) -> None:
    """Fill the one sample of ``sample`` from decoded ``pixels``, uint8 (h, w, 3).

    What a cache would keep of it is made, too, but not kept. Raises DecodeError if the result is
    too long for an operation of the core.
    """
    plan, geometry, params = engine.plan, sample.geometry, sample.params
    image, placed = Image.fromarray(pixels), sample.placed(0)
    if placed is not None:
        x, y, w, h = placed.window[0].tolist()
        frame = [*placed.box[0].tolist(), *placed.resized[0].tolist(), x, y, 0, w, h]
        image = cut(image, frame, plan.filter, plan.fill)
    stages, size = [], [geometry.out_w, geometry.out_h]
    if params is not None and len(params.settings):
        stages, size = params.settings.tolist(), params.first_size[0].tolist()
    box, resized, window = (
        each[0].tolist() for each in (geometry.box, geometry.resized, geometry.window)
    )
    frame = [*box, *resized, *window, int(geometry.flip[0]), *size]
    image, slot = cut(image, frame, plan.filter, plan.fill), 0
    for number, (count, filter, *colour) in enumerate(stages):
        assert params is not None, "stages are parameters"
        codes, values = params.codes[0, slot : slot + count], params.values[0, slot : slot + count]
        pixels = np.array(image)
        _native.required().pixels(pixels, codes, values)
        image = Image.fromarray(pixels)
        image, slot = cut(image, params.frames[0, number].tolist(), filter, colour), slot + count
    if params is not None:
        params = params._replace(settings=params.settings[:0])
    _store(engine, dataclasses.replace(sample, params=params, cache_fill=None), np.array(image))


def _store(engine: PixelEngine, sample: BatchRequest, pixels: np.ndarray) -> None:
    """The table of output values and what is erased."""
    size = np.array([pixels.shape[1::-1]], np.int32)
    nothing = np.zeros_like(size)
    geometry = sample.geometry._replace(
        box=np.concatenate([nothing, size], axis=1),
        resized=size,
        window=nothing,
        flip=np.zeros(1, np.uint8),
    )
    if not engine.of_pixels(dataclasses.replace(sample, sizes=size, geometry=geometry), [pixels]):
        return
    plan = engine.plan
    if plan.erasing:
        raise DecodeError(f"nothing can be erased of an image of {size[0, 0]}x{size[0, 1]} pixels")
    out = sample.memory.view(plan.stored)
    if engine.options.channels_last:
        out = np.moveaxis(out.reshape(*pixels.shape[:2], plan.channels), 2, 0)
    else:
        out = out.reshape(plan.channels, *pixels.shape[:2])
    for channel in range(plan.channels):
        level = pixels[:, :, channel]
        out[channel] = level if plan.lut is None else plan.lut[channel][level]


def cut(
    image: Image.Image, frame: Sequence[int], filter: int, colour: Sequence[int]
) -> Image.Image:
    """What a frame of geometry makes of an RGB image with a side that is too long for the core.

    ``frame`` is as ``SampleParams.frames`` has them: box (x, y, w, h), resized (w, h), window (x,
    y), flip, size (w, h). ``filter`` is as in ``Plan``; pixels outside of the resized box get
    ``colour``.
    """
    x, y, w, h, resized_w, resized_h, left, top, flip, width, height = frame
    if (w, h) != image.size:
        image = image.crop((x, y, x + w, y + h))
    x0, x1 = (min(max(x, 0), resized_w) for x in (left, left + width))
    y0, y1 = (min(max(y, 0), resized_h) for y in (top, top + height))
    whole = Image.new("RGB", (width, height), tuple(colour))
    if x0 < x1 and y0 < y1:
        if (resized_w, resized_h) == image.size:
            piece = image.crop((x0, y0, x1, y1))
        elif resized_w * resized_h > _WHOLE and resized_h >= image.height:
            piece = _piece_of_resized(image, (resized_w, resized_h), filter, (x0, y0, x1, y1))
        else:
            piece = _resized(image, (resized_w, resized_h), filter).crop((x0, y0, x1, y1))
        whole.paste(piece, (x0 - left, y0 - top))
    return whole.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else whole


def _piece_of_resized(
    image: Image.Image, size: tuple[int, int], filter: int, box: tuple[int, int, int, int]
) -> Image.Image:
    """The part ``box`` of the image resized to ``size``, without the whole in memory.

    Every version of Pillow, and torch, resize horizontally first where the height does not shrink.
    Then columns do not depend on each other.
    """
    x0, y0, x1, y1 = box
    wide = _resized(image, (size[0], image.height), filter).crop((x0, 0, x1, image.height))
    piece = Image.new(image.mode, (x1 - x0, y1 - y0))
    step = max(1, _WHOLE // size[1])
    for x in range(0, wide.width, step):
        strip = wide.crop((x, 0, min(x + step, wide.width), wide.height))
        strip = _resized(strip, (strip.width, size[1]), filter)
        piece.paste(strip.crop((0, y0, strip.width, y1)), (x, 0))
    return piece


def _resized(image: Image.Image, size: tuple[int, int], filter: int) -> Image.Image:
    """Resize with Pillow, or as torch resizes uint8 tensors."""
    if filter not in _TORCH_MODES:
        return image.resize(size, _FILTERS[filter])
    levels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    if size != (1, 1):  # torch raises an internal error for contiguous images of this size
        levels = levels.contiguous()
    resized = torch.nn.functional.interpolate(
        levels[None], size[::-1], mode=_TORCH_MODES[filter], antialias=True
    )
    return Image.fromarray(resized[0].permute(1, 2, 0).contiguous().numpy())
