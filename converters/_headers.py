"""Size of an image file and whether it has an end, from a few bytes, without decoding."""

from __future__ import annotations

import contextlib
import io
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .._base import pixel_limit
from ..errors import DecodeError

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

# Frame headers of a JPEG: SOF0 to SOF15 without DHT (C4), JPG (C8) and DAC (CC).
# Source: ITU-T T.81, table B.1.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_LONGEST = 2**31 - 1  # pixels of a side, in a store
_SCAN, _END = 0xDA, b"\xff\xd9"
_PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"


def image_size(data: bytes) -> tuple[int, int]:
    """Width and height of the image file ``data``, in pixels, before any EXIF rotation."""
    size = _jpeg(data) if data[:2] == b"\xff\xd8" else _png(data)
    if size is None:
        with opened(data) as image:
            size = image.size
    else:
        with _bombs():
            pixel_limit.check(*size)
    if max(size) > _LONGEST:
        raise DecodeError(f"expected sides of at most {_LONGEST} pixels, found {max(size)}")
    return size


def opened(data: bytes) -> ImageFile:
    """The image file ``data``, its header read by Pillow. Raises DecodeError as ``image_size``."""
    from PIL import Image

    try:
        with _bombs():
            return Image.open(io.BytesIO(data))
    except DecodeError:
        raise
    except Exception as error:  # Pillow raises anything
        what = "an empty file" if not data else f"{len(data)} bytes beginning with {data[:8]!r}"
        raise DecodeError(f"expected an image, found {what} ({type(error).__name__})") from error


@contextlib.contextmanager
def _bombs() -> Iterator[None]:
    from PIL import Image

    try:
        yield
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DecodeError(pixel_limit.REFUSED.format(error=error)) from error


def jpeg_ends(data: bytes) -> bool:
    """Whether a JPEG file has an end marker, maybe with other bytes after it.

    Without one it may be truncated. Same result as the core's function of this name.
    """
    if data.endswith(_END):
        return True
    *_, (marker, at) = _segments(data)
    return marker == _SCAN and data.rfind(_END, at) >= 0


def _jpeg(data: bytes) -> tuple[int, int] | None:
    """Size from the frame header; None if there is none, or if it has no height."""
    for marker, at in _segments(data):
        if marker in _FRAMES and at + 9 <= len(data):
            height, width = struct.unpack_from(">HH", data, at + 5)
            return (width, height) if width and height else None
    return None


def _segments(data: bytes) -> Iterator[tuple[int, int]]:
    """(marker, offset) of the segments of a JPEG up to its first scan; at last (0, end)."""
    at, end = 2, len(data)
    while at + 4 <= end and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
        elif 0xD0 <= marker <= 0xD8 or marker == 0x01:  # markers without a length
            at += 2
        else:
            yield marker, at
            if marker in (_SCAN, 0xD9):
                return
            at += 2 + (data[at + 2] << 8 | data[at + 3])
    yield 0, end


def _png(data: bytes) -> tuple[int, int] | None:
    if not data.startswith(_PNG) or len(data) < 24:
        return None
    width, height = struct.unpack_from(">II", data, 16)
    return (width, height) if width and height else None
