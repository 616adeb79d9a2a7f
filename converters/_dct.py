"""``encode="dct"``: JPEGs as DCT records; other files keep their bytes, with a reason."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

from .. import _native
from ..errors import MissingDependencyError
from ..storage import DCT
from ._encoders import Encoded

_T = TypeVar("_T")  # bytes of an image file, or an image


def dct_encoder(encode: Callable[[_T], Encoded]) -> Callable[[_T], Encoded]:
    """An encoder that turns the JPEGs of ``encode`` into DCT records, without loss."""
    core = _writing_core()

    def transcode(data: _T) -> Encoded:
        image = encode(data)
        if not image.data.startswith(b"\xff\xd8"):
            return dataclasses.replace(image, kept="not a JPEG")
        try:
            record = core.dct_encode(image.data)  # without the GIL
        except ValueError as error:
            return dataclasses.replace(image, kept=_reason(str(error)))
        return dataclasses.replace(image, data=record, kind=DCT)

    return transcode


def _writing_core() -> ModuleType:
    core = _native.required("encode='dct' needs the native core")
    if not core.dct_usable():
        raise MissingDependencyError(
            f"encode='dct' needs a libjpeg-turbo whose entropy decoder can be replaced, found "
            f"{core.jpeg_version()}, where the test image comes out wrong or FASTLOAD_NO_DCT_HOOK "
            "is set: such records would be slower here than JPEGs. Link libjpeg-turbo 2.1 to 3.2, "
            "unset FASTLOAD_NO_DCT_HOOK, or pack with encode='keep'"
        )
    return core


def _reason(message: str) -> str:
    """``message`` without the numbers in libjpeg's warnings, so that reasons can be counted."""
    if not message.startswith("libjpeg warned"):
        return message
    return re.sub(r"\b(0x[0-9a-f]+|\d+)\b", "N", message)
