"""LMDB files of other programs: key -> image file, and Caffe's Datum, which DALI reads too."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import protobuf_wire
from fastload import FastLoader, PackedDataset
from fastload.errors import StoreError
from fastload.storage import RAW, open_store
from fastload.storage.formats import _lmdb_foreign as foreign
from storage.formats import picture


def write(path: Path, items: Mapping[bytes, bytes], *, folder: bool = False) -> Path:
    """By py-lmdb, in the data format of LMDB 0.9, which DALI and Caffe read."""
    version = {"lib_version": 0} if int(lmdb.__version__.split(".")[0]) >= 3 else {}
    with lmdb.open(str(path), subdir=folder, lock=False, map_size=64 << 20, **version) as env:
        with env.begin(write=True) as transaction:
            for key, value in items.items():
                transaction.put(key, value)
    return path


def varint(value: int) -> bytes:
    value %= 1 << 64
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def datum(
    data: bytes, label: int | None, shape: tuple[int, ...] = (), encoded: bool = True
) -> bytes:
    """As caffe.proto has it: channels, height, width, data, label, encoded."""
    out = b"".join(bytes([8 * (n + 1)]) + varint(side) for n, side in enumerate(shape))
    out += b"\x22" + varint(len(data)) + data
    out += b"" if label is None else b"\x28" + varint(label)
    return out + (b"\x38\x01" if encoded else b"")


def test_images_by_key_are_read_in_the_order_of_their_keys(tmp_path: Path) -> None:
    images = {f"ä/{i:03d}".encode(): picture(i, 8, 6) for i in range(30)}
    notes = {b"__keys__": b"\x80\x04]", b"__len__": b"\x80\x04K\x1e."}
    path = write(tmp_path / "a.lmdb", images | notes)
    store, every = open_store(path), np.arange(30)
    assert store.format == "lmdb" and store.labels is None and store.checksums(every) is None
    assert store.keys(every) == [key.decode() for key in images]
    assert store.read(every[::-1]) == list(images.values())[::-1]
    assert store.sizes(every).tolist() == [[8, 6]] * 30
    again = pickle.loads(pickle.dumps(store))
    assert again.read(every) == list(images.values())
    batch = next(iter(FastLoader(path, batch_size=30)))
    batch = batch[0] if isinstance(batch, (tuple, list)) else batch
    assert batch.shape == (30, 3, 6, 8)


@pytest.mark.parametrize("folder", [False, True])
def test_encoded_datums_are_spans_of_their_images(tmp_path: Path, folder: bool) -> None:
    items = {
        f"{i:08d}_cat/{i}.jpg".encode(): datum(picture(i, 8, 6), i * 100 - 5, (3, 6, 8))
        for i in range(20)
    }
    path = write(tmp_path / ("a" if folder else "a.lmdb"), items, folder=folder)
    store, every = open_store(path), np.arange(20)
    assert store.indirect is None
    assert store.labels is not None and store.labels.tolist() == [i * 100 - 5 for i in range(20)]
    assert store.keys(every) == [key.decode() for key in items]
    assert store.read(every) == [picture(i, 8, 6) for i in range(20)]
    whole = Path(store.files[0]).read_bytes()
    spans = store.spans(every)
    assert [
        whole[at : at + nbytes] for at, nbytes in zip(spans.offset.tolist(), spans.nbytes.tolist())
    ] == store.read(every)


def test_labels_that_some_datums_lack_are_a_field(tmp_path: Path) -> None:
    labels = [4, None, -2]
    items = {b"%d" % i: datum(picture(i, 8, 6), label) for i, label in enumerate(labels)}
    path = write(tmp_path / "a.lmdb", items)
    store = open_store(path)
    assert store.labels is None and store.sample_fields == ("labels",)
    assert store.batch("labels", np.arange(3)) == labels
    items = {b"%d" % i: datum(picture(i, 8, 6), None) for i in range(3)}
    store = open_store(write(tmp_path / "none.lmdb", items))
    assert store.labels is None and store.sample_fields is None and not store.fields


@pytest.mark.parametrize("channels", [1, 3])
def test_raw_datums_come_out_as_rgb(tmp_path: Path, channels: int) -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (5, 7, 9, channels), np.uint8)
    rgb = np.repeat(pixels, 3, -1) if channels == 1 else pixels
    planes = [np.ascontiguousarray(image[..., ::-1].transpose(2, 0, 1)) for image in pixels]
    path = write(
        tmp_path / "a.lmdb",
        {b"%d" % i: datum(p.tobytes(), i, p.shape, encoded=False) for i, p in enumerate(planes)},
    )
    store = open_store(path)
    assert store.indirect is not None and "planes" in store.indirect
    assert store.kinds(np.arange(5)).tolist() == [RAW] * 5
    assert store.sizes(np.arange(5)).tolist() == [[9, 7]] * 5
    assert store.read(np.array([3, 0])) == [rgb[3].tobytes(), rgb[0].tobytes()]
    images, labels = next(iter(FastLoader(path, batch_size=5)))
    assert labels.tolist() == list(range(5))
    assert torch.equal(images, torch.from_numpy(rgb).permute(0, 3, 1, 2))
    assert torch.equal(PackedDataset(path)[2][0], images[2])


@pytest.mark.parametrize(
    "value",
    [
        b"value",
        b"",
        datum(b"", 1),
        datum(bytes(10), 1, (3, 2, 2), encoded=False),
        datum(bytes(12), 1, (4, 1, 3), encoded=False),
        datum(bytes(12), 1, (3, 2**40, 2**40), encoded=False),
        datum(bytes(12), 1, (), encoded=False),
        datum(picture(1, 4, 4), 1)[:-50],
    ],
)
def test_other_values_are_refused_with_their_place(tmp_path: Path, value: bytes) -> None:
    items = {b"a": datum(picture(1, 4, 4), 1), b"b": value}
    with pytest.raises(StoreError, match="another layout") as caught:
        open_store(write(tmp_path / "a.lmdb", items))
    assert caught.value.record == 1 and caught.value.offset
    with pytest.raises(StoreError, match="another layout"):
        open_store(write(tmp_path / "empty.lmdb", {}))


@pytest.mark.native
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=4))
def test_damaged_datums_are_read_as_python_reads_them(changes: list[tuple[int, int]]) -> None:
    data = bytearray(datum(bytes(range(40)), -7, (3, 300, 70)))
    for place, value in changes:
        data[place % len(data)] = value
    found, wrong = foreign.find_datums(
        bytes(data), np.zeros(1, np.int64), np.array([len(data)], np.int64)
    )
    columns = {1: foreign.CHANNELS, 2: foreign.HEIGHT, 3: foreign.WIDTH, 5: foreign.LABEL}
    columns[7] = foreign.ENCODED
    expected = [0] * 8
    try:
        for number, wire, start, stop in protobuf_wire.fields(bytes(data), 0, len(data)):
            if number == 4 and wire == 2:
                expected[foreign.OFFSET], expected[foreign.NBYTES] = start, stop - start
            elif number in columns and wire == 0:
                value = protobuf_wire.varint(bytes(data), start, stop)[0]
                expected[columns[number]] = protobuf_wire.signed(value)
                expected[foreign.LABELLED] |= number == 5
    except (ValueError, IndexError):
        assert wrong == 0
    else:
        assert (wrong, found.tolist()) == (-1, [expected])


def test_dali_reads_the_same_images_and_labels(tmp_path: Path, dali: None) -> None:
    import nvidia.dali.fn as fn
    from nvidia.dali import pipeline_def

    items = {b"%08d" % i: datum(picture(i, 8, 6), i + 3, (3, 6, 8)) for i in range(12)}
    path = write(tmp_path / "caffe", items, folder=True)

    @pipeline_def(batch_size=12, num_threads=1, device_id=None)
    def read() -> Any:
        return tuple(fn.readers.caffe(path=str(path)))

    images, labels = read().run()
    store = open_store(path)
    assert store.labels is not None
    assert [images.at(i).tobytes() for i in range(12)] == store.read(np.arange(12))
    assert [labels.at(i).tolist() for i in range(12)] == [[label] for label in store.labels]
    assert Image.open(io.BytesIO(images.at(0).tobytes())).size == (8, 6)


def test_raw_datums_that_a_truncated_file_has_lost_are_an_error(tmp_path: Path) -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (20, 3, 40, 40), np.uint8)
    items = {
        b"%02d" % i: datum(p.tobytes(), i, p.shape, encoded=False) for i, p in enumerate(pixels)
    }
    path = write(tmp_path / "a.lmdb", items)
    store = open_store(path)
    with open(path, "r+b") as file:
        file.truncate(16 * 4096)
    with pytest.raises(StoreError, match="the file was truncated") as caught:
        store.read(np.arange(20))
    assert caught.value.path == str(path) and caught.value.record is not None
    path.unlink()
    with pytest.raises(StoreError, match="cannot be read"):
        store.read(np.arange(20))
