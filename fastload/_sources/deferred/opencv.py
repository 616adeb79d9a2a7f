"""``cv2.imread`` and ``cv2.imdecode`` by the core, where it gives OpenCV's pixels, bit for bit.

OpenCV gives arrays, so nothing is deferred: the image is decoded there and then, into an array of
the user's own. Everything that is not certain is OpenCV's: other flags and formats, small files
(its call costs less), EXIF that may turn the image, builds that decode otherwise
(``agreement.py``), and what the core declines. A file that is no image gives None, and a damaged
one what OpenCV makes of it.

One call of the core decodes the file, blue first. JPEGs take the way of deferred images instead
(``single.py``) where they may be in a cache, or decoded ahead.
"""

from __future__ import annotations

import os
import sys
from stat import S_ISREG
from typing import Any, Final

import numpy as np

from ... import _native
from . import headers, single, stamps
from .recording import Opened, Operation, Recording
from .thread_state import THREAD

_GRAYSCALE: Final = 0
_UNCHANGED: Final = -1
_COLOR: Final = frozenset((1, 1 | 128))  # IMREAD_COLOR, with and without IMREAD_IGNORE_ORIENTATION
_ANY_DEPTH: Final = frozenset((2, 2 | 4))  # IMREAD_ANYDEPTH, with and without IMREAD_ANYCOLOR
_KNOWN: Final = _COLOR | _ANY_DEPTH | {_GRAYSCALE, _UNCHANGED}
_IGNORES_EXIF: Final = frozenset((_UNCHANGED, 1 | 128))

# JPEGs of so many bytes and images of so many pixels: measured, OpenCV is faster on smaller ones.
LEAST_NBYTES = 12_000
LEAST_PIXELS = 200 * 200

_TO_RGB: Final[tuple[Operation, ...]] = (("convert", "RGB"),)


def imread(*args: Any, **kwargs: Any) -> np.ndarray | None:
    flags = _flags(args, kwargs, "filename")
    if flags is None:
        return None
    filename = args[0] if args else kwargs["filename"]
    if type(filename) is not str and not isinstance(filename, os.PathLike):
        return None
    return _of_file(os.fspath(filename), flags)


def imdecode(*args: Any, **kwargs: Any) -> np.ndarray | None:
    flags = _flags(args, kwargs, "buf")
    if flags is None:
        return None
    data = args[0] if args else kwargs["buf"]
    if type(data) is not np.ndarray or data.dtype != np.uint8:
        return None
    if data.shape != (data.size,) or not data.flags.c_contiguous:
        return None
    if data.size < LEAST_NBYTES and not _takes_png(data[: headers.PNG_HEAD].tobytes(), flags):
        return None
    return _decoded(data.tobytes(), flags)


def _flags(args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> int | None:
    """The flags of a call with the argument ``name`` and flags, if the core may know them."""
    flags: Any = 1
    if len(args) == 2:
        flags = args[1]
    elif len(args) > 2 or len(args) + len(kwargs) > 2:
        return None
    if not args and name not in kwargs:
        return None
    if kwargs:
        if not kwargs.keys() <= ({"flags"} if args else {"flags", name}):
            return None
        flags = kwargs.get("flags", flags)
    return flags if type(flags) is int and flags in _KNOWN else None


def _of_file(path: str, flags: int) -> np.ndarray | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        status = os.fstat(descriptor)
        if not S_ISREG(status.st_mode):
            return None
        header = None
        if status.st_size >= LEAST_NBYTES:
            header = headers.jpeg(lambda count, offset: os.pread(descriptor, count, offset))
        if header is None:
            if not _takes_png(os.pread(descriptor, headers.PNG_HEAD, 0), flags):
                return None
        elif not _takes(header, flags):
            return None
        if header is None or _at_once() or stamps.is_recent(status):
            with open(descriptor, "rb", closefd=False) as file:
                return _decoded(file.read(), flags, header)
    finally:
        os.close(descriptor)
    opened = Opened(
        os.path.abspath(path), None, stamps.of(status), header.size, header.mode, "JPEG"
    )
    return _array(opened, _is_gray(header, flags))


def _decoded(data: bytes, flags: int, header: headers.Header | None = None) -> np.ndarray | None:
    """The pixels of the file ``data``; ``header`` is a JPEG's, if it was read already."""
    if header is None:
        header = headers.jpeg(lambda count, offset: data[offset : offset + count])
        if header is None:
            return _of_png(data, flags)
        if not _takes(header, flags):
            return None
    gray = _is_gray(header, flags)
    if _at_once():
        return _decoded_whole(data, header.size, gray)
    return _array(Opened(None, data, None, header.size, header.mode, "JPEG"), gray)


def _takes(header: headers.Header, flags: int) -> bool:
    """Whether the core gives what OpenCV does of a JPEG."""
    if header.size[0] * header.size[1] < LEAST_PIXELS:
        return False
    if flags in _ANY_DEPTH or header.mode not in ("RGB", "L"):
        return False
    if not header.plain and flags not in _IGNORES_EXIF:
        return False  # it may have to be turned
    # Of a colour image OpenCV takes the luminance that is in the file.
    return flags != _GRAYSCALE or header.mode == "L"


def _takes_png(head: bytes, flags: int) -> bool:
    """Whether the core may give what OpenCV does of a PNG that begins like this."""
    mode, (width, height) = headers.png(head) or ("", (0, 0))
    if width * height < LEAST_PIXELS:
        return False
    if mode == "I;16":
        return flags == _UNCHANGED or flags in _ANY_DEPTH
    return mode == "L" or flags == _UNCHANGED or flags in _COLOR  # it has its own weights of gray


def _is_gray(header: headers.Header, flags: int) -> bool:
    return header.mode == "L" and flags in (_GRAYSCALE, _UNCHANGED)


def _at_once() -> bool:
    """Whether the image is neither in a cache, nor decoded ahead."""
    return THREAD.batch.cache is None and THREAD.ahead is None


def _of_png(data: bytes, flags: int) -> np.ndarray | None:
    """The pixels of a PNG that OpenCV reads as the core does."""
    core, header = _native.load(), headers.png(data)
    if core is None or core.png_version() is None or header is None:
        return None
    if not _takes_png(data, flags) or not headers.is_plain_png(data):
        return None
    mode, size = header
    if mode != "I;16":
        return _decoded_whole(data, size, gray=mode == "L" and flags not in _COLOR)
    rows = core.png_rows(data)
    if rows is None:
        return None
    levels: np.ndarray = np.frombuffer(rows, ">u2").reshape(size[::-1]).astype(np.uint16)
    return levels


def _decoded_whole(data: bytes, size: tuple[int, int], gray: bool) -> np.ndarray | None:
    """The pixels of a whole file as OpenCV orders them."""
    core = _native.load()
    if core is None:
        return None
    width, height = size
    pixels = np.empty((height, width) if gray else (height, width, 3), np.uint8)
    return pixels if core.decode(data, pixels, reversed=not gray) else None


def _array(opened: Opened, gray: bool) -> np.ndarray | None:
    """The pixels as OpenCV orders them, in an array that owns its memory."""
    operations = () if gray or opened.mode == "RGB" else _TO_RGB
    mode = "L" if gray else "RGB"
    pixels = single.pixels(Recording(opened, operations, opened.size, mode))
    if pixels is None:
        return None
    if gray:
        own: np.ndarray = pixels.copy()
        return own
    cv2 = sys.modules["cv2"]
    reversed_pixels: np.ndarray = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    return reversed_pixels
