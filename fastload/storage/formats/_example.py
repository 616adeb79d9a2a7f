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
from collections.abc import Sequence
from types import ModuleType

import numpy as np

from ... import _native

Data = bytes | memoryview | mmap.mmap

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


def names(data: Data, offset: np.ndarray, nbytes: np.ndarray) -> tuple[int, list[bytes]]:
    """The first of the examples at ``offset`` that is no valid message, or -1; their features."""
    found: tuple[int, list[bytes]] = _core().feature_names(data, offset, nbytes)
    return found


def find(
    data: Data, offset: np.ndarray, nbytes: np.ndarray, names: Sequence[bytes], found: FeaturePlaces
) -> int:
    """Write into ``found`` where the features ``names`` lie in the examples at ``offset``.

    Returns the number of the first that is no valid message, or -1.
    """
    broken: int = _core().find_features(
        data, offset, nbytes, list(names),
        found.kind, found.count, found.offset, found.nbytes, found.first,
    )  # fmt: skip
    return broken


def numbers(
    data: Data, kind: int, offset: np.ndarray, nbytes: np.ndarray, count: int
) -> np.ndarray:
    """The ``count`` values of all lists, FLOAT (float32) or INT64, that ``find`` has found."""
    values = np.empty(count, np.int64)
    whole = _core().feature_numbers(
        data, kind, np.ascontiguousarray(offset), np.ascontiguousarray(nbytes), values
    )
    assert whole, "``find`` has counted them"
    return as_numbers(values, kind)


def as_numbers(values: np.ndarray, kind: int) -> np.ndarray:
    """``values``, which are the 32 bits of FLOAT (float32), or INT64."""
    return values.astype(np.uint32).view(np.float32) if kind == FLOAT else values


def _core() -> ModuleType:
    return _native.required("a TFRecord file without a sidecar needs the native core")


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


def to_varint(value: int) -> bytes:
    """``value`` as a varint; negative ones as their 64-bit complement."""
    if 0 <= value < 0x80:
        return _ONE_BYTE[value]
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
