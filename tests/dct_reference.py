"""A simple reader of DCT records, written from SPECIFICATION.md and not from the C++ code."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# Row-major position of the k-th coefficient in zig-zag order (ITU-T T.81, figure A.6).
ZIGZAG = sorted(
    range(64),
    key=lambda place: (
        place // 8 + place % 8,
        place // 8 if (place // 8 + place % 8) % 2 else place % 8,
    ),
)

LUMINANCE = [
    *(16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55),
    *(14, 13, 16, 24, 40, 57, 69, 56, 14, 17, 22, 29, 51, 87, 80, 62),
    *(18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92),
    *(49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99),
]
CHROMINANCE = [
    *(17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99),
    *(24, 26, 56, 99, 99, 99, 99, 99, 47, 66, 99, 99, 99, 99, 99, 99),
    *[99] * 32,
]


@dataclass
class Record:
    """A decoded record. ``coefficients[c]``: int (block rows, block columns, 8, 8), quantised."""

    width: int
    height: int
    sampling: list[tuple[int, int]]
    quant: list[npt.NDArray[np.int64]]
    coefficients: list[npt.NDArray[np.int64]]
    metadata: bytes


class _Head:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, layout: str) -> int:
        (value,) = struct.unpack_from("<" + layout, self.data, self.at)
        self.at += struct.calcsize("<" + layout)
        return int(value)


def _quant(head: _Head, before: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """One table, (8, 8)."""
    kind = head.take("B")
    if kind >= 203:
        return before[kind - 203]
    table = np.zeros(64, np.int64)
    if kind in (201, 202):
        for k in range(64):
            table[ZIGZAG[k]] = head.take("B" if kind == 201 else "H")
        return table.reshape(8, 8)
    assert 1 <= kind <= 200
    quality = kind if kind <= 100 else kind - 100
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    base = np.array(LUMINANCE if kind <= 100 else CHROMINANCE)
    return np.clip((base * scale + 50) // 100, 1, 255).reshape(8, 8)


def _block(data: bytes, at: int, predicted: int) -> tuple[npt.NDArray[np.int64], int]:
    """One block, (64,) row-major, and the offset of the next."""
    header = data[at]
    at += 1
    layout = "<h" if header >> 4 & 1 else "<b"
    (difference,) = struct.unpack_from(layout, data, at)
    at += struct.calcsize(layout)
    escape_nbytes = 0
    if header >> 5 & 1:
        escape_nbytes = data[at]
        at += 1
    mask = int.from_bytes(data[at : at + (header & 15)], "little")
    at += header & 15
    places = [k for k in range(1, 64) if mask >> (k - 1) & 1]
    width = 2 + (header >> 6)
    nbytes = (len(places) * width + 7) // 8
    packed = int.from_bytes(data[at : at + nbytes], "little")
    at += nbytes
    escapes = data[at : at + escape_nbytes]
    at += escape_nbytes
    values: list[int | None] = []
    for i in range(len(places)):
        code = packed >> (i * width) & ((1 << width) - 1)
        if code == 0:
            values.append(-2 if width == 2 else None)
        else:
            values.append(code if code <= 1 << (width - 1) else code - (1 << width))
    narrow = sum(value is None for value in values)
    wide = narrow
    block = np.zeros(64, np.int64)
    block[0] = predicted + difference
    used = 0
    for k, value in zip(places, values, strict=True):
        if value is None:
            (value,) = struct.unpack_from("<b", escapes, used)
            used += 1
            if value == -128:
                (value,) = struct.unpack_from("<h", escapes, wide)
                wide += 2
        block[ZIGZAG[k]] = value
    assert wide == escape_nbytes
    return block, at


def read(data: bytes) -> Record:
    """Read every block of every component; reaches each column block by its offset."""
    head = _Head(data)
    assert (head.take("B"), head.take("B")) == (0xDC, 1)
    flags, layout = head.take("B"), head.take("B")
    width, height = head.take("H"), head.take("H")
    components = 3 if flags & 1 else 1
    if flags & 16:
        head.at += components
    sampling = [((layout >> 3 & 3) + 1, (layout >> 5 & 3) + 1)] + [(1, 1)] * (components - 1)
    if layout & 128:
        for c in (1, 2):
            packed = head.take("B")
            sampling[c] = (packed >> 4, packed & 15)
    quant: list[npt.NDArray[np.int64]] = []
    for _ in range(components):
        quant.append(_quant(head, quant))
    metadata = b""
    if flags & 128:
        nbytes = head.take("I")
        metadata = data[len(data) - nbytes :]
    h_max, v_max = max(h for h, _ in sampling), max(v for _, v in sampling)
    mcus, rows = -(-width // (8 * h_max)), -(-height // (8 * v_max))
    step = 1 << (layout & 7)
    starts = [0] + [head.take("I" if flags & 32 else "H") for _ in range(rows - 1)]
    begin = head.at
    coefficients = [np.zeros((rows * v, mcus * h, 64), np.int64) for h, v in sampling]
    for row in range(rows):
        head.at = begin + starts[row]
        entries = -(-mcus // step) - 1
        columns = [0] + [head.take("I" if flags & 64 else "H") for _ in range(entries)]
        first = head.at
        for column_block, offset in enumerate(columns):
            at, predicted = first + offset, [0] * components
            for mcu in range(column_block * step, min(mcus, column_block * step + step)):
                for c, (h, v) in enumerate(sampling):
                    for y in range(v):
                        for x in range(h):
                            block, at = _block(data, at, predicted[c])
                            predicted[c] = int(block[0])
                            coefficients[c][row * v + y, mcu * h + x] = block
    shaped = [c.reshape(c.shape[0], c.shape[1], 8, 8) for c in coefficients]
    return Record(width, height, sampling, quant, shaped, metadata)


def plane(record: Record, component: int) -> npt.NDArray[np.float64]:
    """A component's samples by the definition of the inverse DCT, (height, width), not rounded."""
    u, x = np.meshgrid(np.arange(8), np.arange(8), indexing="ij")
    basis = np.cos((2 * x + 1) * u * np.pi / 16) * np.where(u == 0, np.sqrt(1 / 8), 0.5)
    blocks = record.coefficients[component] * record.quant[component]
    samples = np.einsum("ux,ijuv,vy->ixjy", basis, blocks, basis)
    rows, _, columns, _ = samples.shape
    return np.clip(samples.reshape(rows * 8, columns * 8) + 128, 0, 255)
