"""A full disk, for every format: one clear error, nothing that opens, and the next run works.

A limit on the size of files stands for the disk.
"""

from __future__ import annotations

import errno
import gc
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastload.converters import _overwrite, _run, append, pack
from fastload.errors import StoreError
from fastload.storage import open_store
from fastload.storage import stream as _stream
from fastload.storage.formats import lmdb
from storage.formats import PACKED, picture, pixels

COUNT = 60
CASES: list[tuple[str, dict[str, Any]]] = [
    (
        row.suffix,
        ({"encode": "raw"} if row.records is pixels else {})
        | ({"shards": row.shards} if row.shards else {}),
    )
    for row in PACKED
]
RESUMING = (".lmdb", ".tfrecord", ".rec", ".tar")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("full") / "in"
    for index in range(COUNT):
        path = root / f"{index % 2}" / f"{index:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(index, 60, 50))
    return root


@pytest.mark.parametrize(("suffix", "options"), CASES, ids=lambda one: str(one))
def test_full_disk_is_one_error_and_the_next_run_completes(
    source: Path,
    tmp_path: Path,
    suffix: str,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_run, "_CHUNK", 4)
    monkeypatch.setattr(_stream, "_SYNC_NBYTES", 10_000)
    monkeypatch.setattr(lmdb, "_FLUSH_NBYTES", 10_000)
    path = tmp_path / f"a{suffix}"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, limits[1]))
    try:
        with pytest.raises(StoreError, match=r"writing failed: .* make room") as caught:
            pack(source, path, **options)
        gc.collect()  # nothing complains when it is thrown away
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert f"{path}.partial" in str(caught.value)
    with pytest.raises(StoreError):
        open_store(path)
    left = os.listdir(tmp_path)
    assert left in ([], [f"a{suffix}.partial"])
    report = pack(source, path, **options)
    assert report.records == COUNT and len(open_store(path).read(np.arange(COUNT))) == COUNT
    if suffix in RESUMING:
        assert report.parts[0].resumed > 0
    assert not os.path.exists(f"{path}.partial")


@pytest.mark.parametrize(("suffix", "options"), CASES, ids=lambda one: str(one))
def test_a_disk_that_is_full_from_the_start_leaves_nothing_in_the_way(
    source: Path, tmp_path: Path, suffix: str, options: dict[str, Any]
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    path = tmp_path / f"a{suffix}"
    for nbytes in (0, 100, 1700, 5000, 8200):  # within settings, headers, the pages of LMDB
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, limits[1]))
        try:
            with pytest.raises(StoreError, match=r"make room") as caught:
                pack(source, path, **options)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert str(tmp_path) in str(caught.value)
    assert pack(source, path, **options).records == COUNT
    assert len(open_store(path).read(np.arange(COUNT))) == COUNT
    assert not list(tmp_path.glob("*.partial"))


def test_a_disk_that_is_full_when_a_store_is_replaced_leaves_the_old_one(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.lmdb"
    pack(source, path)
    whole = path.read_bytes()

    def full(folder: str) -> list[str]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(_overwrite, "in_order", full)
        with pytest.raises(StoreError, match=r"a-overwriting\.lmdb\.partial': .* full: make room"):
            pack(source, path, overwrite=True, encode="png")
    assert path.read_bytes() == whole
    assert pack(source, path, overwrite=True, encode="png").records == COUNT
    assert os.listdir(tmp_path) == ["a.lmdb"] and path.read_bytes() != whole


def test_a_full_disk_is_called_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = lmdb.LmdbWriter(tmp_path / "a.lmdb")
    assert "; the disk is full: make room" in str(writer._failed(OSError(errno.ENOSPC, "no room")))
    assert "; if the disk is full make room" in str(writer._failed(OSError(errno.EIO, "broken")))
    monkeypatch.setattr(os, "statvfs", full)
    assert "; the disk is full: make room" in str(writer._failed(OSError(errno.EIO, "broken")))
    refused = str(writer._failed(PermissionError(errno.EACCES, "not yours")))
    assert refused.endswith("; choose a folder in which files can be made")
    writer.abort()


@pytest.mark.parametrize("options", [{}, {"compression": "gzip"}])
def test_hdf5_is_not_left_to_meet_a_full_disk(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """The library can end the process when it does."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", full)
        with pytest.raises(StoreError, match="No space left on device; the disk is full: make"):
            pack(source, tmp_path / "a.h5", **options)
    assert os.listdir(tmp_path) == []
    assert pack(source, tmp_path / "a.h5", **options).records == COUNT


@pytest.mark.parametrize("suffix", RESUMING)
def test_append_on_a_full_disk_leaves_the_store_and_says_that_nothing_else_is_kept(
    source: Path, tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_run, "_CHUNK", 4)
    monkeypatch.setattr(_stream, "_SYNC_NBYTES", 10_000)
    monkeypatch.setattr(lmdb, "_FLUSH_NBYTES", 10_000)
    path = tmp_path / f"a{suffix}"
    for name in "01":
        (tmp_path / "first" / name).mkdir(parents=True)
        (tmp_path / "first" / name / "first.jpg").write_bytes(picture(1, 60, 50))
    pack(tmp_path / "first", path)
    before = sorted(os.listdir(tmp_path))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, limits[1]))
    try:
        with pytest.raises(StoreError, match=r"writing failed: .* make room") as caught:
            append(path, source)
        gc.collect()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "is kept" not in str(caught.value) and caught.value.path == str(path)
    assert sorted(os.listdir(tmp_path)) == before and len(open_store(path)) == 2
    assert append(path, source).records == 2 + COUNT


def full(path: Any) -> os.statvfs_result:
    """What a disk without room says."""
    return os.statvfs_result((4096, 4096, 1000, 0, 0, 1000, 500, 500, 0, 255))
