"""Sizes of images after their EXIF or XMP orientation is applied.

``datasets.Image`` applies the orientation (``ImageOps.exif_transpose``); torchvision's loaders do
not. The core says which files certainly have none; Pillow is asked once for each of the others.
"""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING

import numpy as np

from ._probe import UNKNOWN, UNREADABLE, readable
from .base import ENCODED, TURNED, Spans

if TYPE_CHECKING:
    from .._native import _core

_ORIENTATION = 0x0112  # the EXIF tag
_MARKS = (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp", b"xmp")  # in PNG files


def size_and_kind(data: bytes) -> tuple[int, int, int]:
    """Width, height and ENCODED or TURNED of an image file; (-1, -1, ENCODED) if it is not one.

    (0, 0, ENCODED) for what ``pixel_limit.py`` refuses now.
    """
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # decoding warns
            with Image.open(io.BytesIO(data)) as image:
                # A PNG may have its orientation after its pixels, and Pillow applies that of a TIFF
                # when it is loaded; for other formats opening has read it.
                marked = image.format == "PNG" and any(mark in data for mark in _MARKS)
                if marked or image.format == "TIFF":
                    image.load()
                width, height = readable(*image.size)
                turn = image.getexif().get(_ORIENTATION)
    except Image.DecompressionBombError:
        return UNKNOWN, UNKNOWN, ENCODED
    except Exception:  # noqa: BLE001 - Pillow raises anything; decoding reports it
        return UNREADABLE, UNREADABLE, ENCODED
    if turn not in range(2, 9) or width == UNREADABLE:
        return width, height, ENCODED
    return (height, width, TURNED) if turn >= 5 else (width, height, TURNED)


def by_core(files: _core.Files | None, spans: Spans, sizes: np.ndarray, threads: int) -> np.ndarray:
    """Fill ``sizes`` (int32 (n, 2)): bool (n,), which images certainly have no orientation.

    Args:
        files: the core's view of the files; None without a core: the result is all False.
        spans: of the images.
        sizes: width and height, written where the result is True.
        threads: of the core.
    """
    from .. import _native

    core = _native.load()
    if core is None or files is None:
        return np.zeros(len(sizes), bool)
    status, turned = np.zeros(len(sizes), np.int32), np.ones(len(sizes), np.uint8)
    found, kinds = np.zeros((len(sizes), 2), np.int32), np.full(len(sizes), ENCODED, np.uint8)
    core.probe(files, spans.file, spans.offset, spans.nbytes, kinds, found, status, threads)
    files.may_be_turned(spans.file, spans.offset, spans.nbytes, turned)
    good: np.ndarray = (status == 0) & (found > 0).all(axis=1) & (turned == 0)
    sizes[good] = found[good]
    return good
