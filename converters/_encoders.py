"""Encoders: from an image file or an image to the bytes of a record.

``make_encoder`` builds one from the options of ``pack``; a new encoding is an entry in ``_SAVERS``.
"""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, get_args

import numpy as np

from .. import _native
from ..errors import DecodeError, MissingDependencyError, UsageError
from ..hints import Encoding
from ..storage import DCT, ENCODED, RAW
from ._headers import image_header, opened
from ._resize import Resize

if TYPE_CHECKING:
    from PIL import Image

ENCODINGS: tuple[Encoding, ...] = get_args(Encoding)
QUALITY = 95
"""Of JPEGs, if none is given."""
_ORIENTATION = 0x0112  # the EXIF tag

_T = TypeVar("_T")  # bytes of an image file, or an image


@dataclasses.dataclass(frozen=True)
class Encoded:
    """A record's bytes, their kind (ENCODED, RAW ...), and the image's size in pixels.

    ``kept`` says why they are the file's own bytes despite another wanted encoding.
    """

    data: bytes
    kind: int
    width: int
    height: int
    kept: str | None = None


@dataclasses.dataclass(frozen=True)
class Encoder:
    """Makes records: from the bytes of an image ``file``, or from an ``image``."""

    file: Callable[[bytes], Encoded]
    image: Callable[[Image.Image], Encoded]
    keeps: frozenset[int] = frozenset()  # kinds of records that stay unchanged
    as_is: bool = False  # whether ``file`` keeps all bytes, and looks only at their start and end
    check: bool = False  # whether records that are kept are decoded first


def make_encoder(
    encode: Encoding = "keep",
    *,
    resize: Resize | None = None,
    quality: int | None = None,
    exif: bool = False,
    check: bool = False,
) -> Encoder:
    """The encoder for these options; they are those of ``pack``."""
    if encode not in ENCODINGS:
        raise UsageError(f"encode: expected one of {', '.join(ENCODINGS)}, got {encode!r}")
    if quality is None:
        quality = QUALITY
    elif not isinstance(quality, int) or not 1 <= quality <= 100:
        raise UsageError(f"quality: expected 1 to 100, got {quality!r}")
    if encode == "dct":
        inner: Encoding = "keep" if resize is None else "jpeg"
        plain = make_encoder(inner, resize=resize, quality=quality, exif=exif, check=check)
        if resize is None:  # pixels have no JPEG yet
            plain = dataclasses.replace(plain, image=lambda image: _save_jpeg(image, quality))
        keeps = frozenset({DCT}) if resize is None and not exif else frozenset[int]()
        return Encoder(_dct(plain.file), _dct(plain.image), keeps, check=check)
    if encode == "keep" and resize is not None:
        raise UsageError(
            "encode='keep' keeps the bytes, so it cannot resize: give another encoding (jpeg, dct, "
            "png, bmp, raw), or none, which means jpeg"
        )
    if encode == "keep":

        def keep(data: bytes) -> Encoded:
            if exif:
                return _keep_upright(data, quality, check=check)
            return Encoded(data, ENCODED, *examine(data, check=check))

        keeps = frozenset({RAW} if exif else {ENCODED, RAW, DCT})
        as_is = not exif and not check
        return Encoder(keep, lambda image: _save_png(image, quality), keeps, as_is, check)
    save = _SAVERS[encode]

    def transcode(image: Image.Image) -> Encoded:
        return save(image if resize is None else resize.apply(image), quality)

    as_it_is = frozenset({RAW}) if encode == "raw" and resize is None else frozenset[int]()
    return Encoder(
        lambda data: transcode(_decode(data, exif=exif)), transcode, as_it_is, check=check
    )


def _dct(encode: Callable[[_T], Encoded]) -> Callable[[_T], Encoded]:
    """Turns the JPEGs of ``encode`` into DCT records, without loss; others keep their bytes."""
    core = _native.required("encode='dct' needs the native core")
    if not core.dct_usable():
        raise MissingDependencyError(
            f"encode='dct' needs a libjpeg-turbo whose entropy decoder can be replaced, found "
            f"{core.jpeg_version()}, where the test image comes out wrong or FASTLOAD_NO_DCT_HOOK "
            "is set: such records would be slower here than JPEGs. Link libjpeg-turbo 2.1 to 3.2, "
            "unset FASTLOAD_NO_DCT_HOOK, or pack with encode='keep'"
        )

    def transcode(data: _T) -> Encoded:
        image = encode(data)
        if not image.data.startswith(b"\xff\xd8"):
            return dataclasses.replace(image, kept="not a JPEG")
        try:
            record = core.dct_encode(image.data)  # without the GIL
        except ValueError as error:
            reason = str(error)
            if reason.startswith("libjpeg warned"):  # without numbers, so that it can be counted
                reason = re.sub(r"\b(0x[0-9a-f]+|\d+)\b", "N", reason)
            return dataclasses.replace(image, kept=reason)
        return dataclasses.replace(image, data=record, kind=DCT)

    return transcode


def examine(data: bytes, *, check: bool) -> tuple[int, int]:
    """Width and height of the image file ``data``, which will be kept unchanged.

    Only its header is read, and for a JPEG whether it has an end marker. A JPEG without one is
    decoded, because Pillow decides whether it is truncated. ``check``: every image is decoded.
    """
    size, ends = image_header(data)
    if check or not ends:
        _decode(data, exif=False)
    return size


def _keep_upright(data: bytes, quality: int, *, check: bool) -> Encoded:
    """Keep the bytes unless there is an EXIF orientation; then apply it and encode the image."""
    size = examine(data, check=check)
    with opened(data) as image:
        if image.getexif().get(_ORIENTATION, 1) == 1:
            return Encoded(data, ENCODED, *size)
        lossy = image.format in ("JPEG", "MPO", "WEBP")
    return (_save_jpeg if lossy else _save_png)(_decode(data, exif=True), quality)


def _decode(data: bytes, *, exif: bool) -> Image.Image:
    """The image in a mode of ``plain``."""
    from PIL import ImageOps

    try:
        with opened(data) as image:
            if exif:
                ImageOps.exif_transpose(image, in_place=True)
            image.load()
            decoded = plain(image)
            return image.copy() if decoded is image else decoded
    except DecodeError:
        raise
    except Exception as error:  # Pillow raises anything
        raise DecodeError(f"the image cannot be decoded: {error}") from error


def plain(image: Image.Image) -> Image.Image:
    """``image`` in mode L or RGB, as torchvision's loader converts it; numbers of more than 8 bits
    stay.
    """
    return image if image.mode in ("L", "RGB") or is_deep(image) else image.convert("RGB")


def is_deep(image: Image.Image) -> bool:
    """Whether it is gray with more than 8 bits, which a conversion to RGB clips to white."""
    return image.mode in ("I", "F") or image.mode.startswith("I;")


def _rgb(image: Image.Image) -> Image.Image:
    if is_deep(image):
        raise DecodeError(
            f"gray of more than 8 bits (mode {image.mode}), which this encoding would clip to "
            "white: 'keep' keeps it, and 'png' up to 16 bits"
        )
    return image.convert("RGB")


def _saved(image: Image.Image, format_: str, **options: int) -> Encoded:
    buffer = io.BytesIO()
    image.save(buffer, format_, **options)
    return Encoded(buffer.getvalue(), ENCODED, *image.size)


def _save_jpeg(image: Image.Image, quality: int) -> Encoded:
    return _saved(image if image.mode == "L" else _rgb(image), "JPEG", quality=quality)


def _save_png(image: Image.Image, quality: int) -> Encoded:
    if image.mode == "I":
        deep = np.asarray(image)
        fits = int(deep.min()) >= 0 and int(deep.max()) < 1 << 16
        image = image.convert("I;16") if fits else _rgb(image)
    return _saved(_rgb(image) if image.mode == "F" else image, "PNG")


def _save_bmp(image: Image.Image, quality: int) -> Encoded:
    return _saved(_rgb(image), "BMP")


def _save_raw(image: Image.Image, quality: int) -> Encoded:
    return Encoded(_rgb(image).tobytes(), RAW, *image.size)


_SAVERS: dict[str, Callable[[Image.Image, int], Encoded]] = {
    "jpeg": _save_jpeg,
    "png": _save_png,
    "bmp": _save_bmp,
    "raw": _save_raw,
}
