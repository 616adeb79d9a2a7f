"""tf.train.Example in protobuf's wire format: a small, bounded reader and writer.

    Example      1: Features
    Features     1: repeated entry                    (a map)
    entry        1: name   2: Feature
    Feature      1: BytesList | 2: FloatList | 3: Int64List
    ...List      1: repeated values; numbers packed or one by one

A field is a tag (number << 3 | wire type), then a varint (wire type 0), 8 bytes (1), a length and
so many bytes (2), or 4 bytes (5). Sources: protobuf.dev, "Encoding"; tensorflow's example.proto and
feature.proto. A field that occurs again replaces the one before, as protobuf says of scalars and
maps; unknown fields are passed over.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

BYTES, FLOAT, INT64 = 1, 2, 3  # which list a feature is: its field number in Feature

_SIGN = 1 << 63
_ONE_BYTE = [bytes([value]) for value in range(128)]
MAX_NBYTES = 2**31 - 1  # of a message, by protobuf's own limit


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """Where m named features of n examples lie. All arrays are (n, m).

    Attributes:
        kind: uint8: BYTES, FLOAT, INT64, or 0 where the example has no such feature.
        count: int32: number of values.
        offset, nbytes: int64: of the first value if BYTES, else of the list's message.
        first: int64: the first number; a float's 32 bits.
    """

    kind: np.ndarray
    count: np.ndarray
    offset: np.ndarray
    nbytes: np.ndarray
    first: np.ndarray

    @classmethod
    def none(cls, rows: int, names: int) -> Found:
        """Of no features, to be filled."""
        shape = rows, names
        return cls(
            kind=np.zeros(shape, np.uint8),
            count=np.zeros(shape, np.int32),
            offset=np.zeros(shape, np.int64),
            nbytes=np.zeros(shape, np.int64),
            first=np.zeros(shape, np.int64),
        )

    def rows(self, some: slice) -> Found:
        """A part of the examples; what is written there is written here."""
        columns = [field.name for field in dataclasses.fields(self)]
        return Found(**{name: getattr(self, name)[some] for name in columns})


def find(
    data: Any, offset: np.ndarray, nbytes: np.ndarray, names: Sequence[bytes], found: Found
) -> None:
    """Write into ``found`` where the features ``names`` lie in the examples at ``offset``.

    Raises:
        BrokenExample: one is no valid message.
    """
    from ... import _native

    core = _native.load()
    if core is not None:
        broken = core.find_features(
            data, offset, nbytes, list(names),
            found.kind, found.count, found.offset, found.nbytes, found.first,
        )  # fmt: skip
        if broken >= 0:
            raise BrokenExample(broken)
        return
    columns = {name: column for column, name in enumerate(names)}
    for row, (begin, length) in enumerate(zip(offset.tolist(), nbytes.tolist())):
        try:
            if length > MAX_NBYTES:
                raise ValueError("longer than a message may be")
            for name, kind, start, end in features(data, begin, begin + length):
                column = columns.get(name)
                if column is not None:
                    _locate(found, row, column, data, kind, start, end)
        except (ValueError, IndexError, struct.error) as error:
            raise BrokenExample(row) from error


class BrokenExample(Exception):
    """Example number ``row`` is no valid message; the caller knows its file and says so."""

    def __init__(self, row: int) -> None:
        self.row = row
        super().__init__(f"example {row} is no valid tf.train.Example")


def _locate(
    found: Found, row: int, column: int, data: Any, kind: int, start: int, end: int
) -> None:
    where = row, column
    found.kind[where] = kind
    found.offset[where], found.nbytes[where] = start, end - start
    found.count[where] = found.first[where] = 0
    if kind == BYTES:
        spans = list(byte_values(data, start, end))
        found.count[where] = len(spans)
        begin, stop = spans[0] if spans else (start, start)
        found.offset[where], found.nbytes[where] = begin, stop - begin
        return
    values = numbers(data, kind, start, end)
    found.count[where] = len(values)
    if len(values):
        first = values[:1].view(np.uint32 if kind == FLOAT else np.int64)
        found.first[where] = first[0]


def features(data: Any, begin: int, end: int) -> Iterator[tuple[bytes, int, int, int]]:
    """(name, kind, begin and end of its list) of each feature of the example [begin, end).

    Raises:
        ValueError, IndexError, struct.error: not a valid message.
    """
    for number, wire, start, stop in fields(data, begin, end):
        if number != 1 or wire != 2:
            continue
        for number, wire, start_, stop_ in fields(data, start, stop):
            if number != 1 or wire != 2:
                continue
            name, feature = b"", None
            for number, wire, a, b in fields(data, start_, stop_):
                if number == 1 and wire == 2:
                    name = bytes(data[a:b])
                elif number == 2 and wire == 2:
                    feature = a, b
            if feature is None:
                continue
            kind, where = 0, (0, 0)
            for number, wire, a, b in fields(data, *feature):
                if number in (BYTES, FLOAT, INT64) and wire == 2:
                    kind, where = number, (a, b)
            if kind:
                yield name, kind, *where


def byte_values(data: Any, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Begin and end of each value of the BytesList [begin, end)."""
    for number, wire, start, stop in fields(data, begin, end):
        if number == 1 and wire == 2:
            yield start, stop


def numbers(data: Any, kind: int, begin: int, end: int) -> np.ndarray:
    """The values of a FloatList (float32) or Int64List (int64), packed or not.

    Raises:
        ValueError, IndexError, struct.error: not a valid message.
    """
    floats: list[bytes] = []
    integers: list[int] = []
    for number, wire, start, stop in fields(data, begin, end):
        if number != 1:
            continue
        if kind == FLOAT and wire in (2, 5):
            if (stop - start) % 4:
                raise ValueError("a list of floats of uneven length")
            floats.append(bytes(data[start:stop]))
        elif kind == INT64 and wire in (0, 2):
            while start < stop:
                value, start = varint(data, start, stop)
                integers.append(value - (1 << 64) if value & _SIGN else value)
    if kind == FLOAT:
        return np.frombuffer(b"".join(floats), "<f4")
    return np.array(integers, np.int64)


def fields(data: Any, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(number, wire type, begin and end of the value) of each field of the message [begin, end)."""
    at = begin
    while at < end:
        tag, at = varint(data, at, end)
        wire = tag & 7
        if tag >> 3 == 0 or tag >> 32:
            raise ValueError("a field number that cannot be")
        if wire == 0:
            start = at
            _, at = varint(data, at, end)
        elif wire == 2:
            length, start = varint(data, at, end)
            at = start + length
        elif wire in (1, 5):
            start, at = at, at + (8 if wire == 1 else 4)
        else:
            raise ValueError("a wire type that cannot be")
        if at > end:
            raise ValueError("a field reaches beyond its message")
        yield tag >> 3, wire, start, at


def varint(data: Any, at: int, end: int) -> tuple[int, int]:
    """The varint at ``at``, below 2**64, and where it ends, at most ``end``."""
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


def entry(name: bytes, value: bytes | Sequence[int] | np.ndarray) -> bytes:
    """One feature, ready to stand in Features: a BytesList of one, or a list of numbers.

    Args:
        name: of the feature, UTF-8.
        value: bytes; int64 or float32 numbers.
    """
    if isinstance(value, bytes):
        return entry_head(name, len(value)) + value
    numbers = np.asarray(value)
    if numbers.dtype.kind == "f":
        packed, kind = numbers.astype("<f4").tobytes(), FLOAT  # in C order
    else:
        packed, kind = b"".join(map(to_varint, numbers.ravel().tolist())), INT64
    values = b"\x0a" + to_varint(len(packed)) + packed
    feature = bytes([kind << 3 | 2]) + to_varint(len(values)) + values
    return _entry_head(name, len(feature)) + feature


def entry_head(name: bytes, nbytes: int) -> bytes:
    """What stands before a value of ``nbytes`` bytes to make it a feature: a BytesList of one."""
    value = b"\x0a" + to_varint(nbytes)
    feature = b"\x0a" + to_varint(len(value) + nbytes) + value
    return _entry_head(name, len(feature) + nbytes) + feature


def _entry_head(name: bytes, nbytes: int) -> bytes:
    inner = b"\x0a" + to_varint(len(name)) + name + b"\x12" + to_varint(nbytes)
    return b"\x0a" + to_varint(len(inner) + nbytes) + inner
