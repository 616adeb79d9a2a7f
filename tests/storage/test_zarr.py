"""Zarr stores: zarr-python and tensorstore read ours, theirs are read, damaged ones are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastload import FastLoader, StoreError
from fastload.storage import Record, open_store
from storage.formats import CLASSES, loaded, pixels, write

zarr = pytest.importorskip("zarr")  # version 3 needs Python 3.11
tensorstore = pytest.importorskip("tensorstore")

COUNT = 23


def images(count: int = COUNT) -> np.ndarray:
    return np.random.default_rng(3).integers(1, 256, (count, 11, 9, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    "options", [{}, {"shard_nbytes": 4 * 7 * 5 * 3}, {"shards": 3, "total": COUNT}]
)
def test_zarr_and_tensorstore_read_what_we_write(tmp_path: Path, options: dict[str, Any]) -> None:
    given = [
        Record(**{**vars(record), "fields": {"box": np.arange(4, dtype=np.float32) + i}})
        for i, record in enumerate(pixels(COUNT))
    ]
    path = write(tmp_path / "a.zarr", given, **options)
    group = zarr.open_group(path, mode="r")
    assert [image.tobytes() for image in group["images"][:]] == [r.data for r in given]
    assert group["images"][-1].tobytes() == given[-1].data
    assert group["labels"][:].tolist() == [record.label for record in given]
    assert group["fields/box"][5].tolist() == [5, 6, 7, 8]
    ends, keys = group["keys/ends"][:], group["keys/data"][:].tobytes()
    assert keys[ends[3] : ends[4]].decode() == given[4].key
    assert group.attrs["classes"] == CLASSES
    names = {name for name, _ in group.members()}  # warns of what is no part of the hierarchy
    assert names == {"images", "labels", "crc32c", "keys", "fields"}
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path / "images")}}
    found = tensorstore.open(spec).result().read().result()
    assert [image.tobytes() for image in found] == [r.data for r in given]
    shards = len(list((path / "images" / "c").iterdir()))
    assert shards == (6 if "shard_nbytes" in options else 3 if "shards" in options else 1)


@pytest.mark.parametrize(
    ("options", "in_place"),
    [
        ({"chunks": (4, 11, 9, 3), "compressors": None}, True),
        ({"chunks": (1, 11, 9, 3), "shards": (5, 11, 9, 3), "compressors": None}, True),
        ({"chunks": (2, 11, 9, 3), "shards": (6, 11, 9, 3), "compressors": None}, True),
        ({"chunks": (2, 11, 9, 3), "shards": (6, 11, 9, 3)}, False),
        ({"chunks": (4, 11, 9, 3)}, False),
        ({"chunks": (4, 5, 9, 3), "compressors": None}, False),
        ({"chunks": (4, 11, 9, 3), "compressors": None, "zarr_format": 2}, False),
    ],
)
def test_what_zarr_writes_is_read(tmp_path: Path, options: dict[str, Any], in_place: bool) -> None:
    array, path = images(), tmp_path / "a.zarr"
    version = options.get("zarr_format", 3)
    group = zarr.create_group(path, attributes={"classes": ["a", "b"]}, zarr_format=version)
    group.create_array("images", shape=array.shape, dtype="uint8",
                       **{k: v for k, v in options.items() if k != "zarr_format"})  # fmt: skip
    group["images"][:] = array
    group.create_array("labels", data=np.arange(COUNT, dtype=np.int32))
    store = open_store(path)
    assert (store.indirect is None) == in_place
    found, labels = loaded(path)
    assert torch.equal(found, torch.from_numpy(array).permute(0, 3, 1, 2))
    assert labels is not None and labels.tolist() == list(range(COUNT))
    if not in_place:
        assert "pack it again" in FastLoader(path, batch_size=4).explain()


@pytest.mark.parametrize("location", ["start", "end"])
def test_what_tensorstore_writes_is_read(tmp_path: Path, location: str) -> None:
    array, path = images(), tmp_path / "a.zarr"
    sharding = {
        "chunk_shape": [1, 11, 9, 3],
        "codecs": [{"name": "bytes"}],
        "index_codecs": [
            {"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"},
        ],
        "index_location": location,
    }  # fmt: skip
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": str(path / "images")},
        "metadata": {
            "shape": list(array.shape),
            "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 11, 9, 3]}},
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        },
    }
    tensorstore.open(spec, create=True).result().write(array).result()
    assert open_store(path).indirect is None
    assert torch.equal(loaded(path)[0], torch.from_numpy(array).permute(0, 3, 1, 2))


def test_an_array_alone_and_images_that_were_left_out_are_read(tmp_path: Path) -> None:
    array, path = images(), tmp_path / "a.zarr"
    array[5] = 0  # zarr leaves out what is the fill value
    made = zarr.create_array(path, shape=array.shape, dtype="uint8", chunks=(1, 11, 9, 3),
                             shards=(4, 11, 9, 3), compressors=None)  # fmt: skip
    made[:] = array
    assert torch.equal(loaded(path)[0], torch.from_numpy(array).permute(0, 3, 1, 2))


def test_damaged_shards_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zarr", pixels(COUNT), shard_nbytes=4 * 7 * 5 * 3)
    shard = path / "images" / "c" / "2" / "0" / "0" / "0"
    data = shard.read_bytes()
    for bad in (b"", data[:50], data[:-1], data[:-10] + b"\1" + data[-9:]):
        shard.write_bytes(bad)
        with pytest.raises(StoreError, match="CRC32C matches"):
            open_store(path)
    shard.write_bytes(data)
    labels = path / "labels" / "c" / "0"
    data = labels.read_bytes()
    labels.write_bytes(b"\1" + data[1:])
    with pytest.raises(StoreError, match="CRC32C of the chunk"):
        open_store(path)
    labels.write_bytes(data[:-9])
    with pytest.raises(StoreError, match="truncated"):
        open_store(path)


def test_an_index_that_names_places_outside_of_its_shard_is_refused(tmp_path: Path) -> None:
    array, path = images(8), tmp_path / "a.zarr"
    made = zarr.create_array(path, shape=array.shape, dtype="uint8", chunks=(1, 11, 9, 3),
                             shards=(8, 11, 9, 3), compressors=None)  # fmt: skip
    made[:] = array
    described = json.loads((path / "zarr.json").read_text())
    described["codecs"][0]["configuration"]["index_codecs"].pop()  # no CRC32C: nothing else checks
    (path / "zarr.json").write_text(json.dumps(described))
    shard = path / "c" / "0" / "0" / "0" / "0"
    data = shard.read_bytes()[:-4]
    for offset, nbytes in ((1 << 40, 297), (-2, 297), (0, 296), (len(data) - 8, 297)):
        entry = np.array([offset, nbytes], np.int64).tobytes()
        shard.write_bytes(data[:-128] + entry + data[-112:])
        with pytest.raises(StoreError):
            open_store(path)


def test_damaged_descriptions_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zarr", pixels(COUNT))
    where = path / "images" / "zarr.json"
    good = json.loads(where.read_text())
    for change in (
        {"shape": [2**70, 5, 7, 3]},
        {"shape": [24000, 5, 7, 3]},
        {"shape": [5, 2**39, 2**39, 3]},
        {"shape": "x"},
        {"data_type": "float32"},
        {"codecs": []},
        {"codecs": [7]},
        {"chunk_grid": None},
    ):
        where.write_text(json.dumps({**good, **change}))
        with pytest.raises(StoreError):
            open_store(path)
    for text in ("", "[]", "{", "[" * 100_000):
        where.write_text(text)
        with pytest.raises(StoreError, match="JSON"):
            open_store(path)
