"""Protobuf's wire format, read in plain Python: what the core's parsers are compared with."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fastload.storage.formats._example import BYTES, FLOAT, INT64


def features(data: bytes, begin: int, end: int) -> Iterator[tuple[bytes, int, int, int]]:
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


def numbers(data: bytes, kind: int, begin: int, end: int) -> np.ndarray:
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


def fields(data: bytes, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
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


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The varint at ``at``, below 2**64, and where it ends, at most ``end``. Raises ValueError."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & ((1 << 64) - 1), at
    raise ValueError("a number that does not end")


def signed(value: int) -> int:
    """A varint as the int64 that it stands for."""
    return value - (1 << 64) if value & (1 << 63) else value
