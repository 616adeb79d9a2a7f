"""One image with Pillow: the reference that the native core equals, bit for bit."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

from .._base import pixel_limit
from .._transforms.geometry.draws import Geometry
from .._transforms.pixels.erasing import erase
from .._transforms.plan import Plan
from .._transforms.sample_params import SampleParams
from ..errors import DataError, DecodeError
from . import pixels
from .base import Where
from .cache.prefix import Placed
from .tensors import Mix

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
# Pillow runs other programs for these (Ghostscript), which no training set is worth.
_REFUSED = frozenset({"EPS", "WMF"})


class Decoded(NamedTuple):
    """An RGB image.

    Attributes:
        image: the pixels.
        size: width and height of the file's image.
        scale: 2, 4 or 8 where a JPEG was decoded at 1 / ``scale`` of its size; else 1.
    """

    image: Image.Image
    size: tuple[int, int]
    scale: int = 1


def decode(
    data: bytes | bytearray | memoryview,
    *,
    path: str | None = None,
    record: int | None = None,
    offset: int | None = None,
) -> Image.Image:
    """An image file as an RGB image, as torchvision's ``pil_loader`` reads it.

    The arguments and errors are ``decode_scaled``'s.
    """
    return decode_scaled(data, path=path, record=record, offset=offset).image


def decode_scaled(
    data: bytes | bytearray | memoryview,
    scale: int = 1,
    *,
    upright: bool = False,
    path: str | None = None,
    record: int | None = None,
    offset: int | None = None,
) -> Decoded:
    """An image file as an RGB image; a JPEG at 1 / ``scale`` of its size, rounded up.

    EXIF orientation is ignored unless ``upright``. Of several frames the first is taken.

    Args:
        data: the whole file.
        scale: 1, 2, 4 or 8; no side may be shorter.
        upright: turn the image, and so its size, as EXIF says; then it is not scaled.
        path, record, offset: where it came from, for errors.

    Raises:
        DecodeError: not an image, truncated, damaged, or a decompression bomb, as
            ``pixel_limit.py`` says.
    """
    where: Where = {"path": path, "record": record, "offset": offset}
    try:
        with Image.open(io.BytesIO(data)) as image:
            width, height = image.size
            if image.format in _REFUSED:
                raise DecodeError(f"expected a raster image, got {image.format}", **where)
            if upright:
                turned = ImageOps.exif_transpose(image).convert("RGB")
                return Decoded(turned, turned.size)
            if scale > 1 and isinstance(image, JpegImageFile):
                # Pillow takes the largest of 8, 4, 2 and 1 that leaves no side shorter than these.
                image.draft(None, (max(1, width // scale), max(1, height // scale)))
            else:
                scale = 1
            return Decoded(image.convert("RGB"), (width, height), scale)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DecodeError(pixel_limit.REFUSED.format(error=error), **where) from error
    except DataError:
        raise
    except Exception as error:  # Pillow's plugins raise whatever a damaged file makes them raise
        reason = (
            str(error) or type(error).__name__
            if not isinstance(error, UnidentifiedImageError)
            else ("not an image in a format that Pillow knows")
        )
        raise DecodeError(
            f"Pillow cannot decode this image of {len(data)} bytes: {reason}", **where
        ) from error


def from_pixels(
    data: bytes | bytearray | memoryview,
    size: tuple[int, int],
    *,
    path: str | None = None,
    record: int | None = None,
    offset: int | None = None,
) -> Image.Image:
    """An RGB image of raw uint8 pixels, HWC. ``size`` is (width, height).

    Raises DecodeError where the number of bytes is not 3 x width x height, and for a decompression
    bomb, as ``pixel_limit.py`` says.
    """
    where: Where = {"path": path, "record": record, "offset": offset}
    width, height = size
    if width < 1 or height < 1 or len(data) != 3 * width * height:
        raise DecodeError(
            f"expected {width}x{height} RGB pixels in {3 * width * height} bytes, "
            f"got {len(data)} bytes",
            **where,
        )
    try:
        pixel_limit.check(width, height)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DecodeError(pixel_limit.REFUSED.format(error=error), **where) from error
    return Image.frombytes("RGB", (width, height), bytes(data))


def fill(
    image: Image.Image,
    i: int,
    geometry: Geometry,
    plan: Plan,
    out: np.ndarray,
    params: SampleParams | None = None,
    scale: int = 1,
) -> None:
    """Write sample ``i`` of a batch: box, resize, window, flip, other operations, table.

    Args:
        image: the whole decoded image, RGB, at 1 / ``scale`` of its size.
        i: the sample's place in ``geometry``, ``params`` and ``out``.
        out: (n, channels, out_h, out_w) of dtype ``plan.stored``, any strides.
        params: what was drawn with ``geometry``.
        scale: 1, 2, 4 or 8; the geometry is of the whole size.

    Raises:
        DataError: the image is smaller than the geometry was drawn for.
    """
    x, y, w, h = geometry.box[i].tolist()
    if scale == 1 and (x + w > image.width or y + h > image.height):
        raise DecodeError(
            f"expected an image that holds the box {w}x{h} at ({x}, {y}), "
            f"got {image.width}x{image.height} pixels: was the file replaced?"
        )
    frame = [geometry.box[i], geometry.resized[i], geometry.window[i], geometry.flip[i : i + 1]]
    staged = params is not None and len(params.settings) > 0
    size = params.first_size[i] if params and staged else [geometry.out_w, geometry.out_h]
    first = [*np.concatenate(frame).tolist(), *map(int, size)]
    levels = _frame(image, first, plan.filter, plan.fill, scale)
    if params is not None and staged:
        levels = _stages(levels, i, params)
    for channel in range(out.shape[1]):
        level = levels[:, :, channel]
        out[i, channel] = level if plan.lut is None else plan.lut[channel][level]
    if params is not None and plan.erasing:
        erase(out[i], params.boxes[i], params.keys[i], plan.erasing)


def _stages(levels: np.ndarray, i: int, params: SampleParams) -> np.ndarray:
    """What the parameters make of the first frame."""
    at = 0
    for frame, (count, filter, *colour) in zip(
        params.frames[i].tolist(), params.settings.tolist(), strict=True
    ):
        image = Image.fromarray(levels)
        mix = Mix()
        for code, values in zip(
            params.codes[i, at : at + count].tolist(), params.values[i, at : at + count].tolist()
        ):
            image = pixels.apply(image, code, values, mix)
        at += count
        levels = _frame(image, frame, filter, colour)
    return levels


def _frame(
    image: Image.Image, frame: list[int], filter: int, colour: Sequence[int], scale: int = 1
) -> np.ndarray:
    """uint8 (h, w, 3): a frame as ``SampleParams.frames`` has them."""
    x, y, w, h, resized_w, resized_h, left, top, flip, width, height = frame
    if scale > 1:
        # Crop to whole pixels first; the resize then takes exactly the box.
        x0, y0 = x // scale, y // scale
        image = image.crop((x0, y0, -(-(x + w) // scale), -(-(y + h) // scale)))
        box = x / scale - x0, y / scale - y0, (x + w) / scale - x0, (y + h) / scale - y0
        image = image.resize((resized_w, resized_h), _FILTERS[filter], box)
    elif (w, h) != image.size:
        image = image.crop((x, y, x + w, y + h))
    if (resized_w, resized_h) != image.size:
        x0, x1 = (min(max(x, 0), resized_w) for x in (left, left + width))
        y0, y1 = (min(max(y, 0), resized_h) for y in (top, top + height))
        strips = resized_w * resized_h > _WHOLE and resized_h >= image.height
        if strips and x0 < x1 and y0 < y1:
            image = _part_of_resized(image, (resized_w, resized_h), filter, (x0, y0, x1, y1))
            left, top = left - x0, top - y0
        else:
            image = _resized(image, (resized_w, resized_h), filter)
    levels = _window(image, left, top, width, height, colour)
    return np.ascontiguousarray(levels[:, ::-1]) if flip else levels


def _part_of_resized(
    image: Image.Image, size: tuple[int, int], filter: int, box: tuple[int, int, int, int]
) -> Image.Image:
    """The part ``box`` of the image resized to ``size``, without the whole in memory.

    Every version of Pillow, and torch, resize horizontally first where the height does not shrink.
    Then columns do not depend on each other.
    """
    x0, y0, x1, y1 = box
    wide = _resized(image, (size[0], image.height), filter).crop((x0, 0, x1, image.height))
    part = Image.new(image.mode, (x1 - x0, y1 - y0))
    step = max(1, _WHOLE // size[1])
    for x in range(0, wide.width, step):
        strip = wide.crop((x, 0, min(x + step, wide.width), wide.height))
        strip = _resized(strip, (strip.width, size[1]), filter)
        part.paste(strip.crop((0, y0, strip.width, y1)), (x, 0))
    return part


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


def done_before(image: Image.Image, i: int, placed: Placed, plan: Plan) -> Image.Image:
    """What a cache keeps of sample ``i``: the image after the operations that never change."""
    x, y, width, height = placed.window[i].tolist()
    frame = [*placed.box[i].tolist(), *placed.resized[i].tolist(), x, y, 0, width, height]
    return Image.fromarray(_frame(image, frame, plan.filter, plan.fill))


def _window(
    image: Image.Image, left: int, top: int, width: int, height: int, colour: Sequence[int]
) -> np.ndarray:
    """uint8 (height, width, 3): the pixels from (left, top), ``colour`` outside the image."""
    x0, x1 = (min(max(x, 0), image.width) for x in (left, left + width))
    y0, y1 = (min(max(y, 0), image.height) for y in (top, top + height))
    if (x0, y0, x1, y1) == (left, top, left + width, top + height):
        return np.asarray(image.crop((x0, y0, x1, y1)))
    levels = np.empty((height, width, 3), np.uint8)
    levels[:] = colour
    if x0 < x1 and y0 < y1:
        part = np.asarray(image.crop((x0, y0, x1, y1)))
        levels[y0 - top : y1 - top, x0 - left : x1 - left] = part
    return levels
