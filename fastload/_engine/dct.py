"""DCT records read in plain Python, for builds without the core. docs/dct.md specifies the bytes.

``read_head`` and ``blocks`` check every number against the record and raise ValueError where it is
corrupt, as the core's functions do. ``jpeg.py`` makes a JPEG file from them.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator

# The limits of dct/format.h.
_MAX_SIDE = 65500
_MAX_PIXELS = 89_478_485
_MAX_BLOCKS_IN_MCU = 10

# ITU-T T.81 tables K.1 (luminance) and K.2 (chrominance), in zig-zag order.
_STANDARD = (
    bytes.fromhex(
        "100b0c0e0c0a100e0d0e1211101318281a181616183123251d283a333d3c3933"
        "383740485c4e404457453738506d51575f626768673e4d71797064785c656763"
    ),
    bytes.fromhex("1112121815182f1a1a2f63423842") + b"\x63" * 50,
)

Coefficients = list[tuple[int, int]]
"""(position in zig-zag order, value) of the AC coefficients of a block other than 0, ascending."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Component:
    """A component: id, sampling factors, and quantisation table (64 numbers, zig-zag order)."""

    id: int
    h: int
    v: int
    quant: tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Head:
    """The head of a record, and the bytes of its blocks.

    Attributes:
        width, height: in pixels.
        components: one (gray) or three.
        jfif, adobe: whether the JPEG had these segments.
        adobe_transform: 0 or 1.
        metadata: the JPEG's APPn and COM segments, or b"": only those that the flags imply.
        mcu_rows, mcu_columns: how many MCUs.
        column_block: MCUs between two restarts of the DC prediction.
        rows: where each MCU row starts in ``data``.
        column_entry: struct format of an entry of the column tables.
        data: the blocks and their column tables.
    """

    width: int
    height: int
    components: tuple[Component, ...]
    jfif: bool
    adobe: bool
    adobe_transform: int
    metadata: bytes
    mcu_rows: int
    mcu_columns: int
    column_block: int
    rows: tuple[int, ...]
    column_entry: str
    data: bytes


def read_head(record: bytes) -> Head:
    """Parse and check the head of ``record``. Raises ValueError where it is corrupt."""
    try:
        return _read_head(record)
    except (struct.error, IndexError) as error:
        raise ValueError(f"its head is truncated, at {len(record)} bytes") from error


def blocks(head: Head) -> Iterator[tuple[int, int, Coefficients]]:
    """(component, DC value, AC values) of every block, in the order of a JPEG scan.

    Raises ValueError at the first block that is corrupt.
    """
    data, step = head.data, head.column_block
    # The component of each block of an MCU.
    layout = [
        c for c, component in enumerate(head.components) for _ in range(component.h * component.v)
    ]
    entries = -(-head.mcu_columns // step) - 1
    for row in head.rows:
        try:
            columns = struct.unpack_from(f"<{entries}{head.column_entry}", data, row)
        except struct.error as error:
            raise ValueError(f"an MCU row at byte {row} of {len(data)}") from error
        first = row + entries * struct.calcsize(head.column_entry)
        for number, offset in enumerate((0, *columns)):
            at = first + offset
            predicted = [0] * len(head.components)
            for _ in range(number * step, min(head.mcu_columns, (number + 1) * step)):
                for c in layout:
                    try:
                        difference, values, at = _block(data, at)
                    except (struct.error, IndexError) as error:
                        raise ValueError("a block that reaches beyond the record") from error
                    # In 16 bits, as in the core.
                    predicted[c] = (predicted[c] + difference + 0x8000 & 0xFFFF) - 0x8000
                    yield c, predicted[c], values


def _read_head(record: bytes) -> Head:
    magic, version, flags, layout, width, height = struct.unpack_from("<4B2H", record)
    if (magic, version) != (0xDC, 1):
        raise ValueError(f"expected a DCT record of version 1, got bytes {magic:02x} {version:02x}")
    at, count = 8, 3 if flags & 1 else 1
    ids = list(range(1, count + 1))
    if flags & 16:
        ids = [record[at + c] for c in range(count)]
        at += count
    factors = [((layout >> 3 & 3) + 1, (layout >> 5 & 3) + 1)] + [(1, 1)] * (count - 1)
    if layout & 128:
        if count == 1:
            raise ValueError("factors of further components in a gray image")
        factors[1:] = [(record[at + c] >> 4, record[at + c] & 15) for c in range(2)]
        at += 2
    tables: list[tuple[int, ...]] = []
    for _ in range(count):
        table, at = _quant(record, at, tables)
        tables.append(table)
    end = len(record)
    if flags & 128:
        (nbytes,) = struct.unpack_from("<I", record, at)
        at += 4
        end -= nbytes
    mcu_rows, mcu_columns = _mcus(width, height, factors)
    rows = struct.unpack_from(f"<{mcu_rows - 1}{'I' if flags & 32 else 'H'}", record, at)
    at += len(rows) * (4 if flags & 32 else 2)
    if end < at:
        raise ValueError("its metadata overlaps its head")
    # At least two bytes per block, so that the work is bounded by the size of the record.
    if end - at < 2 * mcu_rows * mcu_columns * sum(h * v for h, v in factors):
        raise ValueError(f"too few bytes for an image of {width}x{height} pixels")
    if flags & 8 and not flags & 4:
        raise ValueError("a transform without an Adobe segment")
    return Head(
        width=width,
        height=height,
        components=tuple(
            Component(id=ids[c], h=factors[c][0], v=factors[c][1], quant=tables[c])
            for c in range(count)
        ),
        jfif=bool(flags & 2),
        adobe=bool(flags & 4),
        adobe_transform=flags >> 3 & 1,
        metadata=record[end:],
        mcu_rows=mcu_rows,
        mcu_columns=mcu_columns,
        column_block=1 << (layout & 7),
        rows=(0, *rows),
        column_entry="I" if flags & 64 else "H",
        data=record[at:end],
    )


def _mcus(width: int, height: int, factors: list[tuple[int, int]]) -> tuple[int, int]:
    """MCU rows and columns of the image. Raises ValueError where a record may not hold it."""
    if not (1 <= width <= _MAX_SIDE and 1 <= height <= _MAX_SIDE and width * height <= _MAX_PIXELS):
        raise ValueError(f"an image of {width}x{height} pixels")
    h_max, v_max = max(h for h, _ in factors), max(v for _, v in factors)
    if (
        any(not (1 <= h <= 4 and 1 <= v <= 4) or h_max % h or v_max % v for h, v in factors)
        or sum(h * v for h, v in factors) > _MAX_BLOCKS_IN_MCU
        or (len(factors) == 1 and factors != [(1, 1)])
    ):
        raise ValueError(f"sampling factors {factors}")
    return -(-height // (8 * v_max)), -(-width // (8 * h_max))


def _quant(record: bytes, at: int, before: list[tuple[int, ...]]) -> tuple[tuple[int, ...], int]:
    """The quantisation table at ``at``, and where it ends."""
    kind = record[at]
    at += 1
    if kind in (201, 202):
        layout = "<64B" if kind == 201 else "<64H"
        return struct.unpack_from(layout, record, at), at + struct.calcsize(layout)
    if kind > 202:
        if kind - 203 >= len(before):
            raise ValueError(f"a quantisation table of kind {kind}")
        return before[kind - 203], at
    if kind == 0:
        raise ValueError("a quantisation table of quality 0")
    quality = kind if kind <= 100 else kind - 100
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    table = _STANDARD[kind > 100]
    return tuple(min(max((entry * scale + 50) // 100, 1), 255) for entry in table), at


def _block(data: bytes, at: int) -> tuple[int, Coefficients, int]:
    """The DC difference and the AC values of the block at ``at``, and where it ends."""
    header = data[at]
    mask_nbytes, width = header & 15, 2 + (header >> 6)
    (difference,) = struct.unpack_from("<h" if header & 16 else "<b", data, at + 1)
    at += 3 if header & 16 else 2
    escape_nbytes = 0
    if header & 32:
        escape_nbytes = data[at]
        at += 1
    mask = int.from_bytes(data[at : at + mask_nbytes], "little")
    if mask_nbytes > 8 or mask >> 63:
        raise ValueError(f"a block with a mask of {mask_nbytes} bytes, {mask:#x}")
    at += mask_nbytes
    nbytes = mask.bit_count() * width + 7 >> 3
    packed = int.from_bytes(data[at : at + nbytes], "little")
    at += nbytes
    end = at + escape_nbytes
    if end > len(data):
        raise ValueError("a block that reaches beyond the record")
    values: Coefficients = []
    escaped = []
    half, codes = 1 << width - 1, (1 << width) - 1
    while mask:
        lowest = mask & -mask
        mask ^= lowest
        code = packed & codes
        packed >>= width
        if code > half:
            code -= codes + 1
        elif code == 0:
            if width == 2:
                code = -2
            else:
                escaped.append(len(values))
        values.append((lowest.bit_length(), code))
    wide = at + len(escaped)
    for number, index in enumerate(escaped):
        (value,) = struct.unpack_from("<b", data, at + number)
        if value == -128:
            (value,) = struct.unpack_from("<h", data, wide)
            wide += 2
        values[index] = values[index][0], value
    if wide != end:
        raise ValueError(f"{escape_nbytes} bytes of escapes where {wide - at} are needed")
    return difference, values, end
