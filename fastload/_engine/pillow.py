"""One image the Pillow way: the reference that the native core has to equal, bit for bit."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from fastload._geometry import Geometry
from fastload._plan import Plan
from fastload.errors import DataError, DecodeError

# resample.h's Filter -> Pillow's
_FILTERS = {
    1: Image.Resampling.BOX,
    2: Image.Resampling.BILINEAR,
    3: Image.Resampling.HAMMING,
    4: Image.Resampling.BICUBIC,
    5: Image.Resampling.LANCZOS,
}
# Pillow hands these to programs outside (Ghostscript); no training set is worth that.
_REFUSED = frozenset({"EPS", "WMF"})


def decode(
    data: bytes | bytearray | memoryview,
    *,
    path: str | None = None,
    record: int | None = None,
    offset: int | None = None,
) -> Image.Image:
    """An image file as an RGB image, as torchvision's ``pil_loader`` reads it.

    EXIF orientation is left alone; of several frames the first is taken.

    Args:
        data: the whole file.
        path, record, offset: where it came from, for errors.

    Raises:
        DecodeError: not an image, cut short, damaged, or with more pixels than
            ``PIL.Image.MAX_IMAGE_PIXELS`` (a decompression bomb; Pillow itself only warns).
    """
    where: dict[str, Any] = {"path": path, "record": record, "offset": offset}
    try:
        with Image.open(io.BytesIO(data)) as image:
            width, height = image.size
            most = Image.MAX_IMAGE_PIXELS
            if most is not None and width * height > most:
                raise Image.DecompressionBombError(f"{width}x{height} pixels")
            if image.format in _REFUSED:
                raise DecodeError(f"expected a raster image, got {image.format}", **where)
            rgb: Image.Image = image.convert("RGB")
            return rgb
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DecodeError(
            f"refused as a decompression bomb, above PIL.Image.MAX_IMAGE_PIXELS = "
            f"{Image.MAX_IMAGE_PIXELS}: {error}; raise that limit if the image is genuine",
            **where,
        ) from error
    except (DataError, Warning, MemoryError):
        raise
    except Exception as error:  # Pillow's plugins raise whatever a damaged file makes them raise
        reason = (
            str(error)
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

    Raises DecodeError where the number of bytes is not 3 x width x height.
    """
    width, height = size
    if width < 1 or height < 1 or len(data) != 3 * width * height:
        raise DecodeError(
            f"expected {width}x{height} RGB pixels in {3 * width * height} bytes, "
            f"got {len(data)} bytes",
            path=path,
            record=record,
            offset=offset,
        )
    return Image.frombytes("RGB", (width, height), bytes(data))


def fill(image: Image.Image, i: int, geometry: Geometry, plan: Plan, out: npt.NDArray[Any]) -> None:
    """Write sample ``i`` of a batch: box, resize, window, flip, table.

    Args:
        image: the whole decoded image, RGB.
        i: the sample's place in ``geometry`` and ``out``.
        out: (n, 3, out_h, out_w) of dtype ``plan.stored``, any strides.

    Raises:
        DataError: the image is smaller than the geometry was drawn for.
    """
    x, y, w, h = geometry.box[i].tolist()
    if x + w > image.width or y + h > image.height:
        raise DecodeError(
            f"expected an image that holds the box {w}x{h} at ({x}, {y}), "
            f"got {image.width}x{image.height} pixels: was the file replaced?"
        )
    if (w, h) != image.size:
        image = image.crop((x, y, x + w, y + h))
    resized = tuple(geometry.resized[i].tolist())
    if resized != image.size:
        image = image.resize(resized, _FILTERS[plan.filter])
    left, top = geometry.window[i].tolist()
    levels = _window(image, left, top, geometry.out_w, geometry.out_h, plan.fill)
    if geometry.flip[i]:
        levels = levels[:, ::-1]
    for channel in range(3):
        level = levels[:, :, channel]
        out[i, channel] = level if plan.lut is None else plan.lut[channel][level]


def _window(
    image: Image.Image, left: int, top: int, width: int, height: int, colour: tuple[int, int, int]
) -> npt.NDArray[np.uint8]:
    """uint8 (height, width, 3): the pixels from (left, top), ``colour`` where there are none."""
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
