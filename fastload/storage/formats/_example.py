"""tf.train.Example: where the features of each message lie, and how to write them.

    Example      1: Features
    Features     1: repeated entry                    (a map)
    entry        1: name   2: Feature
    Feature      1: BytesList | 2: FloatList | 3: Int64List
    ...List      1: repeated values; numbers packed or one by one

Source: tensorflow's example.proto and feature.proto. If a field occurs twice the last one counts,
as protobuf says of scalars and maps; unknown fields are skipped.

In protobuf's wire format a field is a tag (number << 3 | wire type), then a varint (wire type 0), 8
bytes (1), a length and as many bytes (2), or 4 bytes (5). Source: protobuf.dev, "Encoding".
"""

from __future__ import annotations

import dataclasses
import mmap
from collections.abc import Iterator, Sequence

import numpy as np

Data = bytes | memoryview | mmap.mmap

_SIGN = 1 << 63
_ONE_BYTE = [bytes([value]) for value in range(128)]

BYTES, FLOAT, INT64 = 1, 2, 3  # which list a feature is: its field number in Feature


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeaturePlaces:
    """Where m named features of n examples lie. All arrays are (n, m).

    Attributes:
        kind: uint8: BYTES, FLOAT, INT64, or 0 if the example has no such feature.
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
    def none(cls, rows: int, names: int) -> FeaturePlaces:
        """Arrays that say "no such feature", to be filled."""
        shape = rows, names
        return cls(
            kind=np.zeros(shape, np.uint8),
            count=np.zeros(shape, np.int32),
            offset=np.zeros(shape, np.int64),
            nbytes=np.zeros(shape, np.int64),
            first=np.zeros(shape, np.int64),
        )

    def rows(self, some: slice) -> FeaturePlaces:
        columns = [field.name for field in dataclasses.fields(self)]
        return FeaturePlaces(**{name: getattr(self, name)[some] for name in columns})


def find(
    data: Data, offset: np.ndarray, nbytes: np.ndarray, names: Sequence[bytes], found: FeaturePlaces
) -> int:
    """Write into ``found`` where the features ``names`` lie in the examples at ``offset``.

    Returns the number of the first that is no valid message, or -1.
    """
    from ... import _native

    core = _native.required("a TFRecord file without a sidecar needs the native core")
    broken: int = core.find_features(
        data, offset, nbytes, list(names),
        found.kind, found.count, found.offset, found.nbytes, found.first,
    )  # fmt: skip
    return broken


def features(data: Data, begin: int, end: int) -> Iterator[tuple[bytes, int, int, int]]:
    """(name, kind, start and end of its list) of each feature of the example [begin, end).

    Raises ValueError, IndexError or struct.error for what is no message.
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


def numbers(data: Data, kind: int, begin: int, end: int) -> np.ndarray:
    """The values of a FloatList (float32) or Int64List (int64), packed or not. Raises as above."""
    floats: list[bytes] = []
    integers: list[int] = []
    for number, wire, start, stop in fields(data, begin, end):
        if number != 1:
            continue
        if kind == FLOAT and wire in (2, 5):
            if (stop - start) % 4:
                raise ValueError("a list of floats whose length is not a multiple of 4")
            floats.append(bytes(data[start:stop]))
        elif kind == INT64 and wire in (0, 2):
            while start < stop:
                value, start = varint(data, start, stop)
                integers.append(signed(value))
    if kind == FLOAT:
        return np.frombuffer(b"".join(floats), "<f4")
    return np.array(integers, np.int64)


def entry(name: bytes, value: bytes | Sequence[int] | np.ndarray) -> bytes:
    """One entry of Features: a BytesList of one, or a list of int64 or float32 numbers."""
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
    """The bytes before a value of ``nbytes`` bytes that make it a feature: a BytesList of one."""
    value = b"\x0a" + to_varint(nbytes)
    feature = b"\x0a" + to_varint(len(value) + nbytes) + value
    return _entry_head(name, len(feature) + nbytes) + feature


def _entry_head(name: bytes, nbytes: int) -> bytes:
    inner = b"\x0a" + to_varint(len(name)) + name + b"\x12" + to_varint(nbytes)
    return b"\x0a" + to_varint(len(inner) + nbytes) + inner


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
