"""URLs as sources and destinations, on fsspec's file system in memory, and on a real S3 server."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from fastload.converters import pack
from fastload.errors import MissingDependencyError, StoreError, StoreNotFoundError, UsageError
from fastload.storage import open_store
from storage.formats import picture


@pytest.fixture
def images(tmp_path: Path) -> Path:
    root = tmp_path / "in ü"
    for index in range(20):
        path = root / f"klasse {index % 2}" / f"{index:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(index, 9, 9))
    return root


@pytest.fixture
def staging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of these tests, to see that nothing is left in it."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def memory() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    yield system
    for path in system.ls("/", detail=False):
        system.rm(path, recursive=True)


def content(path: Path) -> Any:
    store, everything = open_store(path), np.arange(len(open_store(path)))
    assert store.labels is not None
    return store.read(everything), store.labels.tolist(), store.keys(everything)


def there_and_back(
    base: str, system: Any, images: Path, tmp_path: Path, **options: Any
) -> Callable[[str], None]:
    def check(suffix: str) -> None:
        pack(images, tmp_path / f"local{suffix}", **options)
        report = pack(str(images), f"{base}/d/x y{suffix}", **options)
        assert report.parts[0].path == f"{base}/d/x y{suffix}" and report.records == 20
        with pytest.raises(UsageError, match="exists"):
            pack(str(images), f"{base}/d/x y{suffix}", **options)
        pack(f"{base}/d/x y{suffix}", tmp_path / f"back{suffix}.lmdb")
        assert content(tmp_path / f"back{suffix}.lmdb") == content(tmp_path / f"local{suffix}")

    return check


@pytest.mark.parametrize(
    ("suffix", "options"),
    [(".lmdb", {}), (".tfrecord", {}), (".tar", {"shards": 3}), (".zarr", {"encode": "raw"})],
)
def test_stores_go_to_a_url_and_come_back(
    memory: Any, images: Path, tmp_path: Path, staging: Path, suffix: str, options: dict[str, Any]
) -> None:
    there_and_back("memory://bucket", memory, images, tmp_path, **options)(suffix)
    assert os.listdir(staging) == []


def test_folders_and_lists_are_fetched(
    memory: Any, images: Path, tmp_path: Path, staging: Path
) -> None:
    memory.put(str(images), "/b/imgs", recursive=True)
    pack("memory://b/imgs", tmp_path / "a.lmdb")
    pack(images, tmp_path / "b.lmdb")
    assert content(tmp_path / "a.lmdb") == content(tmp_path / "b.lmdb")
    assert open_store(tmp_path / "a.lmdb").metadata["source"] == "memory://b/imgs"
    memory.pipe("/b/imgs/list.csv", b"path,label\nklasse 1/03.jpg,7\nklasse 0/00.jpg,8\n")
    pack("memory://b/imgs/list.csv", tmp_path / "c.lmdb")
    assert content(tmp_path / "c.lmdb") == (
        [picture(3, 9, 9), picture(0, 9, 9)], [7, 8], ["klasse 1/03.jpg", "klasse 0/00.jpg"],
    )  # fmt: skip
    assert os.listdir(staging) == []


def test_interrupted_work_on_a_url_is_resumed(
    memory: Any, images: Path, tmp_path: Path, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastload.converters import _run

    monkeypatch.setattr(_run, "_CHUNK", 4)
    monkeypatch.setattr(_run, "_CHUNK_MOST", 4)
    memory.put(str(images), "/b/imgs", recursive=True)

    def stop(done: int, total: int, nbytes: int) -> None:
        if done >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack("memory://b/imgs", "memory://b/x.lmdb", progress=stop)
    assert not memory.exists("/b/x.lmdb")
    assert pack("memory://b/imgs", "memory://b/x.lmdb").parts[0].resumed >= 8
    assert memory.exists("/b/x.lmdb") and os.listdir(staging) == []


def test_urls_that_lead_nowhere_say_so(memory: Any, tmp_path: Path, images: Path) -> None:
    with pytest.raises(StoreNotFoundError, match="found nothing"):
        pack("memory://b/none.lmdb", tmp_path / "a.lmdb")
    with pytest.raises((UsageError, MissingDependencyError), match="nosuch"):
        pack("nosuch://b/none.lmdb", tmp_path / "a.lmdb")


class NoCredentials(Exception):
    """botocore's errors are of no type that Python has."""


def test_whatever_a_file_system_raises_is_an_error_with_the_url(
    memory: Any, images: Path, tmp_path: Path, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise NoCredentials("Unable to locate credentials")

    for name in ("isdir", "exists", "put_file"):
        with monkeypatch.context() as patch:
            patch.setattr(type(memory), name, refuse)
            with pytest.raises(
                StoreError, match=r"NoCredentials: Unable to .* credentials"
            ) as found:
                if name == "isdir":
                    pack("memory://b/imgs", tmp_path / "a.lmdb")
                else:
                    pack(images, "memory://b/a.lmdb")
        assert found.value.path in ("memory://b/imgs", "memory://b/a.lmdb")
        assert isinstance(found.value.__cause__, NoCredentials)


@pytest.mark.long
def test_an_s3_server(images: Path, tmp_path: Path, staging: Path) -> None:
    pytest.importorskip("s3fs")
    server_module = pytest.importorskip("moto.server")
    server = server_module.ThreadedMotoServer(port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        options = {"endpoint_url": f"http://{host}:{port}", "key": "test", "secret": "test"}
        fsspec.config.conf["s3"] = options
        system = fsspec.filesystem("s3", **options)
        system.mkdir("bucket")
        there_and_back("s3://bucket", system, images, tmp_path)(".lmdb")
        there_and_back("s3://bucket", system, images, tmp_path, shards=2)(".tfrecord")
        system.put(str(images), "bucket/imgs", recursive=True)
        pack("s3://bucket/imgs", tmp_path / "a.lmdb")
        assert len(open_store(tmp_path / "a.lmdb")) == 20
    finally:
        fsspec.config.conf.pop("s3", None)
        server.stop()
