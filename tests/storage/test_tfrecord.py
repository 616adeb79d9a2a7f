"""TFRecord against the package `tfrecord`, DALI and (long) TensorFlow, both ways."""

from __future__ import annotations

import gzip
import json
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google_crc32c import value as crc32c
from tfrecord import TFRecordWriter
from tfrecord.reader import tfrecord_loader
from tfrecord.tools.tfrecord2idx import create_index

from fastload import FastLoader
from fastload.errors import StoreError, StoreNotFoundError
from fastload.storage import DCT, RAW, Record, open_store, open_writer
from fastload.storage.formats.tfrecord import frames, head, masked
from storage.formats import CLASSES, alone, data_of, picture, records


def write(path: Path, given: list[Record], **options: Any) -> Path:
    with open_writer(path, classes=CLASSES, **options) as writer:
        writer.append(given)
    return path


def foreign(path: Path, count: int = 9, **extra: Any) -> Path:
    """A file of another writer; ``extra``: feature name -> function of the number."""
    writer = TFRecordWriter(str(path))
    for i in range(count):
        features = {
            "image/height": (5, "int"),
            "image/encoded": (picture(i, 6, 5), "byte"),
            "image/class/label": (i % 2 + 1, "int"),
            "image/class/text": (b"cat" if i % 2 else b"d\xc3\xb6g", "byte"),
            "image/filename": (f"n{i}.JPEG".encode(), "byte"),
            "image/width": (6, "int"),
        }
        features |= {name: value(i) for name, value in extra.items()}
        writer.write({name: value for name, value in features.items() if value is not None})
    writer.close()
    return path


def test_features_are_those_of_tf_slim(tmp_path: Path) -> None:
    given = records(5)
    path = write(tmp_path / "a.tfrecord", given)
    for record, example in zip(given, list(tfrecord_loader(str(path), None))):
        text = {name: value for name, value in example.items() if isinstance(value, bytes)}
        assert text == {
            "image/encoded": record.data,
            "image/format": b"JPEG",
            "image/colorspace": b"RGB",
            "image/filename": record.key.encode(),
            "image/class/text": CLASSES[record.label].encode(),
        }
        numbers = {name: value.tolist() for name, value in example.items() if name not in text}
        assert numbers == {
            "image/class/label": [record.label],
            "image/height": [record.height],
            "image/width": [record.width],
            "image/channels": [3],
        }


def test_checksums_of_length_and_data_are_right(tmp_path: Path) -> None:
    data = write(tmp_path / "a.tfrecord", records(20)).read_bytes()
    at = count = 0
    while at < len(data):
        (nbytes,) = struct.unpack_from("<Q", data, at)
        of_length, of_data = struct.unpack_from("<I", data, at + 8) + struct.unpack_from(
            "<I", data, at + 12 + nbytes
        )
        assert of_length == masked(crc32c(data[at : at + 8]))
        assert of_data == masked(crc32c(data[at + 12 : at + 12 + nbytes]))
        at += nbytes + 16
        count += 1
    assert count == 20


def test_index_is_that_of_tfrecord2idx(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tfrecord", records(20), shards=2, total=20)
    for number in range(2):
        shard = tmp_path / f"a-0000{number}-of-00002.tfrecord"
        create_index(str(shard), str(tmp_path / "expected"))
        expected = [line.split() for line in (tmp_path / "expected").read_text().splitlines()]
        assert [line.split() for line in Path(f"{shard}.idx").read_text().splitlines()] == expected
    assert data_of(path) == [record.data for record in records(20)]


def test_fields_and_labels_are_features_too(tmp_path: Path) -> None:
    given = [
        Record(data=picture(i, 4, 4), label=[i, 2], key=str(i), width=4, height=4, fields=fields)
        for i in range(3)
        for fields in [{"box": np.array([[i, 1.5]], np.float32), "mask": b"\x89PNG", "note": "ü"}]
    ]
    path = write(tmp_path / "a.tfrecord", given)
    example = list(tfrecord_loader(str(path), None))[2]
    assert example["image/class/label"].tolist() == [2, 2]
    assert example["box"].tolist() == [2, 1.5]
    assert bytes(example["mask"]) == b"\x89PNG" and bytes(example["note"]) == "ü".encode()
    path = alone(path)
    store = open_store(path)
    assert store.labels is not None and store.labels.tolist() == [[0, 2], [1, 2], [2, 2]]
    assert store.column("box").tolist() == [[0, 1.5], [1, 1.5], [2, 1.5]]
    assert store.values("mask", np.array([1])) == [b"\x89PNG"]


def test_raw_and_dct_records_are_known_without_the_sidecar(tmp_path: Path) -> None:
    pixels = bytes(range(2 * 3 * 3))
    given = [
        Record(data=pixels, label=0, key="a", width=2, height=3, kind=RAW),
        Record(data=picture(1, 4, 4), label=1, key="b", width=4, height=4),
        Record(data=b"not really", label=1, key="c", width=4, height=4, kind=DCT),
    ]
    path = write(tmp_path / "a.tfrecord", given)
    path = alone(path)
    store = open_store(path)
    assert store.kinds(np.arange(3)).tolist() == [RAW, 0, DCT]
    assert store.sizes(np.arange(2)).tolist() == [[2, 3], [4, 4]]
    assert data_of(path)[0] == pixels


def test_file_of_another_writer_is_read(tmp_path: Path) -> None:
    path = foreign(
        tmp_path / "theirs.tfrecord",
        **{
            "image/object/bbox/xmin": lambda i: ([0.5] * i, "float") if i else None,
            "box": lambda i: ([i, i + 1], "int"),
            "mask": lambda i: (bytes([i]), "byte"),
        },
    )
    store, indices = open_store(path), np.arange(9)
    assert data_of(path) == [picture(i, 6, 5) for i in range(9)]
    assert store.labels is not None and store.labels.tolist() == [i % 2 + 1 for i in range(9)]
    assert list(store.classes) == ["", "dög", "cat"]
    assert store.keys(indices) == [f"n{i}.JPEG" for i in range(9)]
    assert store.sizes(indices).tolist() == [[6, 5]] * 9
    assert store.checksums(indices) is None
    assert store.column("box").tolist() == [[i, i + 1] for i in range(9)]
    assert store.values("mask", np.array([3])) == [b"\x03"]
    ragged = [json.loads(value) for value in store.values("object.bbox.xmin", indices)]
    assert ragged == [[0.5] * i for i in range(9)]
    images, labels = next(iter(FastLoader(path, batch_size=9)))
    assert images.shape == (9, 3, 5, 6) and labels.tolist() == [i % 2 + 1 for i in range(9)]


def test_shards_of_another_writer_open_by_a_pattern(tmp_path: Path) -> None:
    for number in range(3):
        foreign(tmp_path / f"t-0000{number}-of-00003.tfrecord", 4 + number)
    expected = [picture(i, 6, 5) for number in range(3) for i in range(4 + number)]
    for pattern in ("t-*.tfrecord", "t-{00000..00002}-of-00003.tfrecord", "t.tfrecord"):
        assert data_of(tmp_path / pattern) == expected
    assert len(set(open_store(tmp_path / "t-*.tfrecord").keys(np.arange(15)))) == 15


def test_labels_of_different_lengths_are_a_field(tmp_path: Path) -> None:
    path = foreign(
        tmp_path / "a.tfrecord", 3, **{"image/class/label": lambda i: ([1] * (i + 1), "int")}
    )
    store = open_store(path)
    assert store.labels is None
    values = store.values("class.label", np.arange(3))
    assert [json.loads(value) for value in values] == [[1], [1, 1], [1, 1, 1]]


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        (
            {"image/class/label": lambda i: (i, "int") if i != 1 else None},
            {"class.label": [[0], [], [2]], "class.text": [b"d\xc3\xb6g", b"cat", b"d\xc3\xb6g"]},
        ),
        (
            {
                "image/class/label": lambda i: None,
                "image/class/text": lambda i: None,
                "label": lambda i: (b"cat" if i else b"dog", "byte"),
            },
            {"feature.label": [b"dog", b"cat", b"cat"]},
        ),
        (
            {
                "image/class/label": lambda i: (b"cat", "byte") if i else None,
                "image/class/text": lambda i: None,
            },
            {"class.label": [b"", b"cat", b"cat"]},
        ),
        (
            {"image/class/label": lambda i: None},
            {"class.text": [b"d\xc3\xb6g", b"cat", b"d\xc3\xb6g"]},
        ),
        (
            {
                "image/class/label": lambda i: ([1] * (i + 1), "int"),
                "image/class/text": lambda i: None,
            },
            {"class.label": [[1], [1, 1], [1, 1, 1]]},
        ),
    ],
)
def test_labels_that_are_none_are_shown_as_they_are(
    tmp_path: Path, features: dict[str, Any], expected: dict[str, Any]
) -> None:
    path = foreign(tmp_path / "a.tfrecord", 3, **features)
    assert open_store(path).labels is None
    (batch,) = FastLoader(path, 3)
    assert set(batch) == {"image", *expected} and len(batch["image"]) == 3
    assert {name: batch[name] for name in expected} == expected


def test_without_labels_samples_are_images(tmp_path: Path) -> None:
    none = {"image/class/label": lambda i: None, "image/class/text": lambda i: None}
    path = foreign(tmp_path / "a.tfrecord", 3, **none, mask=lambda i: (b"x", "byte"))
    (batch,) = FastLoader(path, 3)
    assert batch.shape == (3, 3, 5, 6)


def test_truncated_file_is_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    whole = foreign(tmp_path / "a.tfrecord", 3).read_bytes()
    offset, _ = frames(whole, "")
    begin = [int(at) - 12 for at in offset] + [len(whole)]
    cut = tmp_path / "cut.tfrecord"
    for end in [1, 11, 12, 13, 200, begin[1] + 5, begin[2] + 12, len(whole) - 1]:
        cut.write_bytes(whole[:end])
        record = sum(end > at for at in begin[1:])
        with pytest.raises(StoreError, match="truncated") as caught:
            open_store(cut)
        assert (caught.value.record, caught.value.offset) == (record, begin[record])
    for record in range(4):
        cut.write_bytes(whole[: begin[record]])  # an end between two records cannot be seen
        assert len(open_store(cut)) == record


@pytest.mark.parametrize("length", [0, 1, 2**31, 2**63, 2**64 - 1])
def test_absurd_and_damaged_lengths_are_refused(tmp_path: Path, length: int) -> None:
    path = foreign(tmp_path / "a.tfrecord", 3)
    whole = bytearray(path.read_bytes())
    at = int(frames(bytes(whole), "")[0][1]) - 12
    whole[at : at + 8] = struct.pack("<Q", length)
    path.write_bytes(whole)
    with pytest.raises(StoreError, match="expected the length of a TFRecord") as caught:
        open_store(path)
    assert (caught.value.record, caught.value.offset) == (1, at)
    whole[at : at + 12] = head(length)  # now with the right checksum
    path.write_bytes(whole)
    with pytest.raises(StoreError, match=r"truncated|expected the length|no tf.train"):
        open_store(path)


def test_what_is_no_tfrecord_says_so(tmp_path: Path) -> None:
    for name, data, message in [
        ("zeros", bytes(1000), "not a TFRecord file"),
        ("text", b"id,label\n" * 100, "not a TFRecord file"),
        ("gzip", gzip.compress(bytes(1000)), "found gzip: pack it"),
    ]:
        path = tmp_path / f"{name}.tfrecord"
        path.write_bytes(data)
        with pytest.raises(StoreError, match=message):
            open_store(path)
    path.write_bytes(head(3) + b"abc" + masked(crc32c(b"abc")).to_bytes(4, "little"))
    with pytest.raises(StoreError, match=r"expected a tf.train.Example"):
        open_store(path)
    writer = TFRecordWriter(str(path))
    writer.write({"text": (b"hello", "byte")})
    writer.close()
    with pytest.raises(StoreError, match="expected a feature image/encoded, found text"):
        open_store(path)
    with pytest.raises(StoreNotFoundError):
        open_store(tmp_path / "none-*.tfrecord")


def test_a_record_that_is_no_example_is_named_wherever_it_lies(tmp_path: Path) -> None:
    path = foreign(tmp_path / "a.tfrecord", 120)
    data = bytearray(path.read_bytes())
    data[frames(bytes(data), str(path))[0][110]] = 0xFF  # of the tag of its first field
    path.write_bytes(data)
    with pytest.raises(StoreError, match=r"record 110, byte offset \d+: expected a tf\.train"):
        open_store(path)


def test_record_without_an_image_is_named(tmp_path: Path) -> None:
    path = foreign(
        tmp_path / "a.tfrecord",
        4,
        **{"image/encoded": lambda i: None if i == 2 else (picture(i, 4, 4), "byte")},
    )
    with pytest.raises(StoreError, match="expected one value in the feature image/encoded") as e:
        open_store(path)
    assert e.value.record == 2


def test_dali_reads_ours_with_our_index(tmp_path: Path, dali: None) -> None:
    import nvidia.dali.fn as fn
    import nvidia.dali.tfrecord as tfrec
    from nvidia.dali import pipeline_def

    given = records(12)
    path = write(tmp_path / "a.tfrecord", given)

    @pipeline_def(batch_size=12, num_threads=1, device_id=None)
    def read() -> Any:
        found = fn.readers.tfrecord(
            path=str(path),
            index_path=f"{path}.idx",
            features={
                "image/encoded": tfrec.FixedLenFeature((), tfrec.string, ""),
                "image/class/label": tfrec.FixedLenFeature([1], tfrec.int64, -1),
            },
        )
        return found["image/encoded"], found["image/class/label"]

    images, labels = read().run()
    assert [images.at(i).tobytes() for i in range(12)] == [record.data for record in given]
    assert [labels.at(i).tolist() for i in range(12)] == [[record.label] for record in given]


TENSORFLOW = """
import sys, tensorflow as tf
ours, theirs = sys.argv[1:]
spec = {"image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64)}
files = sorted(tf.io.gfile.glob(ours))
with tf.io.TFRecordWriter(theirs) as writer:
    for serialised in tf.data.TFRecordDataset(files):
        parsed = tf.io.parse_single_example(serialised, spec)
        writer.write(serialised.numpy())
        example = tf.train.Example()
        example.features.feature["image/encoded"].bytes_list.value.append(
            parsed["image/encoded"].numpy())
        example.features.feature["image/class/label"].int64_list.value.append(
            int(parsed["image/class/label"]) + 5)
        example.features.feature["image/filename"].bytes_list.value.append(
            b"again/" + example.SerializeToString()[-8:].hex().encode() + serialised.numpy()[-9:])
        writer.write(example.SerializeToString())
"""


@pytest.mark.long
def test_tensorflow_reads_ours_and_we_read_tensorflows(tmp_path: Path, tensorflow: str) -> None:
    given = records(40)
    write(tmp_path / "a.tfrecord", given, shards=3, total=40)
    theirs = tmp_path / "theirs.tfrecord"
    subprocess.run(
        [tensorflow, "-c", TENSORFLOW, str(tmp_path / "a-*.tfrecord"), str(theirs)], check=True
    )
    store = open_store(theirs)
    assert data_of(theirs) == [record.data for record in given for _ in range(2)]
    assert store.labels is not None
    assert store.labels.tolist() == [
        n for record in given for n in (record.label, record.label + 5)
    ]
