"""Formats and sizes of images from their headers, for stores that have no table of them.

``datasets.Image`` applies the EXIF or XMP orientation of a file (``ImageOps.exif_transpose``);
torchvision's loaders do not. Where sizes are wanted ``upright``, which is after that, the core says
which files certainly have no orientation, and Pillow is asked once for each of the others.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from .. import _native
from .._base.silence import silence
from ..errors import StoreError
from ._read import open_regular, read_records
from .base import ENCODED, TURNED, Spans, Store

if TYPE_CHECKING:
    from .._native import _core

UNKNOWN, UNREADABLE = 0, -1  # in a column of widths
_THREADS = 4  # reading headers of loose files mostly waits for the disk
_LONGEST = 2**31 - 1
_ORIENTATION = 0x0112  # the EXIF tag
_MARKS = (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp", b"xmp")  # in PNG files
_SIGNATURES = (
    (b"\xff\xd8\xff", "jpeg"),
    (b"\x89PNG", "png"),
    (b"BM", "bmp"),
    (b"GIF8", "gif"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"P5", "pgm"),
    (b"P6", "ppm"),
)


def image_format(data: bytes | memoryview) -> str:
    """By the first 12 bytes: jpeg, png, bmp, gif, tiff, pgm, ppm, webp, or other."""
    start = bytes(data[:12])
    if start[:4] == b"RIFF" and start[8:] == b"WEBP":
        return "webp"
    return next((name for magic, name in _SIGNATURES if start.startswith(magic)), "other")


def known_sizes(
    sizes: np.ndarray, indices: np.ndarray, probe: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Rows of ``sizes``, in which ``probe`` fills in those that are UNKNOWN."""
    unknown = indices[sizes[indices, 0] == UNKNOWN]
    if len(unknown):
        unknown = np.sort(unknown)  # np.unique imports numpy.ma when first used: 8 ms and more
        unknown = unknown[np.flatnonzero(np.diff(unknown, prepend=-1))]
        sizes[unknown] = probe(unknown)
    known: np.ndarray = np.maximum(sizes[indices], 0)
    return known


def probe_sizes(store: Store, indices: np.ndarray) -> np.ndarray:
    """Width and height of the records ``indices`` (int64): int32 (n, 2).

    (-1, -1) for records that are not images: decoding such a record says what is wrong.
    """
    sizes = np.full((len(indices), 2), UNREADABLE, np.int32)
    done = np.zeros(len(indices), bool)
    if store.indirect is None:
        files = core_files(*store.file_table(), store.memory())
        done = by_core(files, store.spans(indices), sizes)
    for at in np.flatnonzero(~done).tolist():
        try:
            (data,) = read_records(store, indices[at : at + 1])
        except StoreError:
            continue  # raised again, with the place, when the record is decoded
        sizes[at] = by_pillow(data)[:2]
    return sizes


def core_files(
    paths: bytes, ends: np.ndarray, memory: Mapping[int, np.ndarray]
) -> _core.Files | None:
    """The core's view of files (``Store.file_table``, ``Store.memory``); None without a core."""
    core = _native.load()
    if core is None:
        return None
    mapped = np.zeros(len(ends), np.uint8)
    mapped[list(memory)] = 1
    files: _core.Files = core.Files(paths, ends, mapped, memory=dict(memory))
    return files


def by_core(
    files: _core.Files | None, spans: Spans, sizes: np.ndarray, *, upright: bool = False
) -> np.ndarray:
    """Fill ``sizes`` (int32 (n, 2)): bool (n,), which the core has found; none without ``files``.

    ``upright``: only those of images that certainly have no orientation.
    """
    core, count = _native.load(), len(sizes)
    if core is None or files is None:
        return np.zeros(count, bool)
    status, kinds = np.zeros(count, np.int32), np.full(count, ENCODED, np.uint8)
    probed = np.zeros((count, 2), np.int32)
    core.probe(files, spans.file, spans.offset, spans.nbytes, kinds, probed, status, _THREADS)
    good: np.ndarray = (status == 0) & (probed > 0).all(axis=1)
    if upright:
        turned = np.ones(count, np.uint8)
        files.may_be_turned(spans.file, spans.offset, spans.nbytes, turned)
        good &= turned == 0
    sizes[good] = probed[good]
    return good


def by_pillow(source: str | bytes, *, upright: bool = False) -> tuple[int, int, int]:
    """Width, height and kind of an image file, which ``source`` names or is: ENCODED or TURNED.

    Width and height are UNREADABLE for what is no image, or larger than int32 holds; UNKNOWN for
    what ``pixel_limit.py`` refuses now.
    """
    from PIL import Image

    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(silence())  # decoding warns
            file: BinaryIO
            if isinstance(source, str):
                file, marked = stack.enter_context(open(source, "rb", opener=open_regular)), False
            else:
                file, marked = io.BytesIO(source), upright and any(m in source for m in _MARKS)
            image = stack.enter_context(Image.open(file))
            # A PNG may have its orientation after its pixels, and Pillow applies that of a TIFF
            # when it is loaded; for other formats opening has read it.
            if upright and (image.format == "TIFF" or (marked and image.format == "PNG")):
                image.load()
            width, height = image.size
            turn = image.getexif().get(_ORIENTATION) if upright else None
    except Image.DecompressionBombError:
        return UNKNOWN, UNKNOWN, ENCODED
    except Exception:  # noqa: BLE001 - Pillow raises anything; decoding reports it
        return UNREADABLE, UNREADABLE, ENCODED
    if max(width, height) > _LONGEST:
        return UNREADABLE, UNREADABLE, ENCODED
    if turn is None or turn not in range(2, 9):
        return width, height, ENCODED
    return (height, width, TURNED) if turn >= 5 else (width, height, TURNED)
