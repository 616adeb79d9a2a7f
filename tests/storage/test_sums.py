"""Labels, names and fields of a store have checksums: a flipped byte in them is an error."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from fastload import FastLoader, StoreError, open_store, pack
from fastload._tools.verify import verify
from fastload.cli.verify import command
from fastload.storage import _sums
from fastload.storage.base import Store
from fastload.storage.formats._array_writer import ArrayWriter

COUNT = 20
FORMATS = ["lmdb", "h5", "n5"]


class Made:
    """Images whose labels and fields are found again in the files of a store."""

    classes = ("class-of-cats", "class-of-dogs")

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {
            "image": Image.fromarray(np.full((8, 8, 3), i, np.uint8)),
            "label": 0x1234_5600 + i,
            "caption": f"caption {i}",
            "numbers": np.array([0x2234_5600 + i, 7], np.int64),
        }


READS: dict[str, Callable[[Store], Any]] = {
    "labels": lambda store: store.labels,
    "caption": lambda store: store.values("caption", np.array([0])),
    "numbers": lambda store: store.column("numbers"),
    "keys": lambda store: store.keys(np.array([0])),
    "classes": lambda store: store.classes,
}
NEEDLES = {
    "labels": [(0x1234_5603).to_bytes(8, order) for order in ("little", "big")],
    "caption": [b"caption 3"],
    "numbers": [(0x2234_5603).to_bytes(8, order) for order in ("little", "big")],
    "keys": [b"00000003"],
    "classes": [b"class-of-cats"],
}


def packed(folder: Path, suffix: str) -> Path:
    path = folder / f"made.{suffix}"
    pack(Made(), path, encode="raw")
    return path


def parts(path: Path) -> Iterator[Path]:
    yield from [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())


def flip(path: Path, what: str) -> None:
    """Change one bit of a column, everywhere in the store where its bytes lie."""
    found = 0
    for part in parts(path):
        data = bytearray(part.read_bytes())
        for needle in NEEDLES[what]:
            at = data.find(needle)
            while at >= 0:
                data[at + len(needle) // 2] ^= 1
                found += 1
                at = data.find(needle, at + 1)
        part.write_bytes(data)
    assert found


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("what", list(READS))
def test_a_flipped_bit_is_seen_when_the_column_is_read(
    tmp_path: Path, suffix: str, what: str
) -> None:
    path = packed(tmp_path, suffix)
    READS[what](open_store(path))
    assert verify(path).columns == "right"
    flip(path, what)
    with pytest.raises(StoreError, match=rf"CRC32C \w+ of (the field '{what}'|{what}), found"):
        READS[what](open_store(path))
    if what == "classes":  # known as soon as it is opened
        return
    for other in set(READS) - {what}:  # that are as they were
        READS[other](open_store(path))
    report = verify(path)
    assert report.damaged == () and "CRC32C" in report.columns and str(path) in report.columns
    shown = CliRunner().invoke(command, [str(path), "--quiet"], standalone_mode=False)
    assert shown.return_value == 1 and "CRC32C" in shown.output


@pytest.mark.parametrize("suffix", FORMATS)
def test_no_loader_trains_on_a_damaged_label(tmp_path: Path, suffix: str) -> None:
    path = packed(tmp_path, suffix)
    assert [len(labels) for _, labels in FastLoader(path, 10)] == [10, 10]
    flip(path, "labels")
    with pytest.raises(StoreError, match="of labels"):
        list(FastLoader(path, 10))


@pytest.mark.parametrize("suffix", [*FORMATS, "zarr", "pth", "tfrecord", "tar", "rec"])
def test_every_format_has_checksums_of_its_columns(tmp_path: Path, suffix: str) -> None:
    assert verify(packed(tmp_path, suffix)).columns == "right"


@pytest.mark.parametrize("name", ["crc32c", "columns"])
@pytest.mark.parametrize("suffix", ["h5", "pth", "n5", "zarr"])
def test_a_header_without_checksums_or_columns_is_refused(
    tmp_path: Path, suffix: str, name: str, monkeypatch: Any
) -> None:
    header = ArrayWriter.header
    monkeypatch.setattr(
        ArrayWriter,
        "header",
        lambda self, columns: {k: v for k, v in header(self, columns).items() if k != name},
    )
    with pytest.raises(StoreError, match=r"found no (checksums|list of columns): pack it again"):
        packed(tmp_path, suffix)  # opens what it wrote


@pytest.mark.parametrize("name", ["checksums", "columns"])
def test_an_lmdb_store_without_checksums_or_columns_is_refused(tmp_path: Path, name: str) -> None:
    import lmdb

    path = packed(tmp_path, "lmdb")
    with lmdb.open(str(path), subdir=False, lock=False, max_dbs=2) as env:
        columns = env.open_db(b"columns")
        with env.begin(db=columns, write=True) as transaction:
            stored = json.loads(transaction.get(b"checksums"))
            columns_ = {"labels", "keys", "classes", "sizes", "kinds", "crc32c"}
            assert set(stored) == columns_ | {"/caption", "/numbers"}
            format_ = json.loads(transaction.get(b"format"))
            assert {"labels", "checksums", "crc32c"} < set(format_["columns"])
            if name == "checksums":
                assert transaction.delete(b"checksums")
                format_["columns"].remove("checksums")
            else:
                del format_["columns"]
            transaction.put(b"format", json.dumps(format_).encode())
    with pytest.raises(StoreError, match=f"{name}.*(pack it again|missing)"):
        open_store(path)


def test_of_shards_without_their_manifest_all_columns_are_compared(tmp_path: Path) -> None:
    pack(Made(), tmp_path / "made.h5", encode="raw", shards=2)
    os.unlink(tmp_path / "made.h5.fastload")
    pattern = tmp_path / "made-*.h5"
    assert verify(pattern).columns == "right"
    flip(tmp_path / "made-00000-of-00002.h5", "labels")
    with pytest.raises(StoreError, match="of labels"):
        open_store(pattern)


def test_a_large_column_is_compared_by_verify_alone(tmp_path: Path, monkeypatch: Any) -> None:
    path = packed(tmp_path, "lmdb")
    flip(path, "caption")
    monkeypatch.setattr(_sums, "_MOST_NBYTES", 100)
    assert open_store(path).values("caption", np.array([0])) == [b"caption 0"]
    assert "the field 'caption'" in verify(path).columns


@pytest.mark.parametrize("suffix", ["lmdb", "h5"])
def test_a_damaged_large_column_is_not_copied_with_a_right_checksum(
    tmp_path: Path, suffix: str, monkeypatch: Any
) -> None:
    path = packed(tmp_path, suffix)
    flip(path, "caption")
    monkeypatch.setattr(_sums, "_MOST_NBYTES", 100)
    with pytest.raises(StoreError, match="the field 'caption'"):
        pack(path, tmp_path / "copy.lmdb")
    assert not (tmp_path / "copy.lmdb").exists()


def test_a_column_that_another_thread_compared_meanwhile_is_no_error(monkeypatch):
    values = np.arange(5)
    sums = _sums.Sums("store", {"labels": _sums._sum(values)})
    sum_of = _sums._sum

    def meanwhile(column: Any) -> int:
        sums._left.pop("labels")  # as another thread does after its own comparison
        return sum_of(column)

    monkeypatch.setattr(_sums, "_sum", meanwhile)
    sums.check("labels", values)
    sums.check("labels", values + 1)  # what was compared once is not compared again
