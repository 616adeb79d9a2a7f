"""``PIL.Image.open`` that gives deferred images.

What Pillow would refuse, warn of, or open as something unusual is opened by Pillow, there and then.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from stat import S_ISREG
from typing import Any, Final, TypeAlias

import PIL.BmpImagePlugin
import PIL.Image
import PIL.JpegImagePlugin
import PIL.PngImagePlugin
from PIL.ImageFile import ImageFile

from ..._base.pixel_limit import is_within
from . import headers, stamps
from .headers import SETTLED, Header, header_table
from .image import DeferredImage, seen_as
from .recording import Opened
from .stamps import Stamp
from .thread_state import THREAD

Open = Callable[..., Any]

# Decoding the others takes Pillow anyway, which is better done where the user's code runs.
FORMATS = frozenset({"JPEG", "PNG", "WEBP", "BMP"})
# By what makes the images. Pillow's plugin for WebP comes when Pillow has met one.
_CLASSES: Final[dict[object, type[ImageFile]]] = {
    PIL.JpegImagePlugin.jpeg_factory: PIL.JpegImagePlugin.JpegImageFile,
    PIL.PngImagePlugin.PngImageFile: PIL.PngImagePlugin.PngImageFile,
    PIL.BmpImagePlugin.BmpImageFile: PIL.BmpImagePlugin.BmpImageFile,
}
_NOBODY: Final = (None, None)


File: TypeAlias = "tuple[str | None, bytes | None, Stamp | None, Header | None]"
"""Absolute path and stamp, or all its bytes; the header, of a plain JPEG, PNG or WebP."""


def of_bytes(data: bytes) -> File:
    return (None, data, None, headers.of_file(lambda n, offset: data[offset : offset + n]))


def at_path(name: str | bytes) -> File | None:
    """None: there is no regular file that can be read.

    The bytes of a file that was written just now: see Note [Files written just now].
    """
    try:
        status = os.stat(name)
        if not S_ISREG(status.st_mode):
            return None  # to open a pipe would wait for a writer, and take what it writes
        if stamps.is_recent(status):
            with open(name, "rb") as file:
                return of_bytes(file.read())
        # From the root of the file system; links and dots may be in it.
        path = name if type(name) is str else os.fsdecode(name)
        if path[:1] != "/":
            path = os.path.join(os.getcwd(), path)  # "link/.." is not where the link is
        stamp = stamps.of(status)
        header = header_table().find(path, stamp)
        if header is None:
            with open(name, "rb", buffering=0) as file:
                status = os.fstat(file.fileno())
                if not S_ISREG(status.st_mode):
                    return None
                stamp = stamps.of(status)
                header = _read_header(file.fileno(), path, stamp)
    except (OSError, ValueError):
        return None
    return path, None, stamp, header


def _read_header(descriptor: int, path: str, stamp: Stamp) -> Header | None:
    header = headers.of_file(lambda n, offset: os.pread(descriptor, n, offset))
    if header is not None:
        header_table().keep(path, stamp, header)
    return header


def opener(original: Open) -> Open:
    """``PIL.Image.open``, given the original one."""

    def open(fp: Any, mode: Any = "r", formats: Any = None) -> Any:
        if not THREAD.deferring or mode != "r" or formats is not None:
            return original(fp, mode, formats)
        if type(fp) is str or isinstance(fp, (str, bytes, os.PathLike)):
            name: Any = os.fspath(fp)
            return _opened(original, fp, at_path(name), name, None)
        if isinstance(fp, io.StringIO):
            return original(fp)
        return _open_file(original, fp)

    return open


def _opened(original: Open, fp: Any, file: File | None, filename: Any, stream: Any) -> Any:
    """``stream``: the user's own, from which Pillow would read on."""
    if file is None:
        return original(fp)
    path, data, stamp, header = file
    kind = None if header is None else _class_of(header.format)
    if header is not None and kind is not None and is_within(*header.size):
        if stream is not None:
            stream.seek(header.end)
        opened = Opened(path, data, stamp, header.size, header.mode, header.format)
        return _deferred(opened, kind, filename, stream, header.plain)
    image = original(fp)
    return _unless_unusual(image, file, filename, stream) or image


def _class_of(format: str) -> type[ImageFile] | None:
    """Pillow's class of images; None: somebody else reads them, or Pillow has not met one yet."""
    factory: Any = PIL.Image.OPEN.get(format, _NOBODY)[0]
    kind = _CLASSES.get(factory)
    if kind is None and format == "WEBP":
        plugin = sys.modules.get("PIL.WebPImagePlugin")
        if plugin is not None and plugin.SUPPORTED and factory is plugin.WebPImageFile:
            kind = _CLASSES[factory] = plugin.WebPImageFile
    return kind


def _deferred(
    opened: Opened, kind: type[ImageFile], filename: Any, stream: Any, plain: bool
) -> DeferredImage:
    batch = THREAD.batch
    batch.opened += 1
    image = object.__new__(seen_as(kind))
    image._batch = batch
    image._opened = opened
    image._size = opened.size
    image._mode = opened.mode
    image.filename = filename
    if stream is not None:
        image._file = stream
    image._plain_header = plain
    return image


def _open_file(original: Open, fp: Any) -> Any:
    """Open what is an open file, or behaves like one."""
    if type(fp) is io.BytesIO:
        return _opened(original, fp, of_bytes(fp.getvalue()), "", fp)
    if type(fp) is io.BufferedReader and isinstance(fp.raw, io.FileIO):
        file = _named(fp)
        if file is not None:
            return _opened(original, fp, file, "", fp)
    stream: Any = fp
    try:
        fp.seek(0)
    except (AttributeError, io.UnsupportedOperation):
        data = fp.read()
        stream = None  # Pillow reads it all, too
        fp = io.BytesIO(data)
    else:
        data = fp.read()
    if type(data) is not bytes:
        return original(fp)
    return _opened(original, fp, of_bytes(data), "", stream)


def _named(fp: io.BufferedReader) -> File | None:
    """An open file that was not written just now, by the name that leads to it; None: none does."""
    name = fp.name
    if fp.closed or not isinstance(name, (str, bytes)):
        return None
    status = os.fstat(fp.fileno())
    try:
        path = os.path.join(os.getcwd(), os.fsdecode(name))
        there = os.stat(path)
    except OSError:
        return None
    if not S_ISREG(status.st_mode) or status.st_dev != there.st_dev:
        return None
    stamp = stamps.of(status)
    if stamp != stamps.of(there) or stamps.is_recent(status):
        return None
    header = header_table().find(path, stamp) or _read_header(fp.fileno(), path, stamp)
    return path, None, stamp, header


def _unless_unusual(image: Any, file: File, filename: Any, stream: Any) -> DeferredImage | None:
    """A deferred image in the place of one that Pillow has opened; None if it has to stay."""
    format = image.format
    if format not in FORMATS or _class_of(format) is not type(image):
        return None
    if not is_within(*image.size):
        return None
    if getattr(image, "is_animated", False) or getattr(image, "n_frames", 1) != 1:
        return None
    if format == "JPEG":
        exif = image.info.get("exif")
        if exif is not None and not headers.exif_is_plain(exif):
            return None  # opening it again would warn again
    if format == "PNG" and image.fp is not None:
        end = image.fp.tell()
        image.fp.seek(0)
        if b"acTL" in image.fp.read(end):
            return None  # if it is an invalid animation, opening it again would warn again
    path, data, stamp, _ = file
    opened = Opened(path, data, stamp, image.size, image.mode, format)
    deferred = _deferred(opened, type(image), filename, stream, False)
    deferred._transparent = "transparency" in image.info
    if format in SETTLED:
        deferred._info = image.info
    elif format == "WEBP":  # whose metadata Pillow reads when it opens it
        deferred._plain_header = not {"exif", "xmp"} & set(image.info)
    if image._exclusive_fp and image.fp is not None:
        image.fp.close()
    return deferred
