"""Parquet files at URLs: the rows of the local files, for the bytes of the row groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchvision import transforms as T

from fastload import FastLoader, PackedDataset, open_store, pack
from fastload.errors import StoreError
from fastload.storage import _row_groups
from fastload.storage._row_groups import RowGroups
from fastload.storage.remote.options import RemoteOptions
from object_server import Faults, ObjectServer
from sides import assert_same

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

TRANSFORM = T.Compose([T.RandomResizedCrop(32), T.ToTensor()])
ROWS = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of three row groups of some 40 KB each. Read only."""
    from PIL import Image

    made = tmp_path_factory.mktemp("parquet")
    random = np.random.default_rng(0)
    import io

    for number in range(2):
        images = []
        for _ in range(ROWS // 2):
            buffer = io.BytesIO()
            pixels = random.integers(0, 256, (40, 50, 3), np.uint8)
            Image.fromarray(pixels).save(buffer, "JPEG", quality=95)
            images.append(buffer.getvalue())
        labels = list(range(number * 30, number * 30 + 30))
        table = pa.table({"image": images, "label": labels, "name": [f"n{i}" for i in labels]})
        pq.write_table(table, made / f"part-{number}.parquet", row_group_size=10)
    return made


@pytest.fixture
def server(folder: Path) -> Iterator[ObjectServer]:
    made = ObjectServer(folder)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def groups() -> Iterator[RowGroups]:
    """The row groups of this test alone."""
    made = RowGroups(1 << 30)
    before = _row_groups.use(made)
    yield made
    _row_groups.use(before)


def batches(path: Any, **options: Any) -> list[dict[str, Any]]:
    data = {name: options.pop(name) for name in ("cache_dir", "disk_limit") if name in options}
    given = {"batch_size": 7, "shuffle": True, "seed": 2, "transform": TRANSFORM, **options}
    return list(FastLoader(PackedDataset(path, **data) if data else path, **given))


@pytest.mark.parametrize("window", [None, 1])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_those_of_the_local_file(
    server: ObjectServer, folder: Path, tmp_path: Path, window: int | None, num_workers: int
) -> None:
    options: dict[str, Any] = {"shuffle_window": window, "num_workers": num_workers}
    ours = batches(f"{server.url}/part-0.parquet", cache_dir=tmp_path, **options)
    assert_same(ours, batches(folder / "part-0.parquet", **options))


def test_opening_fetches_no_images_and_an_epoch_every_byte_once(
    server: ObjectServer, folder: Path, tmp_path: Path, groups: RowGroups
) -> None:
    nbytes = (folder / "part-0.parquet").stat().st_size
    remote = RemoteOptions(cache_dir=tmp_path)
    with open_store(f"{server.url}/part-0.parquet", remote=remote) as store:
        assert (store.format, len(store)) == ("parquet", 30)
        assert store.labels is not None and store.labels.tolist() == list(range(30))
        opened = sum(asked.nbytes for asked in server.log)
    loader = FastLoader(
        PackedDataset(f"{server.url}/part-0.parquet", cache_dir=tmp_path),
        7,
        transform=TRANSFORM,
        seed=1,
    )
    for _ in range(2):
        assert sum(len(batch["image"]) for batch in loader) == 30
    fetched = sum(asked.nbytes for asked in server.log)
    assert opened < fetched <= nbytes
    assert groups.decoded == 3 + 3  # images and names of each row group
    assert loader.stats()["remote"] is not None


def test_a_server_that_fails_now_and_then_changes_nothing(
    server: ObjectServer, folder: Path, tmp_path: Path
) -> None:
    server.faults = Faults(unavailable=0.2, reset=0.2)
    ours = batches(f"{server.url}/part-1.parquet", cache_dir=tmp_path, num_workers=2)
    assert_same(ours, batches(folder / "part-1.parquet"))


def test_nothing_on_a_disk(server: ObjectServer, folder: Path, tmp_path: Path) -> None:
    url = f"{server.url}/part-0.parquet"
    ours = batches(url, disk_limit=0)
    assert_same(ours, batches(folder / "part-0.parquet"))


def test_errors_name_the_url(server: ObjectServer, folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "served"
    broken.mkdir()
    (broken / "x.parquet").write_bytes((folder / "part-0.parquet").read_bytes()[:-20])
    other = ObjectServer(broken)
    try:
        with pytest.raises(StoreError, match="expected a Parquet file") as caught:
            PackedDataset(f"{other.url}/x.parquet", cache_dir=tmp_path / "cache")
        assert caught.value.path == f"{other.url}/x.parquet"
    finally:
        other.close()


def test_patterns_and_folders_of_fsspec(folder: Path, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    for path in folder.iterdir():
        system.pipe(f"/bucket/data/{path.name}", path.read_bytes())
    try:
        local = batches(folder)
        for url in ("memory://bucket/data/*.parquet", "memory://bucket/data"):
            assert_same(batches(url, cache_dir=tmp_path / "cache"), local)
        pack("memory://bucket/data/part-1.parquet", tmp_path / "x.lmdb")
        packed = open_store(tmp_path / "x.lmdb")
        assert packed.labels is not None and packed.labels.tolist() == list(range(30, 60))
    finally:
        system.rm("/bucket", recursive=True)
