"""Save a picture in the format given by its file's suffix."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .._base.whole_file import whole_file
from ..errors import UsageError

if TYPE_CHECKING:
    from PIL import Image

LINE = 12  # pixels between two lines of text

_FORMATS = {
    ".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP", ".bmp": "BMP",
    ".tif": "TIFF", ".tiff": "TIFF", ".gif": "GIF",
}  # fmt: skip
_SIDES = {"JPEG": 65_500, "WEBP": 16_383, "GIF": 65_535}  # pixels at most, where there is a limit


def format_of(path: str | os.PathLike[str]) -> str:
    """Pillow's name of the format for the suffix of ``path``.

    Raises UsageError for an unknown suffix.
    """
    suffix = os.path.splitext(os.fspath(path))[1].lower()
    if suffix not in _FORMATS:
        raise UsageError(
            f"{os.fspath(path)!r}: expected a picture file ending in {', '.join(_FORMATS)}"
        )
    return _FORMATS[suffix]


def label_text(label: object, classes: Sequence[str]) -> str:
    """The class of a sample, or its label in digits."""
    if isinstance(label, int) and 0 <= label < len(classes):
        return str(classes[label])
    return str(label)


def write(image: Image.Image, at: tuple[int, int], text: str, width: int) -> None:
    """Write ``text``, black, below and to the right of ``at``.

    What is wider than ``width`` pixels loses its beginning: of a path the end tells more.
    """
    from PIL import ImageDraw, ImageFont

    font = ImageFont.load_default()
    text = text.encode("latin-1", "replace").decode("latin-1")  # an old Pillow has no others
    left = text
    while left and font.getlength(text) > width:
        left = left[1:]
        text = f"...{left}"
    ImageDraw.Draw(image).text(at, text, "black", font)


def save(image: Image.Image, path: str | os.PathLike[str]) -> None:
    """Write ``image`` to ``path``, completely or not at all. Raises what ``format_of`` raises."""
    kind = format_of(path)
    most = _SIDES.get(kind)
    if most is not None and max(image.size) > most:
        raise UsageError(
            f"{os.fspath(path)!r}: expected sides of at most {most} pixels in {kind}, got "
            f"{image.width}x{image.height}: choose a .png, or show fewer"
        )
    with whole_file(path) as file:
        image.save(file, kind)
