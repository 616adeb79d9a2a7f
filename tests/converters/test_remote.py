"""URLs as sources and destinations, on fsspec's file system in memory, and on a real S3 server."""

from __future__ import annotations

import io
import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from PIL import Image

from fastload.cli import main
from fastload.converters import pack
from fastload.errors import (
    DecodeError,
    MissingDependencyError,
    StoreError,
    StoreNotFoundError,
    UsageError,
)
from fastload.storage import open_store
from object_server import ObjectServer
from storage.formats import picture

CutOff = Callable[..., list[str]]


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


def test_credentials_are_in_no_store_and_no_report(
    memory: Any, images: Path, tmp_path: Path, staging: Path
) -> None:
    assert pack(images, "memory://bucket/a?b/x.tar").parts[0].path == "memory://bucket/a?b/x.tar"
    url = "memory://me:hunter2@bucket/x.tar"
    assert pack(images, url).parts[0].path == "memory://bucket/x.tar"
    pack(url, tmp_path / "a.lmdb")
    assert open_store(tmp_path / "a.lmdb").metadata["source"] == "memory://bucket/x.tar"
    with pytest.raises(UsageError, match=r"'http://h/a\.tar': expected a URL without a query"):
        pack(images, "http://h/a.tar?token=hunter2")
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


def test_images_of_every_kind_are_fetched_and_what_is_left_out_has_its_url_s_path(
    memory: Any, images: Path, tmp_path: Path, staging: Path
) -> None:
    memory.put(str(images), "/b/imgs", recursive=True)
    Image.new("RGB", (4, 3)).save(image := io.BytesIO(), "TGA")
    memory.pipe("/b/imgs/klasse 1/x.tga", image.getvalue())
    memory.pipe("/b/imgs/klasse 1/x.json", b"{}")
    report = pack("memory://b/imgs", tmp_path / "a.lmdb")
    assert report.records == 21
    assert [one.example for one in report.left_out] == ["/b/imgs/klasse 1/x.json"]
    assert content(tmp_path / "a.lmdb")[0][-1] == image.getvalue()


def test_files_beside_images_and_columns_of_files_are_fetched(
    memory: Any, images: Path, tmp_path: Path, staging: Path
) -> None:
    for path in images.rglob("*.jpg"):
        path.with_suffix(".txt").write_text(f"caption {path.stem}")
    memory.put(str(images), "/b/imgs", recursive=True)
    pack("memory://b/imgs", tmp_path / "a.lmdb")
    store = open_store(tmp_path / "a.lmdb")
    keys = store.keys(np.arange(len(store)))
    wanted = [f"caption {Path(key).stem}".encode() for key in keys]
    assert store.values("txt", np.arange(len(store))) == wanted
    memory.pipe("/b/imgs/list.csv", b"path,extra\nklasse 1/03.jpg,klasse 0/00.txt\n")
    pack("memory://b/imgs/list.csv", tmp_path / "b.lmdb", file_columns="extra")
    store = open_store(tmp_path / "b.lmdb")
    assert store.values("extra", np.arange(1)) == [b"caption 00"]
    assert store.read(np.arange(1)) == [picture(3, 9, 9)]
    assert os.listdir(staging) == []


def test_errors_at_a_url_name_the_url_and_no_place_of_this_machine(
    memory: Any, images: Path, tmp_path: Path, staging: Path
) -> None:
    memory.pipe("/b/x.tar.gz", b"\x1f\x8b...")
    with pytest.raises(StoreError, match="found another file: fetch it") as caught:
        pack("memory://b/x.tar.gz", tmp_path / "x.lmdb")
    assert str(staging) not in str(caught.value)
    memory.pipe("/b/imgs/a/1.txt", b"x")
    memory.pipe("/b/imgs/b/1.jpg", b"x")
    with pytest.raises(StoreNotFoundError, match="none in a") as missing:
        pack("memory://b/imgs", tmp_path / "x.lmdb")
    assert missing.value.path == "memory://b/imgs"
    assert str(staging) not in str(missing.value) and "type next" not in str(missing.value)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of four samples, so that a few samples can be interrupted."""
    from fastload.converters import _run

    monkeypatch.setattr(_run, "_CHUNK", 4)
    monkeypatch.setattr(_run, "_CHUNK_MOST", 4)


def stop(done: int, total: int, nbytes: int) -> None:
    if done >= 8:
        raise KeyboardInterrupt


def test_interrupted_work_on_a_url_is_resumed(
    memory: Any, images: Path, staging: Path, small_chunks: None
) -> None:
    memory.put(str(images), "/b/imgs", recursive=True)
    with pytest.raises(KeyboardInterrupt):
        pack("memory://b/imgs", "memory://b/x.lmdb", progress=stop)
    assert not memory.exists("/b/x.lmdb")
    assert pack("memory://b/imgs", "memory://b/x.lmdb").parts[0].resumed >= 8
    assert memory.exists("/b/x.lmdb") and os.listdir(staging) == []


def test_a_store_is_fetched_while_it_is_packed_and_no_byte_twice(
    images: Path, tmp_path: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "served").mkdir()
    pack(images, tmp_path / "served" / "a.lmdb")
    server = ObjectServer(tmp_path / "served")
    try:
        with pytest.raises(KeyboardInterrupt):
            pack(f"{server.url}/a.lmdb", tmp_path / "b.lmdb", progress=stop)
        report = pack(f"{server.url}/a.lmdb", tmp_path / "b.lmdb")
    finally:
        server.close()
    assert report.parts[0].resumed >= 8
    assert content(tmp_path / "b.lmdb") == content(tmp_path / "served" / "a.lmdb")
    ranges = sorted((one.start, one.stop) for one in server.gets())
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ranges))


def test_the_next_parts_of_a_store_are_fetched_while_one_is_packed(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
    from fastload.converters import _run
    from fastload.storage.remote.blocks import CELL
    from fastload.storage.remote.store import RemoteStore

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(_run, "_CHUNK", 1)
    (tmp_path / "served").mkdir()
    pack(images, tmp_path / "served" / "a.lmdb", encode="raw", resize=f"{CELL}x1")
    announced: list[int] = []
    read: list[int] = []
    ahead, spans = RemoteStore.ahead, RemoteStore.spans

    def counted_ahead(store: RemoteStore, indices: Any, **options: Any) -> Any:
        announced.extend(indices.tolist())
        return ahead(store, indices, **options)

    def counted_spans(store: RemoteStore, indices: Any) -> Any:
        assert set(indices.tolist()) <= set(announced)
        assert len(announced) >= min(20, len(read) + 8)
        read.extend(indices.tolist())
        return spans(store, indices)

    monkeypatch.setattr(RemoteStore, "ahead", counted_ahead)
    monkeypatch.setattr(RemoteStore, "spans", counted_spans)
    server = ObjectServer(tmp_path / "served")
    try:
        pack(f"{server.url}/a.lmdb", tmp_path / "b.lmdb", workers=1)
    finally:
        server.close()
    assert sorted(read) == list(range(20))
    assert content(tmp_path / "b.lmdb") == content(tmp_path / "served" / "a.lmdb")


def test_storage_options_are_for_the_source_or_else_the_destination(
    images: Path, tmp_path: Path, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []
    whole = fsspec.core.url_to_fs

    def seen(url: str, **options: Any) -> Any:
        made.append(options)
        return whole(url)

    monkeypatch.setattr(fsspec.core, "url_to_fs", seen)
    pack(images, "memory://o/a.tar", storage_options={"token": "secret"})
    assert made == [{"token": "secret"}]
    made.clear()
    fsspec.filesystem("memory").put(str(images), "/o/imgs", recursive=True)
    pack("memory://o/imgs", "memory://o/b.tar", storage_options={"token": "secret"})
    assert sorted(map(len, made)) == [0, 1]
    fsspec.filesystem("memory").rm("/o", recursive=True)
    with pytest.raises(UsageError, match="storage_options: expected a URL"):
        pack(images, tmp_path / "c.lmdb", storage_options={})


@pytest.mark.parametrize("name", ["a.lmdb", "a#1.lmdb"])
def test_a_store_in_s3_is_packed_with_the_options_of_the_loader(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "served" / "bucket").mkdir(parents=True)
    pack(images, tmp_path / "served" / "bucket" / name)
    server = ObjectServer(tmp_path / "served")
    options = {"endpoint": server.url, "region": "us-east-1", "skip_signature": True}
    try:
        pack(f"s3://bucket/{name}", tmp_path / "b.lmdb", storage_options=options)
        words = [f"--storage-option={name}={value}" for name, value in options.items()]
        for command in (
            ["info", f"s3://bucket/{name}"],
            ["verify", "-q", f"s3://bucket/{name}"],
            ["unpack", "-q", f"s3://bucket/{name}", str(tmp_path / "files")],
            ["pack", "-q", f"s3://bucket/{name}", str(tmp_path / "c.lmdb")],
        ):
            with pytest.raises(SystemExit) as ended:
                main([*command, *words])
            assert not ended.value.code
    finally:
        server.close()
    expected = content(tmp_path / "served" / "bucket" / name)
    assert content(tmp_path / "b.lmdb") == content(tmp_path / "c.lmdb") == expected
    assert len(list((tmp_path / "files").rglob("*.jpg"))) == 20


def test_a_storage_option_needs_a_name_and_a_url(
    images: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pack(images, tmp_path / "a.lmdb")
    for words, expected in (
        (["verify", str(tmp_path / "a.lmdb"), "--storage-option", "a=b"], "expected the URL"),
        (["verify", "s3://b/a.lmdb", "--storage-option", "secret"], "expected NAME=VALUE"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2 and expected in capfd.readouterr().err


def test_secrets_of_storage_options_are_not_shown(
    memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise NoCredentials("the token hunter2 has expired")

    monkeypatch.setattr(type(memory), "isdir", refuse)
    with pytest.raises(StoreError, match=r"the token \*\*\* has expired") as caught:
        pack("memory://b/imgs", tmp_path / "a.lmdb", storage_options={"token": "hunter2"})
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


def test_secrets_in_nested_storage_options_are_not_shown(
    memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise ValueError("bad key hunter2 in eu-central-1")

    monkeypatch.setattr("fsspec.core.url_to_fs", refuse)
    options = {"client_kwargs": {"password": "hunter2", "region_name": "eu-central-1"}}
    with pytest.raises(UsageError, match=r"bad key \*\*\* in eu-central-1"):
        pack("memory://b/imgs", tmp_path / "a.lmdb", storage_options=options)


def test_images_of_a_folder_are_fetched_when_they_are_packed(
    memory: Any, images: Path, tmp_path: Path, staging: Path, small_chunks: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    memory.put(str(images), "/b/imgs", recursive=True)
    asked: list[str] = []
    whole = type(memory).cat_ranges

    def counted(system: Any, paths: list[str], *rest: Any, **options: Any) -> Any:
        asked.extend(paths)
        assert not [path for path in staging.rglob("*.jpg") if path.stat().st_size]
        return whole(system, paths, *rest, **options)

    monkeypatch.setattr(type(memory), "cat_ranges", counted)
    with pytest.raises(KeyboardInterrupt):
        pack("memory://b/imgs", tmp_path / "x.lmdb", progress=stop, workers=1)
    before = len(asked)
    assert 8 <= before < 20
    resumed = pack("memory://b/imgs", tmp_path / "x.lmdb").parts[0].resumed
    assert len(asked) - before == 20 - resumed
    pack(images, tmp_path / "y.lmdb")
    assert content(tmp_path / "x.lmdb") == content(tmp_path / "y.lmdb")


def test_a_file_that_cannot_be_fetched_is_named(
    memory: Any, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.put(str(images), "/b/imgs", recursive=True)
    whole = type(memory).cat_file

    def broken(system: Any, path: str, *rest: Any, **options: Any) -> Any:
        if path.endswith("07.jpg"):
            raise NoCredentials("gone")
        return whole(system, path, *rest, **options)

    monkeypatch.setattr(type(memory), "cat_file", broken)
    with pytest.raises(DecodeError, match="cannot be fetched: NoCredentials: gone") as found:
        pack("memory://b/imgs", tmp_path / "x.lmdb")
    assert str(found.value.path).endswith("07.jpg")
    report = pack("memory://b/imgs", tmp_path / "z.lmdb", on_error="skip")
    assert (report.records, len(report.skipped)) == (19, 1)


@pytest.fixture
def cut_off(memory: Any, images: Path, monkeypatch: pytest.MonkeyPatch) -> CutOff:
    """Packs to a URL, is cut off after two files were uploaded, and returns these."""

    def run(url: str, **options: Any) -> list[str]:
        put, sent = type(memory).put_file, list[str]()

        def failing(system: Any, local: str, path: str, **given: Any) -> Any:
            if len(sent) == 2:
                raise NoCredentials("the token has expired")
            sent.append(path)
            return put(system, local, path, **given)

        with monkeypatch.context() as patch:
            patch.setattr(type(memory), "put_file", failing)
            with pytest.raises(StoreError, match="the token has expired"):
                pack(images, url, **options)
        return sent

    return run


@pytest.mark.parametrize(
    ("suffix", "options"), [(".tfrecord", {"shards": 4}), (".zarr", {"encode": "raw"})]
)
def test_an_interrupted_upload_is_resumed_and_nothing_exists_until_then(
    memory: Any, images: Path, tmp_path: Path, staging: Path, suffix: str, cut_off: CutOff,
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    url, put = f"memory://b/x{suffix}", type(memory).put_file
    sent = cut_off(url, **options)
    with pytest.raises(StoreError):
        open_store(url)

    def counted(system: Any, local: str, path: str, **given: Any) -> Any:
        assert path not in sent
        sent.append(path)
        return put(system, local, path, **given)

    with monkeypatch.context() as patch:
        patch.setattr(type(memory), "put_file", counted)
        report = pack(images, url, **options)
    assert report.records == 20 and os.listdir(staging) == []
    pack(images, tmp_path / f"x{suffix}", **options)
    pack(url, tmp_path / "back.lmdb")
    assert content(tmp_path / "back.lmdb") == content(tmp_path / f"x{suffix}")


@pytest.mark.parametrize("suffix", [".n5", ".zarr"])
def test_an_upload_that_cannot_be_resumed_says_what_to_delete(
    memory: Any, images: Path, tmp_path: Path, staging: Path, cut_off: CutOff,
    suffix: str,
) -> None:  # fmt: skip
    url = f"memory://b/x{suffix}"
    cut_off(url, encode="raw")
    (folder,) = (path for path in staging.iterdir() if path.is_dir())
    shutil.rmtree(folder)  # as on another machine, or after a reboot
    with pytest.raises(UsageError, match=rf"'{url}' exists: delete it"):
        pack(images, url, encode="raw")
    memory.rm(url, recursive=True)
    pack(images, url, encode="raw")
    with pytest.raises(UsageError, match="exists: delete it or choose another name"):
        pack(images, url, encode="raw")
    assert os.listdir(staging) == []


def test_images_that_changed_since_the_upload_began_are_noticed(
    memory: Any, images: Path, staging: Path, cut_off: CutOff
) -> None:
    cut_off("memory://b/x.n5", encode="raw")
    (images / "klasse 1" / "03.jpg").write_bytes(picture(77, 9, 9))
    with pytest.raises(UsageError, match="files that differ from these, packed a store whose"):
        pack(images, "memory://b/x.n5", encode="raw")


@pytest.mark.parametrize("suffix", [".n5", ".zarr"])
@pytest.mark.parametrize("all_of_it", [True, False])
def test_the_files_of_another_store_are_never_taken_for_uploaded(
    memory: Any, images: Path, tmp_path: Path, staging: Path, cut_off: CutOff,
    suffix: str, all_of_it: bool,
) -> None:  # fmt: skip
    """The next run packs other images: the same names and sizes of files, other bytes."""
    url = f"memory://b/x{suffix}"
    cut_off(url, encode="raw")
    (folder,) = (path for path in staging.iterdir() if path.is_dir())
    images = images.rename(images.with_name("other"))
    for index, path in enumerate(sorted(images.rglob("*.jpg"))):
        path.write_bytes(picture(100 + index, 9, 9))
    with pytest.raises(UsageError, match=rf"use the same to resume, or delete '{folder}', and '"):
        pack(images, url, encode="raw")
    if all_of_it:
        shutil.rmtree(folder)
        memory.rm(url, recursive=True)
    else:
        shutil.rmtree(folder / f"x{suffix}")
    assert pack(images, url, encode="raw").records == 20
    pack(images, tmp_path / f"x{suffix}", encode="raw")
    pack(url, tmp_path / "back.lmdb")
    assert content(tmp_path / "back.lmdb") == content(tmp_path / f"x{suffix}")


def test_a_store_that_another_machine_has_packed_meanwhile_is_not_replaced(
    memory: Any, images: Path
) -> None:
    def other(done: int, total: int | None, nbytes: int) -> None:
        memory.pipe_file("/b/x.lmdb", b"another one's")

    with pytest.raises(UsageError, match=r"'memory://b/x\.lmdb' exists: delete it or"):
        pack(images, "memory://b/x.lmdb", progress=other)
    assert memory.cat_file("/b/x.lmdb") == b"another one's"
    memory.rm_file("/b/x.lmdb")
    assert pack(images, "memory://b/x.lmdb").records == 20
    assert [one.rsplit("/", 1)[-1] for one in memory.find("/b")] == ["x.lmdb"]


def test_a_part_of_a_split_at_a_url_is_not_replaced(
    memory: Any, images: Path, tmp_path: Path, staging: Path
) -> None:
    pack(images, "memory://b/x-val.lmdb")
    before = memory.cat_file("/b/x-val.lmdb")
    with pytest.raises(UsageError, match=r"'memory://b/x-val\.lmdb' exists: delete it or"):
        pack(images, "memory://b/x.lmdb", split="val=0.3")
    assert memory.cat_file("/b/x-val.lmdb") == before
    memory.rm_file("/b/x-val.lmdb")
    tried = list[str]()

    def meanwhile(done: int, total: int | None, nbytes: int) -> None:
        with pytest.raises(UsageError, match=r"x-val\.lmdb': another process of this machine"):
            pack(images, "memory://b/x-val.lmdb")
        tried.append("refused")

    parts = pack(images, "memory://b/x.lmdb", split="val=0.3", progress=meanwhile).parts
    assert tried and sum(part.records for part in parts) == 20
    assert [part.path for part in parts] == ["memory://b/x.lmdb", "memory://b/x-val.lmdb"]
    assert sorted(memory.find("/b")) == ["/b/x-val.lmdb", "/b/x.lmdb"]
    assert os.listdir(staging) == []


def test_urls_that_lead_nowhere_say_so(memory: Any, tmp_path: Path, images: Path) -> None:
    with pytest.raises(StoreNotFoundError, match="found nothing"):
        pack("memory://b/none.lmdb", tmp_path / "a.lmdb")
    with pytest.raises(StoreNotFoundError, match=r"'memory://b/none': .*found nothing"):
        pack("memory://b/none", tmp_path / "a.lmdb")
    with pytest.raises((UsageError, MissingDependencyError), match="nosuch"):
        pack("nosuch://b/none.lmdb", tmp_path / "a.lmdb")


def test_a_missing_file_system_is_answered_with_the_package_to_install(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    for source, destination in (("s3://b/imgs", tmp_path / "a.lmdb"), (images, "s3://b/a.lmdb")):
        with pytest.raises(MissingDependencyError) as caught:
            pack(source, destination)
        assert str(caught.value).endswith("type next: pip install s3fs")


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


@pytest.mark.long
def test_an_s3_server(
    images: Path, tmp_path: Path, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("s3fs")
    server_module = pytest.importorskip("moto.server")
    server = server_module.ThreadedMotoServer(port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        for name, value in (
            ("XDG_CACHE_HOME", str(tmp_path / "cache")),
            ("AWS_ENDPOINT_URL", f"http://{host}:{port}"),
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
            ("AWS_REGION", "us-east-1"),
        ):
            monkeypatch.setenv(name, value)
        system = fsspec.filesystem("s3")
        system.mkdir("bucket")
        there_and_back("s3://bucket", system, images, tmp_path)(".lmdb")
        there_and_back("s3://bucket", system, images, tmp_path, shards=2)(".tfrecord")
        system.put(str(images), "bucket/imgs", recursive=True)
        pack("s3://bucket/imgs", tmp_path / "a.lmdb")
        assert len(open_store(tmp_path / "a.lmdb")) == 20
    finally:
        server.stop()
