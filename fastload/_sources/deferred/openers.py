"""``PIL.Image.open`` that gives deferred images.

What Pillow would refuse, warn of, or open as something unusual is opened by Pillow, there and then.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from stat import S_ISREG
from typing import Any

import PIL.Image
import PIL.JpegImagePlugin
from PIL.ImageFile import ImageFile

from ..._base.pixel_limit import is_within
from . import headers, stamps
from .header_table import header_table
from .headers import SETTLED
from .image import DeferredImage
from .recording import Opened
from .stamps import Stamp
from .thread_state import THREAD

Open = Callable[..., Any]

# Decoding the others takes Pillow anyway, which is better done where the user's code runs.
FORMATS = frozenset({"JPEG", "PNG", "WEBP", "BMP"})
_JPEG = PIL.JpegImagePlugin.JpegImageFile
_JPEG_FACTORY = PIL.Image.OPEN["JPEG"][0]


def opener(original: Open) -> Open:
    """``PIL.Image.open``, given the original one."""
    header_table()  # before workers are forked, which share it

    def open(fp: Any, mode: Any = "r", formats: Any = None) -> Any:
        if not THREAD.deferring or mode != "r" or formats is not None:
            return original(fp, mode, formats)
        if PIL.Image.OPEN.get("JPEG", (None,))[0] is not _JPEG_FACTORY:
            return original(fp)  # somebody reads JPEGs in another way
        if type(fp) is str or isinstance(fp, (str, bytes, os.PathLike)):
            return _open_path(original, fp)
        if isinstance(fp, io.StringIO):
            return original(fp)
        return _open_file(original, fp)

    return open


def _deferred(
    opened: Opened, kind: type[ImageFile], filename: Any, file: Any, plain: bool
) -> DeferredImage:
    batch = THREAD.batch
    batch.opened += 1
    image = object.__new__(DeferredImage)
    image._batch = batch
    image._opened = opened
    image._size = opened.size
    image._mode = opened.mode
    image._class = kind
    image.filename = filename
    if file is not None:
        image._file = file
    image._plain_header = plain
    return image


def _absolute(name: str | bytes) -> str:
    """The path, from the root of the file system; links and dots may be in it."""
    path = name if type(name) is str else os.fsdecode(name)
    return path if path[:1] == "/" else os.path.abspath(path)


def _open_path(original: Open, fp: Any) -> Any:
    name = os.fspath(fp)
    try:
        found = os.stat(name)
    except (OSError, ValueError):
        return original(fp)  # which raises as it should
    if stamps.is_recent(found):
        return _open_recent(original, fp, name)
    path, stamp = _absolute(name), stamps.of(found)
    header = header_table().find(path, stamp)
    if header is None:
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return original(fp)
        try:
            found = os.fstat(descriptor)
            if not S_ISREG(found.st_mode):
                return original(fp)
            stamp = stamps.of(found)
            header = headers.jpeg(lambda count, offset: os.pread(descriptor, count, offset))
        finally:
            os.close(descriptor)
        if header is not None:
            header_table().keep(path, stamp, header)
    if header is not None and is_within(*header.size):
        opened = Opened(path, None, stamp, header.size, header.mode, "JPEG")
        return _deferred(opened, _JPEG, name, None, header.plain)
    image = original(fp)
    return _unless_unusual(image, path, None, stamp, name, None) or image


def _open_recent(original: Open, fp: Any, name: Any) -> Any:
    """Of the path of a file that changed just now. See Note [Files written just now]."""
    if not os.path.isfile(name):
        return original(fp)
    try:
        with open(name, "rb") as file:
            data = file.read()
    except OSError:
        return original(fp)
    header = headers.jpeg(lambda count, offset: data[offset : offset + count])
    if header is not None and is_within(*header.size):
        opened = Opened(None, data, None, header.size, header.mode, "JPEG")
        return _deferred(opened, _JPEG, name, None, header.plain)
    image = original(fp)
    return _unless_unusual(image, None, data, None, name, None) or image


def _open_file(original: Open, fp: Any) -> Any:
    """Of an open file, or of what behaves like one."""
    path, data, stamp = None, None, None
    if type(fp) is io.BytesIO:
        data = fp.getvalue()
    elif type(fp) is io.BufferedReader and isinstance(fp.raw, io.FileIO):
        path, stamp = _path_of(fp)
    file: Any = fp
    if path is None and data is None:
        try:
            fp.seek(0)
        except (AttributeError, io.UnsupportedOperation):
            data = fp.read()
            file = None  # Pillow reads it all, too
            fp = io.BytesIO(data)
        else:
            data = fp.read()
        if type(data) is not bytes:
            return original(fp)
    header = None
    if path is not None and stamp is not None:
        header = header_table().find(path, stamp)
    if header is None:
        header = headers.jpeg(_reader(fp, data))
        if header is not None and path is not None and stamp is not None:
            header_table().keep(path, stamp, header)
    if header is not None and is_within(*header.size):
        if file is not None:
            file.seek(header.end)
        opened = Opened(path, data, stamp, header.size, header.mode, "JPEG")
        return _deferred(opened, _JPEG, "", file, header.plain)
    image = original(fp)
    return _unless_unusual(image, path, data, stamp, "", file) or image


def _reader(fp: Any, data: bytes | None) -> Callable[[int, int], bytes]:
    if data is not None:
        known = data
        return lambda count, offset: known[offset : offset + count]
    descriptor = fp.fileno()
    return lambda count, offset: os.pread(descriptor, count, offset)


def _path_of(fp: io.BufferedReader) -> tuple[str | None, Stamp | None]:
    """The path of an open file and its stamp; None if it has no name that leads to it."""
    name = fp.name
    if not isinstance(name, (str, bytes)):
        return None, None
    found = os.fstat(fp.fileno())
    path = _absolute(name)
    try:
        there = os.stat(path)
    except OSError:
        return None, None
    if not S_ISREG(found.st_mode) or found.st_dev != there.st_dev:
        return None, None
    stamp = stamps.of(found)
    if stamp != stamps.of(there) or stamps.is_recent(found):
        return None, None
    return path, stamp


def _unless_unusual(
    image: Any,
    path: str | None,
    data: bytes | None,
    stamp: Stamp | None,
    filename: Any,
    file: Any,
) -> DeferredImage | None:
    """A deferred image in the place of one that Pillow has opened; None if it has to stay."""
    if image.format not in FORMATS or not is_within(*image.size):
        return None
    if getattr(image, "is_animated", False) or getattr(image, "n_frames", 1) != 1:
        return None
    if image.format == "JPEG":
        exif = image.info.get("exif")
        if exif is not None and not headers.exif_is_plain(exif):
            return None  # opening it again would warn again
    opened = Opened(path, data, stamp, image.size, image.mode, image.format)
    deferred = _deferred(opened, type(image), filename, file, False)
    deferred._transparent = "transparency" in image.info
    if image.format in SETTLED:
        deferred._info = image.info
    elif image.format == "WEBP":  # whose metadata Pillow reads when it opens it
        deferred._plain_header = not {"exif", "xmp"} & set(image.info)
    if image._exclusive_fp and image.fp is not None:
        image.fp.close()
    return deferred
