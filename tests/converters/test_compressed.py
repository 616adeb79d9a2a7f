"""Compressed archives are packed like the archives inside, and leave nothing behind."""

from __future__ import annotations

import bz2
import gc
import gzip
import lzma
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import webdataset

from fastload import FastLoader
from fastload.converters import append, estimate, pack
from fastload.errors import DecodeError, StoreError, UsageError
from fastload.storage import open_store
from storage.formats import picture

COUNT = 9


def zstd(data: bytes) -> bytes:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    return bytes(pyarrow.compress(data, codec="zstd", asbytes=True))


TOOLS: dict[str, Callable[[bytes], bytes]] = {
    "x.tar.gz": gzip.compress,
    "x.tgz": gzip.compress,
    "x.tar": gzip.compress,  # compressed, whatever it is called
    "x.tar.bz2": bz2.compress,
    "x.tar.xz": lzma.compress,
    "x.tar.zst": zstd,
    "x.tar.zstd": zstd,
    "x.tzst": zstd,
    "x": gzip.compress,
}


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, which is empty in the end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def archive(tmp_path: Path) -> bytes:
    """A tar of class folders."""
    for index in range(COUNT):
        path = tmp_path / "imgs" / "abc"[index % 3] / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(index, 12, 10))
    with tarfile.open(tmp_path / "plain.tar", "w") as tar:
        tar.add(tmp_path / "imgs", ".")
    return (tmp_path / "plain.tar").read_bytes()


@pytest.mark.parametrize("name", TOOLS)
def test_a_compressed_archive_is_packed_like_the_one_inside(
    archive: bytes, tmp_path: Path, temporary: Path, name: str
) -> None:
    (tmp_path / name).write_bytes(TOOLS[name](archive))
    report = pack(tmp_path / name, tmp_path / "a.lmdb", split="val=0.3")
    assert report.records == COUNT
    plain = pack(tmp_path / "plain.tar", tmp_path / "b.lmdb", split="val=0.3")
    for one, other in zip(report.parts, plain.parts, strict=True):
        mine, theirs = open_store(one.path), open_store(other.path)
        everything = np.arange(len(mine))
        assert mine.keys(everything) == theirs.keys(everything)
        assert mine.read(everything) == theirs.read(everything)
        assert mine.classes == theirs.classes and mine.metadata["source"] == name
    assert estimate(tmp_path / name, "c.lmdb", encode="keep")[0].sampled == COUNT
    gc.collect()
    # torch makes a folder where its compiler is imported for the first time.
    assert [path for path in temporary.iterdir() if not path.name.startswith("torchinductor")] == []


@pytest.mark.parametrize("name", ["x.tfrecord.gz", "train-00000-of-00001.gz"])
def test_compressed_records_of_tensorflow_are_packed(
    archive: bytes, tmp_path: Path, name: str
) -> None:
    pack(tmp_path / "imgs", tmp_path / "x.tfrecord")
    data = (tmp_path / "x.tfrecord").read_bytes()
    first = (
        12 + int.from_bytes(data[:8], "little") + 4
    )  # which has the mark of a store with a sidecar
    (tmp_path / name).write_bytes(gzip.compress(data[first:]))
    pack(tmp_path / name, tmp_path / "a.lmdb")
    labels = open_store(tmp_path / "a.lmdb").labels
    assert labels is not None and labels.tolist() == [0, 0, 1, 1, 1, 2, 2, 2]
    (tmp_path / name).write_bytes(gzip.compress(data))
    with pytest.raises(StoreError, match=r"decompressed by gzip: expected .* written with"):
        pack(tmp_path / name, tmp_path / "b.lmdb")


def test_shards_of_webdataset_that_are_compressed_are_packed(tmp_path: Path) -> None:
    path = tmp_path / "shard.tar.gz"
    with webdataset.TarWriter(str(path)) as writer:  # by its suffix
        for index in range(COUNT):
            writer.write({"__key__": f"{index}", "jpg": picture(index, 9, 9), "cls": index % 4})
    pack(path, tmp_path / "a.lmdb")
    labels = open_store(tmp_path / "a.lmdb").labels
    assert labels is not None and labels.tolist() == [index % 4 for index in range(COUNT)]


def test_an_interrupted_run_is_resumed_though_it_decompresses_again(
    archive: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastload.converters import _run

    monkeypatch.setattr(_run, "_CHUNK", 2)
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(archive))
    calls: list[int] = []

    def interrupt(done: int, total: int | None, nbytes: int) -> None:
        calls.append(done)
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(path, tmp_path / "a.lmdb", progress=interrupt)
    assert pack(path, tmp_path / "a.lmdb").parts[0].resumed == 4
    path.write_bytes(gzip.compress(archive, 1))
    with pytest.raises(UsageError, match="exists"):
        pack(path, tmp_path / "a.lmdb")


def test_more_images_come_from_a_compressed_archive(archive: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.tgz").write_bytes(gzip.compress(archive))
    (tmp_path / "more" / "a").mkdir(parents=True)
    (tmp_path / "more" / "a" / "new.jpg").write_bytes(picture(1, 8, 8))
    pack(tmp_path / "more", tmp_path / "a.lmdb")
    assert append(tmp_path / "a.lmdb", tmp_path / "x.tgz").records == COUNT + 1
    assert list(open_store(tmp_path / "a.lmdb").classes) == ["a", "b", "c"]


def test_what_is_damaged_or_no_archive_is_named(
    archive: bytes, tmp_path: Path, temporary: Path
) -> None:
    path = tmp_path / "x.tar.gz"
    whole = gzip.compress(archive)
    for data, message in (
        (whole[:-100], "the file is damaged"),
        (whole[:500] + b"\0" * 50 + whole[550:], "the file is damaged"),
        (gzip.compress(b"hello"), "decompressed by gzip: the archive is truncated"),
    ):
        path.write_bytes(data)
        with pytest.raises(StoreError, match=rf"x\.tar\.gz': {message}"):
            pack(path, tmp_path / "a.lmdb")
    with pytest.raises(UsageError, match="image_column: expected none"):
        pack(path, tmp_path / "a.lmdb", image_column="x")
    with pytest.raises(StoreError, match="compressed by gzip has to be packed first"):
        FastLoader(str(path))
    gc.collect()
    assert list(temporary.iterdir()) == []


def test_a_bad_image_is_named_in_the_compressed_file(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"no image")
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "a.jpg", "a.jpg")
    with pytest.raises(DecodeError, match=r"x\.tar\.gz', record 0: expected an image"):
        pack(tmp_path / "x.tar.gz", tmp_path / "a.lmdb")
