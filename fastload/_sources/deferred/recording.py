"""Recording: an image that was opened, and what was asked of it, as values.

A recording is immutable, so that two views of one image share what they have in common, and small,
so that a worker process can send it in the place of pixels.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from .stamps import Stamp

Number: TypeAlias = "int | float"
Argument: TypeAlias = "int | float | bool | str | bytes | tuple[Argument, ...] | None"
Operation: TypeAlias = "tuple[str, *tuple[Argument, ...]]"
"""The name of an operation and its arguments; ``operations.py`` lists them all.

Operations on an image, with what Pillow calls them:
    ("convert", mode), ("crop", x, y, w, h), ("resize", w, h, filter) (filter: the number of a
    PIL.Image.Resampling), ("flip", vertical), ("rot90", quarter turns counterclockwise), and
    further ones.
Operations that end in a tensor, and those on it:
    ("to_tensor",) float32 in [0, 1], ("to_image",) uint8, ("to_dtype", dtype, scale),
    ("normalize", mean, std), ("look_up", values), ("erase", y, x, h, w, values), ("border", left,
    top, right, bottom, value), and further ones.
"""


class Stored(NamedTuple):
    """A record of a store. As an image it is RGB, of the size that the store says.

    Attributes:
        kind: ENCODED, RAW, DCT or TURNED, as in ``storage/base.py``.
        offset, nbytes: where its bytes lie in the file ``Opened.path``; -1: to the end of the file.
        mapped: whether that file may be mapped into memory, and stay so.
        checksum: CRC32C of the bytes; None: the store has none.
    """

    kind: int
    offset: int
    nbytes: int
    mapped: bool
    checksum: int | None


class Opened(NamedTuple):
    """An encoded image, as it was when it was opened. Its body has not been read.

    Attributes:
        path: absolute path of the file, or None.
        data: the whole encoded image where it came from no file, or from a part of one that
            ``stored`` does not name; else None.
        stamp: of the file when it was opened (``stamps.py``); None without a path, and for a store,
            which knows its files.
        size: width and height, from the header.
        mode: Pillow's mode of the image before any conversion: "RGB", "L", "P", "CMYK" ...
        format: Pillow's name: "JPEG", "PNG" ...
        library: the one that the user's code called, so its decoder's pixels are expected.
        stored: set if it is a record of a store; ``format`` is then empty.
    """

    path: str | None
    data: bytes | None
    stamp: Stamp | None
    size: tuple[int, int]
    mode: str
    format: str
    library: Literal["pillow", "torchvision"] = "pillow"
    stored: Stored | None = None


class Recording(NamedTuple):
    """What was opened, and what was asked of it, in order.

    Attributes:
        opened: the image.
        operations: see ``Operation``.
        size: width and height after them.
        mode: Pillow's mode after those on the image.
    """

    opened: Opened
    operations: tuple[Operation, ...]
    size: tuple[int, int]
    mode: str
