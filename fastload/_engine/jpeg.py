"""A baseline JPEG file from a DCT record: builds without the core decode it with Pillow.

Source: ITU-T T.81, Annex B (segments) and F.1 (Huffman coding).
"""

from __future__ import annotations

import struct

from .. import _native
from .dct import Coefficients, Head, blocks, read_head

# The segments that the record's flags stand for: JFIF 1.01, density 1x1, no units; Adobe 100, with
# the transform last.
_JFIF = b"\xff\xe0\0\x10JFIF\0\1\1\0\0\1\0\1\0\0"
_ADOBE = b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0"

# The Huffman tables: codes of one length for all symbols of baseline, in rising order. The file is
# decoded at once and never kept, so its size does not matter. T.81 reserves the last of the 16 and
# of the 256 codes.
_DC_SYMBOLS = range(12)  # number of bits of the difference; codes of 4 bits
_AC_SYMBOLS = [0x00, 0xF0, *(run << 4 | bits for run in range(16) for bits in range(1, 11))]
_AC_CODES = {symbol: code for code, symbol in enumerate(_AC_SYMBOLS)}  # 8 bits
_END_OF_BLOCK, _ZERO_RUN_16 = _AC_CODES[0x00], _AC_CODES[0xF0]


def dct_to_jpeg(record: bytes) -> bytes:
    """``to_jpeg``, by the core where there is one. Raises ValueError: the record is corrupt."""
    core = _native.load()
    return to_jpeg(record) if core is None else bytes(core.dct_to_jpeg(record))


def to_jpeg(record: bytes) -> bytes:
    """The JPEG file with the coefficients of the DCT record ``record``.

    Raises:
        ValueError: the record is corrupt.
    """
    head = read_head(record)
    _check_segments(head.metadata)
    flagged = (_JFIF if head.jfif else b"") + (
        _ADOBE + bytes([head.adobe_transform]) if head.adobe else b""
    )
    parts = [b"\xff\xd8", head.metadata or flagged]
    wide = False
    for number, component in enumerate(head.components):
        words = max(component.quant) > 255
        wide = wide or words
        table = struct.pack(">64H" if words else ">64B", *component.quant)
        parts.append(_segment(0xDB, bytes([words << 4 | number]) + table))
    frame = struct.pack(">BHHB", 8, head.height, head.width, len(head.components))
    for number, component in enumerate(head.components):
        frame += bytes([component.id, component.h << 4 | component.v, number])
    parts.append(_segment(0xC1 if wide else 0xC0, frame))
    for number, length, symbols in ((0x00, 4, _DC_SYMBOLS), (0x10, 8, _AC_SYMBOLS)):
        lengths = bytes(len(symbols) if bits == length else 0 for bits in range(1, 17))
        parts.append(_segment(0xC4, bytes([number]) + lengths + bytes(symbols)))
    scan = bytes([len(head.components)])
    scan += b"".join(bytes([component.id, 0]) for component in head.components)
    parts.append(_segment(0xDA, scan + bytes([0, 63, 0])))
    return b"".join([*parts, _scan(head), b"\xff\xd9"])


def _check_segments(segments: bytes) -> None:
    """Raise ValueError unless they are APPn and COM segments."""
    at = 0
    while at < len(segments):
        marker, length = segments[at : at + 2], segments[at + 2 : at + 4]
        nbytes = int.from_bytes(length, "big")
        named = len(marker) == 2 and (0xE0 <= marker[1] <= 0xEF or marker[1] == 0xFE)
        at += 2 + nbytes
        if not named or marker[0] != 0xFF or nbytes < 2 or at > len(segments):
            raise ValueError("its metadata is not a sequence of APPn and COM segments")


def _segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, 2 + len(content)) + content


def _scan(head: Head) -> bytes:
    """The entropy-coded data of all blocks."""
    before = [0] * len(head.components)
    out = bytearray()
    held, nbits = 0, 0
    for component, dc, values in blocks(head):
        difference = dc - before[component]
        before[component] = dc
        held, nbits = _put_block(held, nbits, difference, values)
        if nbits > 4096:  # in pieces, because shifting a long number is slow
            left = nbits & 7
            out += (held >> left).to_bytes(nbits >> 3, "big")
            held, nbits = held & (1 << left) - 1, left
    fill = -nbits & 7
    out += (held << fill | (1 << fill) - 1).to_bytes(nbits + fill >> 3, "big")
    return bytes(out).replace(b"\xff", b"\xff\0")


def _put_block(held: int, nbits: int, difference: int, values: Coefficients) -> tuple[int, int]:
    """``held``, a number of ``nbits`` bits, with the code of a block appended."""
    size = abs(difference).bit_length()
    if size > 11:
        raise ValueError(f"a DC difference of {difference}, more than 8-bit JPEGs have")
    held = (held << 4 | size) << size | _bits(difference, size)
    nbits += 4 + size
    last = 0
    for position, value in values:
        if not value:
            continue
        run = position - last - 1
        last = position
        while run > 15:
            held = held << 8 | _ZERO_RUN_16
            nbits += 8
            run -= 16
        size = abs(value).bit_length()
        if size > 10:
            raise ValueError(f"an AC value of {value}, more than 8-bit JPEGs have")
        held = (held << 8 | _AC_CODES[run << 4 | size]) << size | _bits(value, size)
        nbits += 8 + size
    if last < 63:
        held = held << 8 | _END_OF_BLOCK
        nbits += 8
    return held, nbits


def _bits(value: int, size: int) -> int:
    """The ``size`` bits that tell ``value`` from the others of that size (T.81, F.1.2.1)."""
    return value if value >= 0 else value + (1 << size) - 1
