"""Size of an image file and whether it has an end, without decoding."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .. import _native
from .._base import pixel_limit
from ..errors import DecodeError

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

_LONGEST = 2**31 - 1  # pixels of a side, in a store
_JPEG, _JPEG_END, _PNG = b"\xff\xd8", b"\xff\xd9", b"\x89PNG"


def image_header(data: bytes) -> tuple[tuple[int, int], bool]:
    """Size of the image file ``data``, and whether it has an end.

    That is width and height in pixels, before any EXIF rotation. Without its end a JPEG may be
    truncated. The core knows one that other bytes follow; for other formats it is True.
    """
    core = _native.load() if data.startswith((_JPEG, _PNG)) else None
    header = None if core is None else core.image_header(data)
    if header is not None:
        size, ends = (header[0], header[1]), header[2]
        with _bombs():
            pixel_limit.check(*size)
    else:
        with opened(data) as image:
            size = image.size
        ends = not data.startswith(_JPEG) or data.endswith(_JPEG_END)
    if max(size) > _LONGEST:
        raise DecodeError(f"expected sides of at most {_LONGEST} pixels, found {max(size)}")
    return size, ends


def opened(data: bytes) -> ImageFile:
    """The image file ``data``, its header read by Pillow. Raises DecodeError."""
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
