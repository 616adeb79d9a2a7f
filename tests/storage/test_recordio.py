"""RecordIO: files built byte by byte from the format's specification, and DALI, which reads ours.

The specification: dmlc-core's recordio.h (magic, parts, padding to 4) and MXNet's recordio.py
(`IRHeader`: flag, label, id, id2; `flag` labels of float32 behind it if it is not 0).
"""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastload import FastLoader, info
from fastload.errors import StoreError
from fastload.storage import RAW, Record, open_store, open_writer
from fastload.storage._read import read_records, where_of
from storage.formats import CLASSES, alone, data_of, picture, records

MAGIC = bytes([0x0A, 0x23, 0xD7, 0xCE])


def piece(part: int, data: bytes) -> bytes:
    return MAGIC + struct.pack("<I", part << 29 | len(data)) + data + bytes(-len(data) % 4)


def packed(label: float | list[float], number: int, image: bytes) -> bytes:
    if isinstance(label, list):
        numbers = struct.pack(f"<{len(label)}f", *label)
        return struct.pack("<IfQQ", len(label), 0.0, number, 0) + numbers + image
    return struct.pack("<IfQQ", 0, label, number, 0) + image


def in_pieces(data: bytes) -> bytes:
    """A record as dmlc's writer cuts it: at every magic at a multiple of 4."""
    words = [data[i : i + 4] for i in range(0, len(data), 4)]
    parts: list[list[bytes]] = [[]]
    for word in words:
        if word == MAGIC:
            parts.append([])
        else:
            parts[-1].append(word)
    joined = [b"".join(part) for part in parts]
    numbers = [1, *[2] * (len(joined) - 2), 3] if len(joined) > 1 else [0]
    return b"".join(piece(number, part) for number, part in zip(numbers, joined))


def rec(path: Path, labels: list[Any], ids: list[int] | None = None) -> Path:
    ids = list(range(len(labels))) if ids is None else ids
    data = [piece(0, packed(label, n, picture(n, 6, 5))) for label, n in zip(labels, ids)]
    path.write_bytes(b"".join(data))
    return path


def write(path: Path, given: list[Record], **options: Any) -> Path:
    with open_writer(path, classes=CLASSES, **options) as writer:
        writer.append(given)
    return path


def marked(data: bytes) -> bytes:
    """``data`` without the mark in the first record's id2."""
    assert data[24:32] == struct.pack("<Q", 0xFA50 << 48)
    return data[:24] + bytes(8) + data[32:]


def with_magic(tail: int = 0) -> list[Record]:
    """Records whose bytes hold the magic: aligned, unaligned, first, last, twice in a row."""
    image = picture(3, 8, 8)
    start = image[: len(image) // 4 * 4]
    made = [
        start + MAGIC + b"rest",
        start + b"x" + MAGIC + b"rest",
        MAGIC + start + MAGIC,
        start + MAGIC + MAGIC + bytes(tail) + b"!",
        start + MAGIC[:2] + MAGIC,
        image,
        b"",
        MAGIC,
    ]
    return [
        Record(data=data, label=i % 2, key=f"{i}.jpg", width=8, height=8)
        for i, data in enumerate(made)
    ]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([0.0, 3.0, 2.0], np.array([0, 3, 2])),
        ([0.5, 3.0, -2.0], np.array([0.5, 3, -2], np.float32)),
        ([[1.0], [2.0], [3.0]], np.array([[1], [2], [3]])),
        ([[1.0, 0.25], [2.0, 1], [3.0, 7]], np.array([[1, 0.25], [2, 1], [3, 7]], np.float32)),
        ([2.0**30, 0.0, 1.0], np.array([2.0**30, 0, 1], np.float32)),
    ],
)
def test_files_made_by_hand_are_read(tmp_path: Path, labels: list[Any], expected: Any) -> None:
    path = rec(tmp_path / "a.rec", labels, [7, 5, 9])
    store = open_store(path)
    assert data_of(path) == [picture(n, 6, 5) for n in (7, 5, 9)]
    assert store.labels is not None and store.labels.dtype == expected.dtype
    assert np.array_equal(store.labels, expected)
    assert store.keys(np.arange(3)) == ["7", "5", "9"]
    assert store.sizes(np.arange(3)).tolist() == [[6, 5]] * 3
    assert store.checksums(np.arange(3)) is None


def test_keys_come_out_of_the_list_beside_it(tmp_path: Path) -> None:
    path = rec(tmp_path / "a.rec", [1.0, 0.0], [5, 4])
    (tmp_path / "a.lst").write_text("4\t0.000000\tcat/猫.jpg\n5\t1.000000\tdog/b.jpg\n")
    assert open_store(path).keys(np.arange(2)) == ["dog/b.jpg", "cat/猫.jpg"]


def test_labels_of_different_lengths_are_a_field(tmp_path: Path) -> None:
    path = rec(tmp_path / "a.rec", [[1.0, 2.0], 3.0, [4.0, 5.0, 6.5]])
    (batch,) = FastLoader(path, 3)
    assert set(batch) == {"image", "labels"} and batch["labels"] == [[1, 2], [3], [4, 5, 6.5]]
    store = open_store(path)
    assert store.labels is None
    values = [json.loads(value) for value in store.values("labels", np.arange(3))]
    assert values == [[1, 2], [3], [4, 5, 6.5]]


def test_records_in_several_pieces_are_joined(tmp_path: Path) -> None:
    given = with_magic()
    path = tmp_path / "a.rec"
    path.write_bytes(b"".join(in_pieces(packed(1.0, i, r.data)) for i, r in enumerate(given)))
    store = open_store(path)
    assert data_of(path) == [record.data for record in given]
    assert data_of(path)[::-1] == list(read_records(store, np.arange(len(given))[::-1]))
    assert {store.shown(file) for file in store.spans(np.arange(8)).file.tolist()} == {str(path)}
    # Nobody finds a joined record at an offset of the file.
    offsets = [where_of(store, record)["offset"] for record in range(8)]
    files = store.spans(np.arange(8)).file.tolist()
    joined = [file in store.memory() for file in files]
    assert [offset is None for offset in offsets] == joined and any(joined)
    told = info(path)
    assert (told.files, told.file_nbytes) == (1, path.stat().st_size)
    again = pickle.loads(pickle.dumps(store))
    assert list(read_records(again, np.arange(8))) == [record.data for record in given]
    store.close()
    assert list(read_records(store, np.arange(8))) == [record.data for record in given]


def test_we_cut_records_as_the_specification_says(tmp_path: Path) -> None:
    given = with_magic(tail=9)
    path = write(tmp_path / "a.rec", given)
    frames = [in_pieces(packed(r.label, i, r.data)) for i, r in enumerate(given)]
    assert marked(path.read_bytes()) == b"".join(frames)
    starts = np.cumsum([0] + [len(frame) for frame in frames[:-1]])
    lines = [line.split("\t") for line in (tmp_path / "a.idx").read_text().splitlines()]
    assert [(int(a), int(b)) for a, b in lines] == list(enumerate(starts.tolist()))
    assert data_of(path) == [record.data for record in given]
    path = alone(path)
    assert data_of(path) == [record.data for record in given]


def test_pieces_reach_the_engine_joined_and_leave_nothing_open(
    tmp_path: Path, no_leaks: None
) -> None:
    image = picture(3, 8, 8)
    longer = image + bytes(-len(image) % 4) + MAGIC
    given = [
        Record(data=data, label=i, key=str(i), width=8, height=8)
        for i, data in enumerate([image, longer, image])
    ]
    path = write(tmp_path / "a.rec", given)
    assert open_store(path).spans(np.array([1])).file.tolist() == [1]
    for workers in (0, 2):
        images, labels = next(iter(FastLoader(path, batch_size=3, num_workers=workers)))
        assert labels.tolist() == [0, 1, 2]
        assert torch.equal(images[0], images[1]) and torch.equal(images[0], images[2])


def test_idx_and_lst_are_those_of_im2rec(tmp_path: Path) -> None:
    given = records(10)
    write(tmp_path / "a.rec", given, shards=2, total=10)
    for number in range(2):
        stem = tmp_path / f"a-0000{number}-of-00002"
        data = Path(f"{stem}.rec").read_bytes()
        index = [line.split("\t") for line in Path(f"{stem}.idx").read_text().splitlines()]
        listed = [line.split("\t") for line in Path(f"{stem}.lst").read_text().splitlines()]
        assert [int(line[0]) for line in index] == list(range(5 * number, 5 * number + 5))
        for (_, at), (n, label, key) in zip(index, listed):
            assert data[int(at) : int(at) + 4] == MAGIC
            flag, value, id_, id2 = struct.unpack_from("<IfQQ", data, int(at) + 8)
            mark = 0xFA60 << 48 if n == "0" else 0
            assert (flag, value, id_, id2) == (0, float(label), int(n), mark)
            assert (float(label), key) == (given[int(n)].label, given[int(n)].key)


def test_several_labels_are_behind_the_header(tmp_path: Path) -> None:
    given = [
        Record(data=picture(i, 4, 4), label=[i + 0.5, 2], key=f"a\tb{i}", width=4, height=4)
        for i in range(3)
    ]
    path = write(tmp_path / "a.rec", given)
    expected = [piece(0, packed([r.label[0], 2.0], i, r.data)) for i, r in enumerate(given)]
    assert marked(path.read_bytes()) == b"".join(expected)
    assert (tmp_path / "a.lst").read_text().splitlines()[1] == "1\t1.5\t2.0\ta b1"
    assert open_store(path).keys(np.arange(1)) == ["a\tb0"]


def test_raw_records_are_known_without_the_sidecar(tmp_path: Path) -> None:
    pixels = bytes(range(18))
    given = [
        Record(data=pixels, label=0, key="a", width=2, height=3, kind=RAW),
        Record(data=picture(1, 4, 5), label=1, key="b", width=4, height=5),
    ]
    path = write(tmp_path / "a.rec", given)
    path = alone(path)
    store = open_store(path)
    assert store.kinds(np.arange(2)).tolist() == [RAW, 0]
    assert store.sizes(np.arange(2)).tolist() == [[2, 3], [4, 5]]


def test_truncated_file_is_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    frames = [piece(0, packed(1.0, i, picture(i, 6, 5))) for i in range(2)]
    frames += [in_pieces(packed(1.0, 2, b"abcd" + MAGIC + b"efgh"))]
    whole, cut = b"".join(frames), tmp_path / "cut.rec"
    begin = [0, len(frames[0]), len(frames[0]) + len(frames[1])]
    for end in [1, 7, 8, 40, begin[1] + 3, begin[2] + 7, begin[2] + 36, begin[2] + 44, -4, -1]:
        cut.write_bytes(whole[:end])
        with pytest.raises(StoreError, match="truncated") as caught:
            open_store(cut)
        record = sum((end if end > 0 else len(whole) + end) > at for at in begin) - 1
        assert caught.value.record == record


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (bytes(64), "not a RecordIO file"),
        (b"id,label\n" * 20, "not a RecordIO file"),
        (piece(2, bytes(40)), "not a RecordIO file"),
        (piece(3, bytes(40)), "not a RecordIO file"),
        (piece(1, bytes(40)) + piece(0, bytes(40)), "not a RecordIO file"),
        (piece(1, bytes(40)) + piece(2, bytes(40)), "truncated"),
        (MAGIC + struct.pack("<I", (1 << 29) - 1) + bytes(99), "truncated"),
        (MAGIC + struct.pack("<I", 7 << 29 | 8) + bytes(8), "not a RecordIO file"),
        (piece(0, bytes(10)), "expected a header of 24 bytes and its labels"),
        (piece(0, struct.pack("<IfQQ", 2**31, 0, 0, 0) + bytes(40)), "expected a header"),
        (piece(1, struct.pack("<IfQQ", 4, 0, 0, 0)) + piece(3, bytes(40)), "in its first piece"),
    ],
)
def test_damaged_and_absurd_files_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "a.rec"
    for before in (b"", piece(0, packed(1.0, 0, picture(0, 4, 4)))):
        path.write_bytes(before + data)
        with pytest.raises(StoreError, match=message) as caught:
            open_store(path)
        assert caught.value.path == str(path) and caught.value.record == (1 if before else 0)


@pytest.mark.parametrize("several", [False, True])
def test_dali_reads_ours(tmp_path: Path, several: bool, dali: None) -> None:
    import nvidia.dali.fn as fn
    from nvidia.dali import pipeline_def

    given = records(12)
    if several:
        given = [
            Record(data=r.data, label=[i, i + 0.5], key=r.key, width=r.width, height=r.height)
            for i, r in enumerate(given)
        ]
    write(tmp_path / "a.rec", given)

    @pipeline_def(batch_size=12, num_threads=1, device_id=None)
    def read() -> Any:
        return tuple(
            fn.readers.mxnet(path=str(tmp_path / "a.rec"), index_path=str(tmp_path / "a.idx"))
        )

    images, labels = read().run()
    assert [images.at(i).tobytes() for i in range(12)] == [record.data for record in given]
    found = [labels.at(i).tolist() for i in range(12)]
    assert found == [[i, i + 0.5] if several else [r.label] for i, r in enumerate(given)]
