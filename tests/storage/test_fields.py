"""Labels of every shape and named fields, in every format that keeps them."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastload.errors import UsageError
from fastload.storage import Field, Record, Store, open_store, open_writer
from storage.formats import CLASSES, ROWS, Row, records

COUNT = 23


@pytest.fixture(params=[row for row in ROWS if row.fields], ids=lambda row: row.name)
def row(request: pytest.FixtureRequest) -> Row:
    return request.param


def made(row: Row, folder: Path, changed: Sequence[dict[str, Any]]) -> Store:
    """A store of records with these attributes changed."""
    given = [
        dataclasses.replace(r, **c) for r, c in zip(row.records(len(changed)), changed, strict=True)
    ]
    return open_store(row.make(folder, given))


@pytest.mark.parametrize(
    ("labels", "dtype"),
    [
        ([i * 7 - 3 for i in range(COUNT)], np.int64),
        ([i / 3 for i in range(COUNT)], np.float64),
        ([np.float32(i / 3) for i in range(COUNT)], np.float32),
        ([[i, -i, 2**40 + i] for i in range(COUNT)], np.int64),
        ([(0.5, i) for i in range(COUNT)], np.float64),
        (list(np.random.default_rng(0).random((COUNT, 40), np.float32)), np.float32),
        ([np.array([i], np.uint8) for i in range(COUNT)], np.int64),
    ],
    ids=["int", "float", "float32", "ints", "floats", "vector", "uint8"],
)
def test_labels_of_every_shape_are_kept(
    row: Row, tmp_path: Path, labels: list[Any], dtype: type
) -> None:
    store = made(row, tmp_path, [{"label": label} for label in labels])
    assert store.labels is not None
    assert store.labels.dtype == dtype
    np.testing.assert_array_equal(store.labels, np.array(labels))
    with pytest.raises(ValueError, match="read-only"):
        store.labels[0] = 1


def test_store_without_labels(row: Row, tmp_path: Path) -> None:
    store = made(row, tmp_path, [{"label": None}] * 3)
    assert store.labels is None


FIELDS: list[dict[str, Any]] = [
    {
        "box": np.arange(4, dtype=np.float32) + i,
        "weight": i / 7,
        "seen": i % 2 == 0,
        "mask": bytes([i]) * (i % 5),
        "Bild text 写真": f"Ein Bild, {i} 猫" if i % 3 else "",
        "boxes": [[i, i + 1]] * (i % 4),
        "meta": {"i": i, "ä": None},
    }
    for i in range(COUNT)
]


@pytest.mark.parametrize("pickled", [False, True])
def test_fields_of_every_kind_are_kept(row: Row, tmp_path: Path, pickled: bool) -> None:
    store = made(row, tmp_path, [{"fields": fields} for fields in FIELDS])
    if pickled:
        store = pickle.loads(pickle.dumps(store))
    assert dict(store.fields) == {
        "box": Field("box", "array", np.dtype("<f4"), (4,)),
        "weight": Field("weight", "array", np.dtype("<f8"), ()),
        "seen": Field("seen", "array", np.dtype("?"), ()),
        "mask": Field("mask", "bytes"),
        "Bild text 写真": Field("Bild text 写真", "text"),
        "boxes": Field("boxes", "json"),
        "meta": Field("meta", "json"),
    }
    np.testing.assert_array_equal(store.column("box"), [f["box"] for f in FIELDS])
    np.testing.assert_array_equal(store.column("weight"), [f["weight"] for f in FIELDS])
    assert store.column("seen").tolist() == [f["seen"] for f in FIELDS]
    order = np.array([5, 0, COUNT - 1, 5, 3])
    assert store.values("mask", order) == [FIELDS[i]["mask"] for i in order]
    texts = store.values("Bild text 写真", order)
    assert [text.decode() for text in texts] == [FIELDS[i]["Bild text 写真"] for i in order]
    for name in ("boxes", "meta"):
        decoded = [store.fields[name].decode(value) for value in store.values(name, order)]
        assert decoded == [FIELDS[i][name] for i in order]
    with pytest.raises(ValueError, match="read-only"):
        store.column("box")[0] = 1


def test_missing_field_and_wrong_kind_name_what_there_is(row: Row, tmp_path: Path) -> None:
    store = made(row, tmp_path, [{"fields": {"caption": "a", "box": 1}}])
    with pytest.raises(UsageError, match=r"caption \(text\), box \(array\)"):
        store.column("boxes")
    with pytest.raises(UsageError, match="array named 'caption'"):
        store.column("caption")
    with pytest.raises(UsageError, match="bytes, text or json named 'box'"):
        store.values("box", np.arange(1))


def test_records_that_do_not_fit_together_are_refused(row: Row, tmp_path: Path) -> None:
    first, second = row.records(2)

    def add(*changes: dict[str, Any]) -> None:
        path = tmp_path / f"refused{row.suffix}"
        writer = open_writer(path, classes=CLASSES)
        try:
            for record, change in zip((first, second), changes):
                writer.append([dataclasses.replace(record, **change)])
        finally:
            writer.abort(keep_partial=False)

    with pytest.raises(UsageError, match="in every record of the store or in none"):
        add({"label": 1}, {"label": None})
    with pytest.raises(UsageError, match="labels of one dtype and shape"):
        add({"label": [1, 2]}, {"label": [1.0, 2.0]})
    with pytest.raises(UsageError, match=r"same fields .* found 'a' \(int64\) and 'a' \(float64\)"):
        add({"fields": {"a": 1}}, {"fields": {"a": 1.0}})
    with pytest.raises(UsageError, match=r"same fields .* and none"):
        add({"fields": {"a": b""}}, {"fields": {}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([{"label": [1, 2]}, {"label": [1]}], "same number of labels"),
        (
            [{"label": "cat"}, {"label": "dog"}],
            r"labels that are numbers .*, got 'cat': give the index of",
        ),
        ([{"label": 1}, {"label": b"x"}], r"got b'x': give"),
        ([{"label": 1}, {"label": 1 << 64}], r"below 2\*\*63 .*got 18446744073709551616: give"),
        ([{"label": np.array([1, None], object)}], "got None: give"),
        ([{"label": "cat" * 99}], r"got 'catcat\S+\.\.\.\S+catcat': give"),
        ([{"label": np.zeros((2, 2))}], r"got an array of shape \(1, 2, 2\): give"),
        ([{"fields": {"a": 1}}, {"fields": {}}], "expected the fields"),
        ([{"fields": {"a": 1}}, {"fields": {"a": "b"}}], "values of one type"),
        ([{"fields": {"a": np.zeros(2)}}, {"fields": {"a": np.zeros(3)}}], "arrays of one shape"),
        ([{"fields": {"a/b": 1}}], "without a slash"),
        ([{"fields": {"label": 1}}], "a field cannot be called"),
        ([{"fields": {"a": {1j}}}], "JSON cannot hold it"),
        ([{"fields": {"a": np.array("x")}}], "expected bool, integers or floats"),
    ],
)
def test_values_that_cannot_be_kept_are_refused(
    tmp_path: Path, changes: list[dict[str, Any]], message: str
) -> None:
    given = [dataclasses.replace(r, **c) for r, c in zip(records(len(changes)), changes)]
    writer = open_writer(tmp_path / "refused.lmdb")
    try:
        with pytest.raises(UsageError, match=message):
            writer.append(given)
    finally:
        writer.abort(keep_partial=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": "text"}, "expected bytes as data, .* got str"),
        ({"data": np.zeros(9)}, "expected bytes as data, .* got ndarray"),
        ({"data": np.zeros(9, "M8[s]")}, "expected bytes as data, .* got ndarray"),
        ({"data": np.zeros(9, np.uint8)[::2]}, "expected bytes as data, .* got ndarray"),
        ({"data": np.zeros((2, 3), np.uint8)}, "expected bytes as data, .* got ndarray"),
        ({"data": memoryview(bytes(8)).cast("H")}, "expected bytes as data, .* got memoryview"),
        ({"width": True}, "expected a width in pixels, got True"),
        ({"width": 8.5}, "expected a width in pixels, got 8.5"),
        ({"width": float("nan")}, "expected a width in pixels, got nan"),
        ({"width": 1 << 40}, "expected a width in pixels, got 1099511627776"),
        ({"height": -1}, "expected a height in pixels, got -1"),
        ({"height": None}, "expected a height in pixels, got None"),
    ],
)
def test_a_record_that_cannot_be_one_is_refused(changes: dict[str, Any], message: str) -> None:
    (record,) = records(1)
    with pytest.raises(UsageError, match=f"record {record.key!r}: {message}"):
        dataclasses.replace(record, **changes)


@pytest.mark.parametrize("name", ["a.lmdb", "a.rec", "a.tar", "a.h5"])
def test_bytes_and_sizes_may_be_numpy_s(tmp_path: Path, name: str) -> None:
    given = records(3)
    data: list[Any] = [
        np.frombuffer(given[0].data, np.uint8),
        memoryview(given[1].data),
        bytearray(given[2].data),
    ]
    sizes: list[Any] = [8.0, np.float32(8), np.int64(8)]
    with open_writer(tmp_path / name, classes=CLASSES) as writer:
        writer.append(
            [
                dataclasses.replace(record, data=data, width=size)
                for record, data, size in zip(given, data, sizes)
            ]
        )
    store = open_store(tmp_path / name)
    assert store.read(np.arange(3)) == [record.data for record in given]


def test_columns_of_a_batch_must_be_equally_long(tmp_path: Path) -> None:
    from fastload.storage import Batch

    writer = open_writer(tmp_path / "refused.lmdb")
    column = np.zeros(2, np.uint32)
    try:
        with pytest.raises(UsageError, match=r"2 items in every column .* \{'caption': 1\}"):
            writer.extend(
                Batch(
                    data=[b"a", b"b"],
                    keys=["a", "b"],
                    labels=None,
                    sizes=np.ones((2, 2), np.int32),
                    kinds=column.astype(np.uint8),
                    crc32c=column,
                    fields={"caption": [b"x"]},
                )
            )
    finally:
        writer.abort(keep_partial=False)


def test_resumed_writer_holds_to_labels_and_fields(row: Row, tmp_path: Path) -> None:
    path = tmp_path / f"resumed{row.suffix}"
    resumes = row.suffix in (".lmdb", ".tfrecord", ".rec", ".tar")  # the others start again
    given = [dataclasses.replace(r, fields={"text": r.key}) for r in row.records(4)]
    writer = open_writer(path, classes=CLASSES)
    writer.append(given[:2])
    writer.sync()
    writer.abort()
    with open_writer(path, classes=CLASSES) as writer:
        assert len(writer) == (2 if resumes else 0)
        if not resumes:
            writer.append(given[:2])
        with pytest.raises(UsageError, match="same fields"):
            writer.append([dataclasses.replace(given[2], fields={})])
        writer.append(given[2:])
    store = open_store(path)
    assert [json.loads(f'"{v.decode()}"') for v in store.values("text", np.arange(4))] == [
        record.key for record in given
    ]


def test_record_with_fields_can_be_pickled() -> None:
    record = Record(data=b"", label=1, key="a", width=1, height=1)
    assert pickle.loads(pickle.dumps(record)) == record
