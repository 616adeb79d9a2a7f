"""``pack(..., ray=...)`` to and from an object store: tasks read and write it themselves."""

from __future__ import annotations

import contextlib
import os
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import psutil
import pytest

from fastload.converters import _url_shards, pack
from fastload.converters._url_shards import UrlShardSet
from fastload.errors import StoreError, StoreNotFoundError, UsageError
from fastload.storage import open_store
from fastload.storage._shards import ShardStart
from fastload.storage.remote.options import RemoteOptions
from fastload.storage.shard_set import ShardPlace
from storage.formats import picture

COUNT = 120


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small JPEGs in three class folders."""
    root = tmp_path_factory.mktemp("images")
    for index in range(COUNT):
        path = root / f"class {index % 3}" / f"{index:04d}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(picture(index, 12 + index % 30, 12 + index % 17))
    return root


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A file system of S3 with an empty bucket, which processes begun later reach too."""
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    moto = pytest.importorskip("moto.server", reason="moto is not installed")
    server = moto.ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    reset = f"http://{host}:{port}/moto-api/reset"  # its buckets are those of the process
    urllib.request.urlopen(reset, data=b"").close()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("AWS_ENDPOINT_URL", f"http://{host}:{port}"),
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
            ("AWS_REGION", "us-east-1"),
            ("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache"))),
        ):
            patch.setenv(name, value)
        system = fsspec.filesystem("s3")
        system.clear_instance_cache()  # those of other tests know another server
        system = fsspec.filesystem("s3")
        system.mkdir("bucket")
        yield system
        system.clear_instance_cache()
    server.stop()


@pytest.fixture(scope="module")
def cluster(bucket: Any) -> Iterator[Any]:
    """Ray, begun after the server, so that its processes know it."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 << 20,
    )
    yield ray
    ray.shutdown()


def objects(system: Any, folder: str) -> dict[str, bytes]:
    """The objects below ``folder`` by name."""
    system.invalidate_cache()
    found = system.find(f"bucket/{folder}")
    return {name.removeprefix(f"bucket/{folder}/"): system.cat_file(name) for name in found}


def files(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in sorted(folder.rglob("*.*"))}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("a.tar", {"shards": 3, "split": "val=0.2"}, marks=pytest.mark.long),
        pytest.param("a.rec", {"shards": 4}, marks=pytest.mark.long),
        pytest.param("a.h5", {"shards": 3}, marks=pytest.mark.long),
        pytest.param("a.pth", {"shards": 3, "resize": "8x8"}, marks=pytest.mark.long),
    ],
)
def test_the_objects_are_the_files_of_one_machine(
    bucket: Any, cluster: Any, images: Path, tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    here = pack(images, tmp_path / name, **options)
    folder = f"local-{name}"
    there = pack(images, f"s3://bucket/{folder}/{name}", ray="local", **options)
    assert objects(bucket, folder) == files(tmp_path)
    for one, other in zip(here.parts, there.parts, strict=True):
        assert other.path == f"s3://bucket/{folder}/{os.path.basename(one.path)}"
        assert vars(other) == {**vars(one), "path": other.path}
    with pytest.raises(UsageError, match="exists"):
        pack(images, f"s3://bucket/{folder}/{name}", ray="local", **options)


def test_a_bucket_that_does_not_exist_is_named_and_not_made(bucket: Any, images: Path) -> None:
    with pytest.raises(StoreNotFoundError, match="an existing bucket, found no 'buckt': create it"):
        pack(images, "s3://buckt/a.lmdb")
    with pytest.raises(StoreError, match="The specified bucket does not exist"):
        UrlShardSet("s3://buckt/a.tar", {}, RemoteOptions())
    bucket.invalidate_cache()
    assert bucket.ls("") == ["bucket"]


def test_a_folder_in_a_bucket_becomes_a_store_in_a_bucket(
    bucket: Any, cluster: Any, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = tmp_path / "tmp"
    staging.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(staging))  # of this process, not of the tasks
    bucket.put(str(images), "bucket/imgs", recursive=True)
    report = pack("s3://bucket/imgs", "s3://bucket/both/a.tfrecord", ray="local", shards=4)
    assert report.records == COUNT and not os.listdir(staging)
    pack(images, tmp_path / "b.tfrecord", shards=4)
    with open_store("s3://bucket/both/a.tfrecord") as store:
        with open_store(tmp_path / "b.tfrecord") as other:
            everything = np.arange(COUNT)
            assert store.read(everything) == other.read(everything)
            assert store.keys(everything) == other.keys(everything)
            assert np.array_equal(store.labels, other.labels)
    again = pack("s3://bucket/both/a.tfrecord", "s3://bucket/again/a.tar", ray="local", shards=2)
    assert again.records == COUNT
    assert not [name for name in objects(bucket, "again") if "partial" in name]


class Stop(Exception):
    pass


def test_a_run_that_was_stopped_is_resumed(
    bucket: Any, cluster: Any, images: Path, tmp_path: Path
) -> None:
    url, options = "s3://bucket/resumed/a.tfrecord", {"shards": 12, "ray": "local"}

    def progress(done: int, total: int | None, nbytes: int) -> None:
        if len(finished()) >= 2:
            raise Stop

    def finished() -> list[str]:
        return [name for name in objects(bucket, "resumed") if name.endswith("report.json")]

    with pytest.raises(Stop):
        pack(images, url, progress=progress, **options)
    made = finished()
    assert 2 <= len(made) < 12
    assert {name.split("/")[0] for name in objects(bucket, "resumed")} == {"a.tfrecord.partial"}
    with pytest.raises(StoreError):
        open_store(url)
    with pytest.raises(UsageError, match="other settings"):
        pack(images, url, ray="local", shards=11)
    # What a task that was killed has left of a shard does not count.
    half = next(n for n in range(12) if not any(f"/{n:05d}/" in name for name in made))
    torn = f"bucket/resumed/a.tfrecord.partial/made/{half:05d}/a-{half:05d}-of-00012.tfrecord"
    bucket.pipe_file(torn, b"torn")
    report = pack(images, url, **options)
    assert report.parts[0].resumed == 10 * len(made)
    pack(images, tmp_path / "a.tfrecord", shards=12)
    assert objects(bucket, "resumed") == files(tmp_path)


@pytest.mark.long
def test_tasks_that_are_killed_are_done_again_and_leave_nothing(
    bucket: Any, cluster: Any, images: Path, tmp_path: Path
) -> None:
    killed = 0

    def progress(done: int, total: int | None, nbytes: int) -> None:
        nonlocal killed
        for one in psutil.Process().children(recursive=True) if killed < 4 else []:
            with contextlib.suppress(psutil.Error):
                if one.name().startswith("ray::encode"):
                    one.kill()
                    killed += 1

    url = "s3://bucket/killed/a.tfrecord"
    report = pack(images, url, ray="local", shards=30, progress=progress)
    assert killed and report.records == COUNT
    pack(images, tmp_path / "a.tfrecord", shards=30)
    assert objects(bucket, "killed") == files(tmp_path)


# Without a cluster: what a task does, step by step.


@pytest.fixture
def system() -> Iterator[Any]:
    made = fsspec.filesystem("memory")
    yield made
    for path in made.ls("/", detail=False):
        made.rm(path, recursive=True)


def writing(records: list[bytes]) -> Callable[[Any], dict[str, Any]]:
    def write(writer: Any) -> dict[str, Any]:
        from fastload.storage import Record

        writer.append(
            [
                Record(data=data, label=None, key=f"{at}.jpg", width=12, height=12)
                for at, data in enumerate(records)
            ]
        )
        return {}

    return write


def begun(shards: int = 2) -> tuple[UrlShardSet, list[ShardPlace]]:
    made = UrlShardSet("memory://bucket/a.tar", {"shards": shards}, RemoteOptions())
    key = "0.jpg"
    return made, [
        made.place(number, shards, ShardStart(first=0, first_key=key)) for number in range(shards)
    ]


def make(place: ShardPlace) -> Any:
    return place.make(writing([picture(1, 12, 12)]), classes=[], metadata={})


@pytest.mark.parametrize("sent", range(4))
def test_an_upload_that_ends_early_leaves_no_finished_shard(
    system: Any, monkeypatch: pytest.MonkeyPatch, sent: int
) -> None:
    shards, (place, _) = begun()
    whole, left = type(system).put_file, sent

    def ending(self: Any, *given: Any, **named: Any) -> Any:
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        return whole(self, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(type(system), "put_file", ending)
        with pytest.raises(KeyboardInterrupt):
            make(place)
    assert place.found() is None
    assert make(place).records == 1 and place.found() is not None
    shards.close()


def test_a_store_exists_only_when_all_is_there(system: Any, monkeypatch: Any) -> None:
    shards, places = begun()
    made = [make(place) for place in places]
    whole = type(system).cp_file

    def failing(self: Any, begin: str, end: str, **named: Any) -> Any:
        if "00001" in end:
            raise OSError("the connection was lost")
        return whole(self, begin, end, **named)

    with monkeypatch.context() as patch:
        patch.setattr(type(system), "cp_file", failing)
        with pytest.raises(StoreError, match="the connection was lost"):
            shards.commit(made)
    shards.close()
    assert not system.exists("/bucket/a.tar.fastload")
    again, places = begun()
    assert [place.found() for place in places] == made
    assert len(again.commit(made)) == 2
    names = [name.rsplit("/", 1)[-1] for name in sorted(system.find("/bucket"))]
    assert names == ["a-000000.tar", "a-000001.tar", "a.tar.fastload"]
    table = _url_shards.finished("memory://bucket/a.tar", RemoteOptions())
    assert table is not None and len(table) == 2


def test_what_lies_where_a_shard_belongs_is_not_replaced(system: Any) -> None:
    shards, places = begun()
    made = [make(place) for place in places]
    system.pipe_file("/bucket/a-000001.tar", b"another one's")
    with pytest.raises(UsageError, match=r"a-000001\.tar' exists"):
        shards.commit(made)
    assert system.cat_file("/bucket/a-000001.tar") == b"another one's"
    assert not system.exists("/bucket/a-000000.tar") and not system.exists("/bucket/a.tar.fastload")
    shards.close()


def test_two_that_write_one_set_are_not_mixed(system: Any) -> None:
    shards, _ = begun()
    with pytest.raises(UsageError, match="another process of this machine packs to it"):
        begun()
    shards.close()
    begun()[0].close()


def test_what_a_run_left_that_was_killed_after_its_last_upload_is_deleted(
    system: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards, places = begun()
    made = [make(place) for place in places]

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(system), "rm", killed)
        with pytest.raises(KeyboardInterrupt):
            shards.commit(made)
    assert system.exists("/bucket/a.tar.partial/settings.json")
    with pytest.raises(UsageError, match=r"a\.tar\.fastload' exists"):
        begun(shards=3)  # of another run: stays
    assert system.exists("/bucket/a.tar.partial/settings.json")
    with pytest.raises(UsageError, match=r"a\.tar\.fastload' exists"):
        begun()
    assert not system.exists("/bucket/a.tar.partial")


def test_a_set_of_which_nothing_was_made_leaves_nothing(system: Any) -> None:
    begun()[0].close()
    assert not system.find("/bucket")


def test_damaged_settings_and_reports_are_named(system: Any) -> None:
    shards, (place, _) = begun()
    make(place)
    shards.close()
    system.pipe_file("/bucket/a.tar.partial/made/00000/report.json", b"{")
    with pytest.raises(StoreError, match="report of a finished shard is damaged"):
        place.found()
    system.pipe_file("/bucket/a.tar.partial/settings.json", b"[1")
    with pytest.raises(StoreError, match=r"settings\.json of the unfinished store is damaged"):
        begun()
