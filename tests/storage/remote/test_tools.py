"""What commands and users call beside training, on stores at URLs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from torchvision import transforms as T

import fastload
from fastload import PackedDataset, info, unpack, verify
from fastload.cli import main
from fastload.errors import StoreError, StoreNotFoundError
from fastload.storage import open_store
from object_server import ObjectServer

NAMES = ["photos.lmdb", "shards.tfrecord", "photos.tar"]


@pytest.fixture(autouse=True)
def users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default cache folder of these tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "users-cache"))
    return tmp_path / "users-cache"


@pytest.fixture(scope="module")
def memory(remote_folder: Path) -> Iterator[str]:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    system = fsspec.filesystem("memory")
    for path in remote_folder.iterdir():
        system.pipe(f"/tools/{path.name}", path.read_bytes())
    yield "memory://tools"
    system.rm("/tools", recursive=True)


@pytest.fixture(params=["http", "memory"])
def base(request: pytest.FixtureRequest, server: ObjectServer, memory: str) -> str:
    """The URL of the folder of all stores."""
    return server.url if request.param == "http" else memory


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("name", NAMES)
def test_info_verify_and_unpack_say_what_they_say_of_the_local_store(
    base: str, remote_folder: Path, tmp_path: Path, name: str
) -> None:
    url, path = f"{base}/{name}", remote_folder / name
    found, local = info(url), info(path)
    assert found.path == url
    for what in ("records", "nbytes", "file_nbytes", "classes", "width", "encodings", "files"):
        assert getattr(found, what) == getattr(local, what), what
    report = verify(url, decode=True)
    assert (report.damaged, report.records, report.columns) == ((), local.records, "right")
    unpack(url, tmp_path / "remote")
    unpack(path, tmp_path / "local")
    assert files(tmp_path / "remote") == files(tmp_path / "local")


def test_show_draws_the_same_grid(base: str, remote_folder: Path) -> None:
    transform = T.Compose([T.RandomResizedCrop(40), T.ToTensor()])
    found, local = (
        fastload.show(f"{where}/photos.lmdb", transform, samples=3, views=2)
        for where in (base, remote_folder)
    )
    assert found.image.tobytes() == local.image.tobytes()
    assert found.tiles == local.tiles


def test_a_packed_dataset_of_several_urls_is_the_local_one(base: str, remote_folder: Path) -> None:
    found, local = (
        PackedDataset([f"{where}/{name}" for name in NAMES]) for where in (base, remote_folder)
    )
    assert len(found) == len(local) and found.targets == local.targets
    assert found.samples == local.samples and found.class_to_idx == local.class_to_idx
    for index in (0, len(local) // 2, len(local) - 1):
        assert np.array_equal(np.asarray(found[index][0]), np.asarray(local[index][0]))


def test_shards_in_braces_are_one_store(base: str, remote_folder: Path) -> None:
    name = "shards-{00000..00002}-of-00003.tfrecord"
    with open_store(f"{base}/{name}") as found, open_store(remote_folder / name) as local:
        everything = np.arange(len(local))
        assert found.read(everything) == local.read(everything)


def test_a_numbered_set_of_another_program_is_one_store(memory: str, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    system = pytest.importorskip("fsspec").filesystem("memory")
    names = [f"a-{number}-of-3.parquet" for number in range(3)]
    for number, name in enumerate(names):
        table = {"image": [b"%d%d" % (number, row) for row in range(4)]}
        parquet.write_table(pytest.importorskip("pyarrow").table(table), tmp_path / name)
        system.pipe(f"/numbered/{name}", (tmp_path / name).read_bytes())
    everything = np.arange(12)
    with open_store("memory://numbered/a.parquet") as found:
        assert found.read(everything) == open_store(tmp_path / "a.parquet").read(everything)
    system.pipe("/numbered/a-0-of-7.parquet", b"")
    with pytest.raises(StoreError, match=r"found several, .*such as a-\*-of-3\.parquet") as several:
        open_store("memory://numbered/a.parquet")
    assert several.value.path == "memory://numbered/a.parquet"
    with open_store("memory://numbered/a-*-of-3.parquet") as found:
        assert len(found) == 12
    system.rm("/numbered/a-0-of-7.parquet")
    system.rm(f"/numbered/{names[1]}")
    with pytest.raises(StoreNotFoundError, match="a file of the set is missing") as caught:
        open_store("memory://numbered/a.parquet")
    assert caught.value.path == f"memory://numbered/{names[1]}"
    system.rm("/numbered", recursive=True)


def test_a_lost_manifest_is_named_by_its_url(memory: str, remote_folder: Path) -> None:
    """Not by the file of the cache that stands for it."""
    system = pytest.importorskip("fsspec").filesystem("memory")
    for shard in range(3):
        name = f"shards-{shard:05d}-of-00003.tfrecord"
        system.pipe(f"/lost/{name}", (remote_folder / name).read_bytes())
    with pytest.raises(StoreError) as caught:
        open_store("memory://lost/shards.tfrecord")
    assert "expected 'memory://lost/shards.tfrecord.fastload'" in caught.value.message
    assert "users-cache" not in str(caught.value)
    system.rm("/lost", recursive=True)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["info", "--json"], "records"),
        (["verify", "--json"], "damaged"),
        (["autotune", "--json", "--budget", "1", "--fix-batch-size", "4", "--force"], "batch_size"),
    ],
)
def test_commands_take_urls(
    server: ObjectServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    words: list[str],
    expected: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main([*words, f"{server.url}/photos.lmdb"])
    printed = capfd.readouterr()
    assert not ended.value.code, printed.err
    assert expected in json.loads(printed.out)


def test_verify_names_the_object_with_a_damaged_record(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    fastload.pack(photos, tmp_path / "served" / "a.lmdb")
    with open_store(tmp_path / "served" / "a.lmdb") as store:
        spans = store.places(np.array([5]))
    with open(tmp_path / "served" / "a.lmdb", "r+b") as file:
        file.seek(int(spans.offset[0]) + int(spans.nbytes[0]) // 2)
        file.write(b"damage")
    server = ObjectServer(tmp_path / "served")
    try:
        (damage,) = verify(f"{server.url}/a.lmdb").damaged
        assert (damage.record, damage.path) == (5, f"{server.url}/a.lmdb")
    finally:
        server.close()
