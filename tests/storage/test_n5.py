"""N5 stores: tensorstore reads ours, tensorstore's are read, damaged ones are refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastload import FastLoader, StoreError
from fastload.storage import Record, open_store
from storage.formats import CLASSES, loaded, pixels, write

tensorstore = pytest.importorskip("tensorstore")  # needs Python 3.11

COUNT = 23


def images(count: int = COUNT) -> np.ndarray:
    return np.random.default_rng(3).integers(1, 256, (count, 11, 9, 3), dtype=np.uint8)


def read(path: Path) -> np.ndarray:
    """By tensorstore, in NumPy's order of axes."""
    spec = {"driver": "n5", "kvstore": {"driver": "file", "path": str(path)}}
    return np.transpose(tensorstore.open(spec).result().read().result())


def create(path: Path, array: np.ndarray, block: list[int], **compression: Any) -> None:
    """By tensorstore."""
    spec = {
        "driver": "n5",
        "kvstore": {"driver": "file", "path": str(path)},
        "metadata": {
            "dimensions": list(array.shape[::-1]),
            "blockSize": block[::-1],
            "dataType": array.dtype.name,
            "compression": compression or {"type": "raw"},
        },
    }
    tensorstore.open(spec, create=True).result().write(np.transpose(array)).result()


@pytest.mark.parametrize(
    "options", [{}, {"shard_nbytes": 4 * 7 * 5 * 3}, {"shards": 3, "total": COUNT}]
)
def test_tensorstore_reads_what_we_write(tmp_path: Path, options: dict[str, Any]) -> None:
    given = [
        Record(**{**vars(record), "fields": {"box": np.arange(4, dtype=np.float32) + i}})
        for i, record in enumerate(pixels(COUNT))
    ]
    path = write(tmp_path / "a.n5", given, **options)
    assert [image.tobytes() for image in read(path / "images")] == [r.data for r in given]
    assert read(path / "labels").tolist() == [record.label for record in given]
    assert read(path / "fields" / "box")[5].tolist() == [5, 6, 7, 8]
    ends, keys = read(path / "keys" / "ends"), read(path / "keys" / "data").tobytes()
    assert keys[ends[3] : ends[4]].decode() == given[4].key
    assert json.loads((path / "attributes.json").read_text())["classes"] == CLASSES
    blocks = len(list((path / "images" / "0" / "0" / "0").iterdir()))
    assert blocks == (6 if "shard_nbytes" in options else 3 if "shards" in options else 1)


@pytest.mark.parametrize(
    "compression",
    [
        {"type": "raw"},
        {"type": "gzip"},
        {"type": "gzip", "useZlib": True},
        {"type": "bzip2"},
        {"type": "xz"},
    ],
)
@pytest.mark.parametrize("block", [[4, 11, 9, 3], [5, 16, 16, 3]])
def test_what_tensorstore_writes_is_read(
    tmp_path: Path, compression: dict[str, Any], block: list[int]
) -> None:
    array, path = images(), tmp_path / "a.n5"
    create(path / "data", array, block, **compression)
    create(path / "label", np.arange(COUNT, dtype=np.uint16), [10], **compression)
    found, labels = loaded(path)
    assert torch.equal(found, torch.from_numpy(array).permute(0, 3, 1, 2))
    assert labels is not None and labels.tolist() == list(range(COUNT))
    in_place = compression["type"] == "raw" and block[1] == 11
    assert (open_store(path).indirect is None) == in_place
    if not in_place:
        assert "pack it again" in FastLoader(path, batch_size=4).explain()


def test_a_dataset_alone_and_blocks_that_were_left_out_are_read(tmp_path: Path) -> None:
    array, path = images(), tmp_path / "a.n5"
    array[4:8] = 0
    create(path, array, [4, 11, 9, 3])
    assert not (path / "0" / "0" / "0" / "1").exists()  # tensorstore leaves out zeros
    assert torch.equal(loaded(path)[0], torch.from_numpy(array).permute(0, 3, 1, 2))


def test_unknown_compressions_and_cut_images_are_refused(tmp_path: Path) -> None:
    create(tmp_path / "a.n5", images(), [4, 11, 9, 3], type="blosc", cname="lz4", clevel=5,
           shuffle=1)  # fmt: skip
    with pytest.raises(StoreError, match="gzip"):
        open_store(tmp_path / "a.n5").read(np.arange(1))
    create(tmp_path / "b.n5", images(), [4, 5, 9, 3])
    with pytest.raises(StoreError, match="blocks of whole images"):
        open_store(tmp_path / "b.n5")
    (tmp_path / "c.n5").mkdir()
    with pytest.raises(StoreError, match="expected an N5 dataset of images"):
        open_store(tmp_path / "c.n5")


@pytest.mark.parametrize("compression", ["raw", "gzip"])
def test_damaged_blocks_are_refused(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "a.n5"
    create(path, images(), [4, 11, 9, 3], type=compression)
    block = path / "0" / "0" / "0" / "2"
    data = block.read_bytes()
    absurd = struct.pack(">HH4I", 0, 4, 2**32 - 1, 2**32 - 1, 2**32 - 1, 2**32 - 1)
    for bad in (b"", data[:10], data[:-5], b"\0\7" + data[2:], b"\0\0\0\3" + data[4:],
                absurd + data[20:]):  # fmt: skip
        block.write_bytes(bad)
        with pytest.raises(StoreError):
            open_store(path).read(np.arange(COUNT))


def test_damaged_attributes_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.n5", pixels(COUNT))
    where = path / "images" / "attributes.json"
    good = json.loads(where.read_text())
    for change in (
        {"dimensions": [3, 7, 5, 2**70]},
        {"dimensions": [3, 7, 5, -1]},
        {"dimensions": [3, 2**39, 2**39, 5], "blockSize": [3, 2**39, 2**39, 5]},
        {"dimensions": [3, 7, 5, 24]},
        {"dataType": "float32"},
        {"blockSize": [3, 7, 5, 0]},
        {"blockSize": [3, 7, 5]},
        {"compression": "raw"},
    ):
        where.write_text(json.dumps({**good, **change}))
        with pytest.raises(StoreError):
            open_store(path)
    for text in ("", "[]", "{", "[" * 100_000):
        where.write_text(text)
        with pytest.raises(StoreError, match="JSON"):
            open_store(path)
