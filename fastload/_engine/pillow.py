"""Images by Pillow: what the core leaves to it, and single records for those who want an image.

Without torch, which takes a second to be imported: commands use it, too.
"""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from typing_extensions import Unpack

from .. import _native
from .._base import pixel_limit
from ..errors import ChecksumError, DataError, DecodeError
from ..storage._crc import crc32c
from ..storage._read import REPLACED, Where, read_records, where_of
from ..storage.base import DCT, RAW, TURNED, Store

# Pillow runs other programs for these (Ghostscript), which no training set is worth.
_REFUSED = frozenset({"EPS", "WMF"})


def decode(
    data: bytes | bytearray | memoryview, *, upright: bool = False, **where: Unpack[Where]
) -> Image.Image:
    """An image file as an RGB image, as torchvision's ``pil_loader`` reads it.

    EXIF orientation is ignored unless ``upright``. Of several frames the first is taken. ``where``
    it came from is for errors.

    Raises DecodeError if it is no image, truncated, damaged, or a decompression bomb, as
    ``pixel_limit.py`` says.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.format in _REFUSED:
                raise DecodeError(f"expected a raster image, got {image.format}", **where)
            return (ImageOps.exif_transpose(image) if upright else image).convert("RGB")
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DecodeError(pixel_limit.REFUSED.format(error=error), **where) from error
    except DataError:
        raise
    except Exception as error:  # Pillow's plugins raise whatever a damaged file makes them raise
        reason = str(error) or type(error).__name__
        if isinstance(error, UnidentifiedImageError):
            reason = "not an image in a format that Pillow knows"
        raise DecodeError(
            f"Pillow cannot decode this image of {len(data)} bytes: {reason}", **where
        ) from error


def from_pixels(
    data: bytes | bytearray | memoryview, size: tuple[int, int], **where: Unpack[Where]
) -> Image.Image:
    """An RGB image of raw uint8 pixels, HWC. ``size`` is (width, height).

    Raises DecodeError where the number of bytes is not 3 x width x height, and for a decompression
    bomb, as ``pixel_limit.py`` says.
    """
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


def decoded(data: bytes, kind: int, size: tuple[int, int], **where: Unpack[Where]) -> Image.Image:
    """The image of a record's bytes, RGB, which must have ``size`` (width, height).

    ``kind`` is as in ``Store.kinds``; the other arguments are those of ``decode``.

    Raises:
        DecodeError: it cannot be decoded, or has another size.
        MissingDependencyError: it is a DCT record, and there is no core.
    """
    image = image_of(data, kind, size, where)
    if image.size != size:
        raise DecodeError(
            f"the image is not {size[0]}x{size[1]} pixels any more but "
            f"{image.width}x{image.height}: {REPLACED}",
            **where,
        )
    return image


def image_of(data: bytes, kind: int, size: tuple[int, int], where: Where) -> Image.Image:
    """As ``decoded``, whatever size the image of an encoded record has."""
    if kind == RAW:
        return from_pixels(data, size, **where)
    data = dct_to_jpeg(data, where) if kind == DCT else data
    return decode(data, upright=kind == TURNED, **where)


def dct_to_jpeg(data: bytes, where: Where) -> bytes:
    """The JPEG file of a DCT record. Raises DecodeError if the record is damaged."""
    core = _native.required("DCT records need the native core")
    try:
        return bytes(core.dct_to_jpeg(data))
    except ValueError as error:
        raise DecodeError(f"the DCT record is damaged: {error}", **where) from error


def decode_record(store: Store, record: int, *, check: bool = True) -> Image.Image:
    """The image of one record, RGB. ``check``: verify its checksum, if the store has one.

    Raises:
        DecodeError: it cannot be decoded.
        ChecksumError: its bytes are not those that were written.
        StoreError: it cannot be read.
        MissingDependencyError: it is a DCT record, and there is no core.
    """
    records = np.array([record], np.int64)
    (data,) = read_records(store, records)
    where = where_of(store, record)
    checksums = store.checksums(records) if check else None
    if checksums is not None and crc32c(data) != int(checksums[0]):
        raise ChecksumError(
            "the record's bytes changed since it was written: expected CRC32C "
            f"{int(checksums[0]):08x}, got {crc32c(data):08x}",
            **where,
        )
    width, height = store.sizes(records)[0].tolist()
    return image_of(data, int(store.kinds(records)[0]), (width, height), where)
