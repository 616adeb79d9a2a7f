"""Writes JPEG files from coefficients, including ones that no encoder produces."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from dct_reference import ZIGZAG

# The code of an AC symbol is its 8-bit index here; DC differences have 5-bit codes.
SYMBOLS = [0x00, 0xF0, *(run << 4 | size for run in range(16) for size in range(1, 16))]
CODE = {symbol: code for code, symbol in enumerate(SYMBOLS)}


def _segment(marker: int, payload: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + payload


def _value(value: int) -> tuple[int, str]:
    """The size of a value in bits, and these bits."""
    size = abs(value).bit_length()
    return size, format(
        value if value > 0 else value + (1 << size) - 1, f"0{size}b"
    ) if size else ""


def _block(coefficients: npt.NDArray[np.integer], before: int) -> Iterator[str]:
    zigzag = [int(coefficients[place]) for place in ZIGZAG]
    size, bits = _value(zigzag[0] - before)
    yield format(size, "05b") + bits
    run = 0
    last = max((k for k in range(1, 64) if zigzag[k]), default=0)
    for value in zigzag[1 : last + 1]:
        if value == 0:
            run += 1
            continue
        for _ in range(run // 16):
            yield format(CODE[0xF0], "08b")
        size, bits = _value(value)
        yield format(CODE[(run % 16) << 4 | size], "08b") + bits
        run = 0
    if last < 63:
        yield format(CODE[0x00], "08b")


def write(
    width: int,
    height: int,
    sampling: Sequence[tuple[int, int]],
    quant: Sequence[npt.NDArray[np.integer]],
    coefficients: Sequence[npt.NDArray[np.integer]],
) -> bytes:
    """A JPEG file of one scan.

    Args:
        sampling: horizontal and vertical factor of each component.
        quant: (64,) for each, row by row, up to 16 bits.
        coefficients: (block rows, block columns, 64) for each, whole MCUs; values of 15 bits, and
            DC values at most that far apart.
    """
    data = b"\xff\xd8"
    for index, table in enumerate(quant):
        payload = struct.pack(">B64H", 0x10 | index, *(int(table[place]) for place in ZIGZAG))
        data += _segment(0xDB, payload)
    components = b"".join(bytes([k + 1, h << 4 | v, k]) for k, (h, v) in enumerate(sampling))
    data += _segment(0xC1, struct.pack(">BHHB", 8, height, width, len(sampling)) + components)
    data += _segment(
        0xC4, bytes([0x00, *(16 if bits == 5 else 0 for bits in range(1, 17)), *range(16)])
    )
    lengths = [len(SYMBOLS) if bits == 8 else 0 for bits in range(1, 17)]
    data += _segment(0xC4, bytes([0x10, *lengths, *SYMBOLS]))
    scan = b"".join(bytes([k + 1, 0]) for k in range(len(sampling)))
    data += _segment(0xDA, bytes([len(sampling)]) + scan + bytes([0, 63, 0]))
    before = [0] * len(sampling)
    bits = []
    alone = len(sampling) == 1  # then blocks are stored row by row
    h0, v0 = (1, 1) if alone else sampling[0]
    rows, columns = coefficients[0].shape[0] // v0, coefficients[0].shape[1] // h0
    for mcu in range(rows * columns):
        for k, (h, v) in enumerate([(1, 1)] if alone else sampling):
            for y in range(v):
                for x in range(h):
                    block = coefficients[k][mcu // columns * v + y, mcu % columns * h + x]
                    bits.extend(_block(block, before[k]))
                    before[k] = int(block[0])
    text = "".join(bits)
    text += "1" * (-len(text) % 8)
    return (
        data
        + int(text, 2).to_bytes(len(text) // 8, "big").replace(b"\xff", b"\xff\0")
        + b"\xff\xd9"
    )
