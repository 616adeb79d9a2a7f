"""Protobuf's wire format: a small, bounded reader of messages, and varints.

A field is a tag (number << 3 | wire type), then a varint (wire type 0), 8 bytes (1), a length and
as many bytes (2), or 4 bytes (5). Source: protobuf.dev, "Encoding".
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator

Data = bytes | memoryview | mmap.mmap

_SIGN = 1 << 63
_ONE_BYTE = [bytes([value]) for value in range(128)]


def fields(data: Data, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(number, wire type, start and end of the value) of each field of the message [begin, end).

    Raises ValueError or IndexError.
    """
    at = begin
    while at < end:
        tag, at = varint(data, at, end)
        wire = tag & 7
        if tag >> 3 == 0 or tag >> 32:
            raise ValueError("an invalid field number")
        if wire == 0:
            start = at
            _, at = varint(data, at, end)
        elif wire == 2:
            length, start = varint(data, at, end)
            at = start + length
        elif wire in (1, 5):
            start, at = at, at + (8 if wire == 1 else 4)
        else:
            raise ValueError("an invalid wire type")
        if at > end:
            raise ValueError("a field extends past its message")
        yield tag >> 3, wire, start, at


def varint(data: Data, at: int, end: int) -> tuple[int, int]:
    """The varint at ``at``, below 2**64, and where it ends, at most ``end``. Raises ValueError."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2 * _SIGN - 1), at
    raise ValueError("a number that does not end")


def to_varint(value: int) -> bytes:
    """``value`` as a varint; negative ones as their 64-bit complement."""
    if 0 <= value < 0x80:
        return _ONE_BYTE[value]
    value &= 2 * _SIGN - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def signed(value: int) -> int:
    """A varint as the int64 that it stands for."""
    return value - (1 << 64) if value & _SIGN else value
