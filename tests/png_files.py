"""PNG files of every kind, written by hand: filters of rows, chunks and bytes are chosen."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

SIGNATURE = b"\x89PNG\r\n\x1a\n"
GRAY, RGB, PALETTE, GRAY_ALPHA, RGBA = 0, 2, 3, 4, 6
CHANNELS = {GRAY: 1, RGB: 3, PALETTE: 1, GRAY_ALPHA: 2, RGBA: 4}
KINDS = [
    *((GRAY, depth) for depth in (1, 2, 4, 8, 16)),
    *((PALETTE, depth) for depth in (1, 2, 4, 8)),
    *((colour, depth) for colour in (RGB, GRAY_ALPHA, RGBA) for depth in (8, 16)),
]
"""(colour type, bits per channel)."""

PASSES = [
    (0, 0, 8, 8),
    (4, 0, 8, 8),
    (0, 4, 4, 8),
    (2, 0, 4, 4),
    (0, 2, 2, 4),
    (1, 0, 2, 2),
    (0, 1, 1, 2),
]
"""Adam7: (first column, first row, columns apart, rows apart)."""


def chunk(name: bytes, data: bytes = b"", crc: int | None = None) -> bytes:
    """A chunk, by default with the right checksum."""
    if crc is None:
        crc = zlib.crc32(name + data)
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", crc)


def header(
    width: int, height: int, depth: int, colour: int, interlaced: int = 0, rest: bytes = b"\0\0"
) -> bytes:
    """IHDR; ``rest``: the compression and filter methods."""
    fields = struct.pack(">IIBB", width, height, depth, colour) + rest + bytes([interlaced])
    return chunk(b"IHDR", fields)


def random_rows(
    rng: np.random.Generator, width: int, height: int, bits: int, smooth: bool
) -> npt.NDArray[np.uint8]:
    """uint8 (height, bytes of a row): noise, or values that change slowly."""
    shape = height, (width * bits + 7) // 8
    if smooth:
        steps = rng.integers(-3, 4, shape)
        return (steps.cumsum(0) + steps.cumsum(1) + 100).astype(np.uint8)
    return rng.integers(0, 256, shape, dtype=np.uint8)


def filtered(rows: npt.NDArray[np.uint8], step: int, filters: Sequence[int]) -> bytes:
    """Rows as a PNG stores them; ``filters``: one for each row."""
    height, nbytes = rows.shape
    values = rows.astype(np.int64)
    up = np.vstack([np.zeros((1, nbytes), np.int64), values[:-1]])
    left = np.zeros_like(values)
    left[:, step:] = values[:, :-step] if nbytes > step else 0
    corner = np.zeros_like(values)
    corner[:, step:] = up[:, :-step] if nbytes > step else 0
    estimate = left + up - corner
    distances = [abs(estimate - each) for each in (left, up, corner)]
    paeth = np.where(
        (distances[0] <= distances[1]) & (distances[0] <= distances[2]),
        left,
        np.where(distances[1] <= distances[2], up, corner),
    )
    predicted = [0 * values, left, up, (left + up) // 2, paeth]
    lines = []
    for y in range(height):
        kind = filters[y]
        row = (values[y] - predicted[min(kind, 4)][y]).astype(np.uint8)
        lines.append(bytes([kind]) + row.tobytes())
    return b"".join(lines)


def raw(
    rng: np.random.Generator,
    width: int,
    height: int,
    depth: int,
    colour: int,
    interlaced: bool,
    *,
    filters: Sequence[int] = (0, 1, 2, 3, 4),
    smooth: bool = False,
    most: int | None = None,
) -> bytes:
    """What the data of a PNG inflates to; each row has one of ``filters``.

    ``most``: the largest level (of 8-bit images with one channel).
    """
    bits = CHANNELS[colour] * depth
    step = max(1, bits // 8)
    parts = []
    for x, y, dx, dy in PASSES if interlaced else [(0, 0, 1, 1)]:
        w, h = max(0, -(-(width - x) // dx)), max(0, -(-(height - y) // dy))
        if w and h:
            rows = random_rows(rng, w, h, bits, smooth)
            if most is not None:
                rows %= most + 1
            parts.append(filtered(rows, step, rng.choice(list(filters), h).tolist()))
    return b"".join(parts)


def palette(rng: np.random.Generator, count: int) -> bytes:
    """PLTE with random colours."""
    return chunk(b"PLTE", rng.integers(0, 256, 3 * count, dtype=np.uint8).tobytes())


def pieces(data: bytes, size: int | None = None) -> bytes:
    """IDAT chunks of ``size`` bytes."""
    size = size or max(1, len(data))
    return b"".join(chunk(b"IDAT", data[at : at + size]) for at in range(0, len(data), size))


def png(parts: Iterable[bytes]) -> bytes:
    """The signature and these chunks."""
    return SIGNATURE + b"".join(parts)


def image(
    rng: np.random.Generator,
    width: int,
    height: int,
    colour: int = RGB,
    depth: int = 8,
    *,
    interlaced: bool = False,
    filters: Sequence[int] = (0, 1, 2, 3, 4),
    smooth: bool = False,
    before: Iterable[bytes] = (),
    after: Iterable[bytes] = (),
    piece: int | None = None,
    level: int = 6,
) -> bytes:
    """A whole PNG of random pixels; ``before`` and ``after``: chunks around its data."""
    data = zlib.compress(
        raw(rng, width, height, depth, colour, interlaced, filters=filters, smooth=smooth), level
    )
    colours = [palette(rng, 1 << depth)] if colour == PALETTE else []
    return png(
        [
            header(width, height, depth, colour, int(interlaced)),
            *colours,
            *before,
            pieces(data, piece),
            *after,
            chunk(b"IEND"),
        ]
    )
