"""tf.train.Example: the core's bounded parser against the messages of the package `tfrecord`, which
are made by protobuf."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tfrecord import example_pb2

import protobuf_wire
from fastload.storage.formats import _example
from fastload.storage.formats._example import BYTES, FLOAT, INT64

NAMES = [b"image/encoded", b"label", b"weights", b"many", b"none", "größe".encode()]


def message(row: int) -> bytes:
    features = {
        "image/encoded": example_pb2.Feature(
            bytes_list=example_pb2.BytesList(value=[bytes([row]) * (row * 37)])
        ),
        "label": example_pb2.Feature(int64_list=example_pb2.Int64List(value=[row - 3])),
        "weights": example_pb2.Feature(float_list=example_pb2.FloatList(value=[0.5, row])),
        "many": example_pb2.Feature(bytes_list=example_pb2.BytesList(value=[b"a", b"", b"ccc"])),
        "größe": example_pb2.Feature(int64_list=example_pb2.Int64List(value=[2**62, -(2**63)])),
        "empty": example_pb2.Feature(int64_list=example_pb2.Int64List()),
    }
    return example_pb2.Example(  # type: ignore[no-any-return]
        features=example_pb2.Features(feature=features)
    ).SerializeToString()


def laid_out(messages: list[bytes]) -> tuple[bytes, np.ndarray, np.ndarray]:
    nbytes = np.array([len(one) for one in messages], np.int64)
    return b"".join(messages), np.cumsum(nbytes) - nbytes, nbytes


class Broken(Exception):
    """The number of the first message that is none."""


def find(
    data: Any, offset: np.ndarray, nbytes: np.ndarray, names: list[bytes]
) -> _example.FeaturePlaces:
    """What is found, in the middle of a longer table whose other rows stay as they are."""
    whole = _example.FeaturePlaces.none(len(offset) + 3, len(names))
    found = whole.rows(slice(1, len(offset) + 1))
    broken = _example.find(data, offset, nbytes, names, found)
    if broken >= 0:
        raise Broken(broken)
    for name in ("kind", "count", "offset", "nbytes", "first"):
        rows = getattr(whole, name)
        assert not rows[0].any() and not rows[-2:].any()
    return found


def test_features_of_protobuf_are_found() -> None:
    data, offset, nbytes = laid_out([message(row) for row in range(5)])
    found = find(data, offset, nbytes, NAMES)
    assert found.kind.tolist() == [[BYTES, INT64, FLOAT, BYTES, 0, INT64]] * 5
    assert found.count.tolist() == [[1, 1, 2, 3, 0, 2]] * 5
    for row in range(5):
        spans = list(zip(found.offset[row].tolist(), found.nbytes[row].tolist()))
        values = [data[at : at + length] for at, length in spans]
        assert values[0] == bytes([row]) * (row * 37) and values[3] == b"a"
        assert found.first[row, 1] == row - 3
        assert found.first[row, 5] == 2**62
        assert found.first[row, 2] == np.float32(0.5).view(np.uint32)
    for column, kind, expected in (
        (2, FLOAT, [number for row in range(5) for number in (0.5, row)]),
        (5, INT64, [2**62, -(2**63)] * 5),
    ):
        places = found.offset[:, column], found.nbytes[:, column]
        assert _example.numbers(data, kind, *places, 10).tolist() == expected
    broken, names = _example.names(data, offset, nbytes)
    assert broken == -1 and sorted(names) == sorted({*NAMES, b"empty"} - {b"none"})


def test_lists_that_are_not_packed_and_unknown_fields_are_read() -> None:
    unpacked = b"\x08\x05\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"  # 5, -1
    feature = b"\x1a" + bytes([len(unpacked)]) + unpacked
    unknown = b"\x28\x07\x31" + bytes(8) + b"\x3d" + bytes(4)  # of wire types 0, 1, 5
    entry = b"\x0a\x05label\x12" + bytes([len(feature)]) + feature
    features = unknown + b"\x0a" + bytes([len(entry)]) + entry
    data = b"\x0a" + bytes([len(features)]) + features + unknown
    assert example_pb2.Example.FromString(data).features.feature["label"].int64_list.value == [
        5,
        -1,
    ]
    found = find(data, np.zeros(1, np.int64), np.array([len(data)]), [b"label"])
    assert (found.kind[0, 0], found.count[0, 0], found.first[0, 0]) == (INT64, 2, 5)


def test_what_we_write_is_read_by_protobuf() -> None:
    entries = b"".join(
        [
            _example.entry(b"image/encoded", b"x" * 300),
            _example.entry(b"numbers", [1, -1, 2**63 - 1, -(2**63), 300]),
            _example.entry(b"floats", np.array([[1.5, -2], [3, 1e30]], np.float32)),
            _example.entry("größe".encode(), b""),
        ]
    )
    read = example_pb2.Example.FromString(b"\x0a" + _example.to_varint(len(entries)) + entries)
    feature = read.features.feature
    assert feature["image/encoded"].bytes_list.value == [b"x" * 300]
    assert feature["numbers"].int64_list.value == [1, -1, 2**63 - 1, -(2**63), 300]
    assert feature["floats"].float_list.value == [np.float32(x) for x in (1.5, -2, 3, 1e30)]
    assert feature["größe"].bytes_list.value == [b""]


def test_the_broken_example_is_named() -> None:
    whole = message(3)
    for cut in range(1, len(whole), 7):
        data, offset, nbytes = laid_out([whole, whole, whole[:cut], whole])
        with pytest.raises(Broken) as caught:
            find(data, offset, nbytes, NAMES)
        assert caught.value.args == (2,)
        assert _example.names(data, offset, nbytes)[0] == 2


def outcome(data: bytes, offset: np.ndarray, nbytes: np.ndarray) -> Any:
    try:
        found = find(data, offset, nbytes, NAMES)
    except Broken as error:
        return error.args[0]
    return [array.tolist() for array in (found.kind, found.count, found.first, found.offset)] + [
        found.nbytes.tolist()
    ]


def located(data: bytes, begin: int, length: int) -> list[tuple[int, ...]]:
    """Kind, number of values, first number, place and length of each of NAMES in one example."""
    rows = dict.fromkeys(NAMES, (0, 0, 0, 0, 0))
    for name, kind, start, end in protobuf_wire.features(data, begin, begin + length):
        if name not in rows:
            continue
        if kind == BYTES:
            values = protobuf_wire.fields(data, start, end)
            spans = [(at, to) for number, wire, at, to in values if number == 1 and wire == 2]
            at, to = spans[0] if spans else (start, start)
            rows[name] = kind, len(spans), 0, at, to - at
            continue
        numbers = protobuf_wire.numbers(data, kind, start, end)
        first = numbers[:1].view(np.uint32 if kind == FLOAT else np.int64).tolist() or [0]
        rows[name] = kind, len(numbers), first[0], start, end - start
    return [rows[name] for name in NAMES]


@pytest.mark.native
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4), st.integers(0, 9))
def test_damaged_examples_are_read_as_python_reads_them(
    changes: list[tuple[int, int]], row: int
) -> None:
    data, offset, nbytes = laid_out([message(1), message(row)])
    damaged = bytearray(data)
    for place, value in changes:
        damaged[place % len(damaged)] = value
    expected: Any = []
    for row, (begin, length) in enumerate(zip(offset.tolist(), nbytes.tolist(), strict=True)):
        try:
            expected.append(located(bytes(damaged), begin, length))
        except (ValueError, IndexError, struct.error):
            expected = row
            break
    else:
        expected = np.array(expected).transpose(2, 0, 1).tolist()
    assert outcome(bytes(damaged), offset, nbytes) == expected
    names: dict[bytes, None] = {}
    broken = -1
    for row, (begin, length) in enumerate(zip(offset.tolist(), nbytes.tolist(), strict=True)):
        try:
            for name, *_ in protobuf_wire.features(bytes(damaged), begin, begin + length):
                names.setdefault(name)
        except (ValueError, IndexError, struct.error):
            broken = row
            break
    assert _example.names(bytes(damaged), offset, nbytes) == (broken, list(names))


def test_varints_of_every_length_come_back() -> None:
    for bits, low in itertools.product(range(0, 64, 3), (0, 1)):
        value = (1 << bits) - low
        encoded = _example.to_varint(value)
        assert protobuf_wire.varint(encoded, 0, len(encoded)) == (value, len(encoded))
    with pytest.raises(ValueError, match="does not end"):
        protobuf_wire.varint(b"\xff" * 11, 0, 11)
