"""What a store was written with, it is read with: a column that is missing is an error, in every
format, and so is the file or entry that lists the columns."""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from fastload import FastLoader, StoreError, open_store, pack
from fastload._tools.verify import verify
from fastload.cli import main

COUNT = 6


class Made:
    """Raw images of 30 x 20 with labels, names and two fields."""

    classes = ("cat", "dog")

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {
            "image": Image.fromarray(np.random.default_rng(i).integers(0, 256, (20, 30, 3), "u1")),
            "label": i % 2,
            "caption": f"caption {i}",
            "numbers": np.array([i, 7], np.int64),
        }


def packed(folder: Path, suffix: str, **options: Any) -> Path:
    path = folder / f"made.{suffix}"
    pack(Made(), path, encode="raw", **options)
    return path


# --- a format's own way to take a column out (name None: list them), or to give it another name ---


def lmdb_columns(path: Path, name: str | None, other: str | None) -> list[str]:
    import lmdb

    with lmdb.open(str(path), subdir=False, lock=False, max_dbs=2) as env:
        columns = env.open_db(b"columns")
        with env.begin(db=columns, write=name is not None) as transaction:
            if name is not None:
                value = transaction.pop(name.encode())
                if other is not None:
                    transaction.put(other.encode(), value)
            return [key.decode() for key, _ in transaction.cursor()]


def hdf5_columns(path: Path, name: str | None, other: str | None) -> list[str]:
    import h5py

    with h5py.File(path, "r" if name is None else "r+") as file:
        if name is not None and other is not None:
            file.move(name, other)
        elif name is not None:
            del file[name]
        found: list[str] = []
        file.visititems(lambda n, item: found.append(n) if hasattr(item, "shape") else None)
        return found


def pth_columns(path: Path, name: str | None, other: str | None) -> list[str]:
    import torch

    content = torch.load(path, weights_only=True)

    def walk(group: dict[str, Any], prefix: str) -> Iterator[tuple[str, dict[str, Any], str]]:
        for key, value in group.items():
            if isinstance(value, dict):
                yield from walk(value, f"{prefix}{key}/")
            else:
                yield f"{prefix}{key}", group, key

    places = {full: (group, key) for full, group, key in walk(content, "")}
    if name is not None:
        group, key = places[name]
        value = group.pop(key)
        if other is not None:
            group[other.rsplit("/", 1)[-1]] = value
        torch.save(content, path)
    return list(places)


def folder_columns(path: Path, name: str | None, other: str | None) -> list[str]:
    """Of N5 and Zarr."""
    described = "attributes.json" if path.suffix == ".n5" else "zarr.json"
    if name is None:
        arrays = [
            str(file.parent.relative_to(path))
            for file in sorted(path.rglob(described))
            if {"dimensions", "shape"} & set(json.loads(file.read_text()))
        ]
        return [*arrays, described]
    if (path / name).is_file():
        (path / name).rename(path / f"{name}.old")
    elif other is not None:
        (path / name).rename(path / other)
    else:
        shutil.rmtree(path / name)
    return []


Columns = Callable[[Path, "str | None", "str | None"], list[str]]
WAYS: dict[str, Columns] = {
    "lmdb": lmdb_columns,
    "h5": hdf5_columns,
    "pth": pth_columns,
    "n5": folder_columns,
    "zarr": folder_columns,
}


def refused(path: Path, what: str) -> None:
    """Opening, training and ``fastload verify`` say that ``what`` is missing, and name the file."""
    for use in (open_store, verify, lambda path: list(FastLoader(path, 2))):
        with warnings.catch_warnings(), pytest.raises(StoreError) as caught:
            warnings.simplefilter("ignore")  # LMDB: changed by another tool
            use(path)
        assert what in str(caught.value) and str(path) in str(caught.value)
    shown = CliRunner().invoke(main, ["verify", str(path)])
    assert shown.exit_code == 1 and what in shown.output.replace("\n", "")


@pytest.mark.parametrize("rename", [False, True], ids=["dropped", "renamed"])
@pytest.mark.parametrize("suffix", list(WAYS))
def test_every_column_that_is_missing_is_named(tmp_path: Path, suffix: str, rename: bool) -> None:
    source = packed(tmp_path, suffix)
    names = WAYS[suffix](source, None, None)
    at_least = {"lmdb": {"labels", "sizes", "/numbers"}}.get(suffix, {"labels", "fields/numbers"})
    assert at_least | {"crc32c"} <= set(names)
    for number, name in enumerate(names):
        path = tmp_path / f"{number}.{suffix}"
        (shutil.copytree if source.is_dir() else shutil.copy)(source, path)
        WAYS[suffix](path, name, f"{name}_old" if rename else None)
        what = "'fastload'" if name.endswith(".json") else name.rsplit("/", 1)[-1]
        refused(path, what)


@pytest.mark.parametrize("suffix", ["h5", "n5", "zarr"])
def test_class_names_that_are_missing_are_an_error(tmp_path: Path, suffix: str) -> None:
    path = packed(tmp_path, suffix)
    if suffix == "h5":
        hdf5_columns(path, "classes", None)
    else:
        file = path / ("attributes.json" if suffix == "n5" else "zarr.json")
        described = json.loads(file.read_text())
        del (described if suffix == "n5" else described["attributes"])["classes"]
        file.write_text(json.dumps(described))
    refused(path, "classes")


# --- damaged descriptions -------------------------------------------------------------------------


def contents(path: Path) -> object:
    """All that training and ``pack`` read beside the images."""
    store = open_store(path)
    everything, labels = np.arange(len(store)), store.labels
    crcs = store.checksums(everything)
    return (
        list(store.classes),
        None if labels is None else labels.tolist(),
        store.keys(everything),
        [store.batch(name, everything) for name in store.fields if name != "numbers"],
        [store.column(name).tolist() for name in store.fields if name == "numbers"],
        None if crcs is None else crcs.tolist(),
        [store.check_columns(), store.sizes(everything).tolist()],
    )


@pytest.mark.parametrize("suffix", ["n5", "zarr"])
def test_a_flipped_bit_in_a_description_loses_nothing_without_a_word(
    tmp_path: Path, suffix: str
) -> None:
    path = packed(tmp_path, suffix)
    expected, refused, flips = contents(path), 0, np.random.default_rng(0)
    for file in sorted(path.rglob("*.json")):
        whole = file.read_bytes()
        for at in flips.choice(len(whole), min(150, len(whole)), replace=False).tolist():
            damaged = bytearray(whole)
            damaged[at] ^= 1 << int(flips.integers(8))
            file.write_bytes(damaged)
            try:
                found = contents(path)
            except StoreError:
                refused += 1
            else:
                assert found == expected, (file, at, bytes(damaged[max(0, at - 20) : at + 20]))
        file.write_bytes(whole)
    assert refused > 400


@pytest.mark.parametrize("suffix", ["n5", "zarr", "h5"])
def test_a_header_without_its_checksums_is_an_error(tmp_path: Path, suffix: str) -> None:
    path = packed(tmp_path, suffix)
    file = {"n5": path / "attributes.json", "zarr": path / "zarr.json", "h5": path}[suffix]
    whole = file.read_bytes()
    damaged = re.sub(rb'"crc32c"(: *\{)', rb'"brc32c"\1', whole)
    assert damaged != whole
    file.write_bytes(damaged)
    with pytest.raises(StoreError, match="found no checksums"):
        open_store(path)


@pytest.mark.parametrize("name", [b"crc32c", b"fastload", b"labels", b"keys", b"fields"])
def test_a_damaged_name_in_hdf5_is_an_error(tmp_path: Path, name: bytes) -> None:
    path = packed(tmp_path, "h5")
    whole = path.read_bytes()
    begin = whole.index(name + b"\0")
    for at in range(begin, begin + len(name) + 1):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            path.write_bytes(damaged)
            with pytest.raises(StoreError):
                open_store(path)


@pytest.mark.parametrize("suffix", ["n5", "zarr"])
@pytest.mark.parametrize("how", ["one bit", "nothing described", "an empty folder"])
def test_labels_of_other_programs_do_not_get_lost(tmp_path: Path, suffix: str, how: str) -> None:
    path = packed(tmp_path, suffix)
    shutil.rmtree(path / "crc32c")
    described = path / ("attributes.json" if suffix == "n5" else "zarr.json")
    text = json.loads(described.read_text())
    del (text if suffix == "n5" else text["attributes"])["fastload"]
    described.write_text(json.dumps(text))
    assert [labels.tolist() for _, labels in FastLoader(path, 6)] == [[0, 1] * 3]
    labels = path / "labels" / described.name
    if how == "one bit":
        word = "dimensions" if suffix == "n5" else "shape"
        labels.write_text(labels.read_text().replace(word, f"{word[:-2]}r{word[-1]}"))
    elif how == "nothing described":
        labels.unlink()
    else:
        shutil.rmtree(path / "labels")
        (path / "labels").mkdir()
    with pytest.raises(StoreError, match="labels"):
        open_store(path)


def test_labels_of_torch_save_are_numbers_or_none(tmp_path: Path) -> None:
    import torch

    images = torch.zeros((3, 3, 4, 4), dtype=torch.uint8)
    torch.save({"images": images, "labels": None}, tmp_path / "none.pth")
    assert open_store(tmp_path / "none.pth").labels is None
    torch.save({"images": images, "labels": {"of": [1, 2, 3]}}, tmp_path / "dict.pth")
    with pytest.raises(StoreError, match="expected an array of labels"):
        open_store(tmp_path / "dict.pth")


# --- sizes ----------------------------------------------------------------------------------------


def turned(path: Path) -> None:
    """30 x 20 becomes 20 x 30, wherever the format says it."""
    if path.suffix == ".lmdb":
        import lmdb

        with lmdb.open(str(path), subdir=False, lock=False, max_dbs=2) as env:
            columns = env.open_db(b"columns")
            with env.begin(db=columns, write=True) as transaction:
                sizes = np.frombuffer(transaction.get(b"sizes"), "<i4").reshape(-1, 2)
                transaction.put(b"sizes", sizes[:, ::-1].tobytes())
    elif path.suffix == ".h5":
        import h5py

        with h5py.File(path, "r+") as file:
            if "sizes" in file:
                file["sizes"][...] = file["sizes"][...][:, ::-1]
            else:  # the images' own shape
                pixels = file["images"][...].reshape(COUNT, 30, 20, 3)
                del file["images"]
                file["images"] = pixels
    elif path.suffix == ".n5":
        file = path / "images" / "attributes.json"
        described = json.loads(file.read_text())
        for name in ("dimensions", "blockSize"):
            channels, width, height, count = described[name]
            described[name] = [channels, height, width, count]
        file.write_text(json.dumps(described))
        for block in (path / "images" / "0" / "0" / "0").iterdir():
            data = bytearray(block.read_bytes())
            data[8:12], data[12:16] = data[12:16], data[8:12]
            block.write_bytes(data)
    else:
        file = path / "images" / "zarr.json"
        text = file.read_text()
        described = json.loads(text)
        described["shape"] = [COUNT, 30, 20, 3]
        grid = described["chunk_grid"]["configuration"]
        grid["chunk_shape"] = [grid["chunk_shape"][0], 30, 20, 3]
        described["codecs"][0]["configuration"]["chunk_shape"] = [1, 30, 20, 3]
        file.write_text(json.dumps(described))


class Mixed(Made):
    """An HDF5 store of image files and no pixels keeps a column of sizes."""

    def __getitem__(self, i: int) -> dict[str, Any]:
        sample = super().__getitem__(i)
        return {**sample, "image": sample["image"].resize((30 + i, 20))}


@pytest.mark.filterwarnings("ignore:.*changed or copied by an LMDB tool")
@pytest.mark.parametrize("suffix", ["lmdb", "h5", "n5", "zarr"])
def test_sides_that_changed_places_are_an_error(tmp_path: Path, suffix: str) -> None:
    path = packed(tmp_path, suffix)
    assert [len(labels) for _, labels in FastLoader(path, 3)] == [3, 3]
    turned(path)
    with pytest.raises(StoreError, match=r"CRC32C .* of sizes"):
        list(FastLoader(path, 3))
    assert "of sizes" in verify(path).columns


def test_the_column_of_sizes_in_hdf5_is_compared(tmp_path: Path) -> None:
    path = tmp_path / "files.h5"
    pack(Mixed(), path, encode="png")
    assert open_store(path).sizes(np.arange(2)).tolist() == [[30, 20], [31, 20]]
    turned(path)
    with pytest.raises(StoreError, match=r"CRC32C .* of sizes"):
        open_store(path).sizes(np.arange(2))
    assert "of sizes" in verify(path).columns


# --- sidecars -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [None, 2])
@pytest.mark.parametrize("suffix", ["tfrecord", "tar", "rec"])
def test_a_sidecar_that_is_missing_is_an_error(
    tmp_path: Path, suffix: str, shards: int | None
) -> None:
    path = packed(tmp_path, suffix, shards=shards)
    assert verify(path).columns == "right"
    os.rename(f"{path}.fastload", f"{path}.old")
    refused(path, f"made.{suffix}.fastload")
    os.rename(f"{path}.old", f"{path}.fastload")
    assert verify(path).columns == "right"


@pytest.mark.parametrize("shards", [None, 2])
@pytest.mark.parametrize("suffix", ["tfrecord", "tar", "rec"])
def test_a_pattern_stands_for_files_without_their_sidecar(
    tmp_path: Path, suffix: str, shards: int | None
) -> None:
    path = packed(tmp_path, suffix, shards=shards)
    os.unlink(f"{path}.fastload")
    with pytest.raises(StoreError) as caught:
        open_store(path)
    advised = re.search("open the files as '([^']*)'", str(caught.value))
    assert advised is not None
    pattern = advised[1]
    store = open_store(pattern)
    assert len(store) == COUNT and store.labels is not None
    assert store.labels.tolist() == [i % 2 for i in range(COUNT)]
    report = verify(pattern)
    own = suffix == "tfrecord"  # the format's own, of records; not while loading
    assert (report.checksums, report.columns, report.damaged) == (own, "no checksum", ())
    shown = CliRunner().invoke(main, ["info", pattern])
    assert "checksums   none" in shown.output
    shown = CliRunner().invoke(main, ["verify", pattern])
    assert ("checksums right" if own else "no checksum in this store") in shown.output


@pytest.mark.parametrize("suffix", ["tfrecord", "rec", "tar"])
def test_a_shard_alone_is_a_whole_file_of_its_format(tmp_path: Path, suffix: str) -> None:
    packed(tmp_path, suffix, shards=2)
    for shard in sorted(tmp_path.glob(f"made-*.{suffix}")):
        assert len(open_store(shard)) == COUNT // 2


def test_official_readers_do_not_mind_the_mark(tmp_path: Path) -> None:
    import tarfile

    from tfrecord.reader import tfrecord_loader

    path = packed(tmp_path, "tfrecord")
    found = [set(example) for example in tfrecord_loader(str(path), None)]
    assert len(found) == COUNT and all(names == found[0] for names in found)
    with tarfile.open(packed(tmp_path, "tar")) as archive:
        members = archive.getmembers()
    assert len(members) == 3 * COUNT
    assert [(one.uname, one.gname) for one in members[:2]] == [("fastload", "store"), ("", "")]
    webdataset = pytest.importorskip("webdataset")
    with open(tmp_path / "made.tar", "rb") as stream:
        files = webdataset.tariterators.tar_file_expander([{"url": "made.tar", "stream": stream}])
        samples = list(webdataset.tariterators.group_by_keys(files))
    assert len(samples) == COUNT
