"""Every kind of URL against a server that runs on this machine: ``clouds.py`` says which."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import transforms as T

import clouds
from fastload import (
    FastLoader,
    PackedDataset,
    StoreError,
    StoreNotFoundError,
    info,
    open_store,
    pack,
    verify,
)
from fastload.storage import Store
from fastload.storage.remote.options import RemoteOptions

TRANSFORM = T.Compose([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.ToTensor()])
STORES = ["photos.lmdb", "dct.lmdb", "photos.parquet"]
# The ones that take seconds to start are tried by `make test-long`.
_SLOW = ("s3", "gs", "az")
CLOUDS = [pytest.param(n, marks=pytest.mark.long if n in _SLOW else ()) for n in clouds.NAMES]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stores that every cloud has. Read only."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    from bench import synthetic

    folder = tmp_path_factory.mktemp("local")
    images = synthetic.make_images(tmp_path_factory.mktemp("images"), 18, classes=3, seed=3)
    pack(images, folder / "photos.lmdb")
    pack(images, folder / "dct.lmdb", encode="dct")
    with open_store(folder / "photos.lmdb") as store:
        data, labels = store.read(np.arange(len(store))), store.labels
    table = pa.table({"image": data, "label": labels})
    pq.write_table(table, folder / "photos.parquet", row_group_size=5)
    for number in range(2):
        part = table.slice(9 * number, 9)
        pq.write_table(part, folder / f"part-{number}.parquet", row_group_size=5)
    return folder


@pytest.fixture(scope="module", params=CLOUDS)
def cloud(
    request: pytest.FixtureRequest, local: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[clouds.Cloud]:
    """A server that has ``local``."""
    with clouds.started(request.param, tmp_path_factory.mktemp(request.param)) as made:
        for path in sorted(local.iterdir()):
            made.put(path.name, path.read_bytes())
        yield made


def opened(cloud: clouds.Cloud, name: str, cache: Path, **options: Any) -> Store:
    given = {"storage_options": cloud.options, "cache_dir": cache, **options}
    return open_store(f"{cloud.url}/{name}", remote=RemoteOptions(**given))


@pytest.mark.parametrize("name", STORES)
def test_batches_are_those_of_the_local_store(
    cloud: clouds.Cloud, local: Path, tmp_path: Path, name: str
) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 1, "transform": TRANSFORM}
    url = f"{cloud.url}/{name}"
    ours = FastLoader(
        PackedDataset(url, storage_options=cloud.options, cache_dir=tmp_path), 5, **options
    )
    theirs = FastLoader(local / name, 5, **options)
    for _ in range(2):
        for one, other in zip(ours, theirs, strict=True):
            pairs = zip(one.values(), other.values()) if isinstance(one, dict) else zip(one, other)
            assert all(torch.equal(*pair) for pair in pairs)
    assert ours.stats()["remote"] is not None


@pytest.mark.long
def test_info_and_verify_find_it_by_the_environment(
    cloud: clouds.Cloud, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own, as these libraries read the environment when they are imported."""
    environment = {**os.environ, **cloud.environment(), "XDG_CACHE_HOME": str(tmp_path)}
    url = f"{cloud.url}/photos.lmdb"
    program = (
        "import json, sys; from fastload import info, verify; url = sys.argv[1]; "
        "print(json.dumps([info(url).records, verify(url, decode=True).damaged]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, url], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    records, damaged = json.loads(done.stdout)
    assert (records, damaged) == (info(local / "photos.lmdb").records, [])
    assert verify(local / "photos.lmdb").damaged == ()


def test_patterns_and_folders_are_one_store(
    cloud: clouds.Cloud, local: Path, tmp_path: Path
) -> None:
    if not cloud.lists:
        with pytest.raises(StoreError, match="in braces"):
            opened(cloud, "part-*.parquet", tmp_path)
    name = "part-*.parquet" if cloud.lists else "part-{0..1}.parquet"
    with opened(cloud, name, tmp_path) as found, open_store(local / "photos.parquet") as one:
        everything = np.arange(len(one))
        assert found.read(everything) == one.read(everything)
        assert np.array_equal(found.labels, one.labels)  # type: ignore[arg-type]


def test_what_was_replaced_is_an_error_that_names_it_or_stays_as_it_was(
    cloud: clouds.Cloud, local: Path, tmp_path: Path
) -> None:
    before = (local / "photos.lmdb").read_bytes()
    cloud.put("changing.lmdb", before)
    with opened(cloud, "changing.lmdb", tmp_path) as store:
        cloud.put("changing.lmdb", (local / "dct.lmdb").read_bytes())
        everything = np.arange(len(store))
        with open_store(local / "photos.lmdb") as first:
            expected = first.read(everything)
        if cloud.refuses_changed:
            with pytest.raises(StoreError, match="replaced since it was opened") as caught:
                store.read(everything)
            assert caught.value.path == f"{cloud.url}/changing.lmdb"
        elif isinstance(cloud, clouds.Hub):
            assert store.read(everything) == expected
    if cloud.refuses_changed or isinstance(cloud, clouds.Hub):
        with opened(cloud, "changing.lmdb", tmp_path) as store:
            assert store.metadata["encode"] == "dct"


def test_wrong_credentials_are_an_error_in_words_without_the_secret(
    cloud: clouds.Cloud, tmp_path: Path
) -> None:
    begin = time.monotonic()
    url = cloud.wrong_url or cloud.url
    options = RemoteOptions(storage_options=cloud.wrong, cache_dir=tmp_path)
    with cloud.strict(), pytest.raises((StoreError, ValueError)) as caught:
        open_store(f"{url}/photos.lmdb", remote=options)
    said = str(caught.value)
    assert "credentials" in said or "storage_options" in said, said
    assert f"{cloud.url.rpartition('@')[2].split('/')[0]}" in said
    one: BaseException | None = caught.value
    while one is not None:  # as a traceback shows them
        assert cloud.secret not in str(one)
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    assert time.monotonic() - begin < 5, "it was tried again and again"


def test_what_is_not_there_is_not_found(cloud: clouds.Cloud, tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match="nothing") as caught:
        opened(cloud, "absent.lmdb", tmp_path)
    assert str(caught.value.path).endswith("/some/folder/absent.lmdb") or isinstance(
        cloud, clouds.Hub
    )


# --- the Hub --------------------------------------------------------------------------------------


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Any]:
    with clouds.started("hf", tmp_path) as made:
        yield made


def test_a_pickled_store_reads_the_commit_that_was_opened(
    hub: Any, local: Path, tmp_path: Path
) -> None:
    import pickle

    data = (local / "photos.lmdb").read_bytes()
    hub.put("a.lmdb", data)
    with opened(hub, "a.lmdb", tmp_path / "cache") as store:
        kept = pickle.dumps(store)
    hub.put("a.lmdb", (local / "dct.lmdb").read_bytes())
    with pickle.loads(kept) as store, open_store(local / "photos.lmdb") as first:
        everything = np.arange(len(first))
        assert store.read(everything) == first.read(everything)


def test_a_repository_that_is_not_there_is_said_to_need_a_token_perhaps(
    hub: Any, tmp_path: Path
) -> None:
    options = RemoteOptions(storage_options=hub.options, cache_dir=tmp_path)
    with pytest.raises(StoreError, match=r"no such repository.*needs a token"):
        open_store("hf://datasets/owner/absent/a.lmdb", remote=options)


def test_a_commit_that_leaves_a_file_as_it_was_fetches_none_of_it_again(
    hub: Any, local: Path, tmp_path: Path
) -> None:
    hub.put("a.lmdb", (local / "photos.lmdb").read_bytes())
    everything = np.arange(18)
    with opened(hub, "a.lmdb", tmp_path) as store:
        store.read(everything)
    hub.put("README.md", b"another commit")
    with opened(hub, "a.lmdb", tmp_path) as store:
        store.read(everything)
        assert store.fetched()["nbytes"] == 0  # type: ignore[index]
