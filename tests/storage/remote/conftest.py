"""Servers of stores, and a cache of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("obstore", reason="obstore is not installed")

from fastload import pack
from fastload.storage import Store, open_store
from fastload.storage.remote.options import RemoteOptions
from object_server import ObjectServer

Opener = Callable[..., Store]


@pytest.fixture(scope="session")
def remote_folder(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``photos`` packed into every format that says which ranges it reads. Read only."""
    folder = tmp_path_factory.mktemp("remote")
    for suffix in ("lmdb", "tfrecord", "rec", "tar"):
        pack(photos, folder / f"photos.{suffix}")
    pack(photos, folder / "shards.tfrecord", shards=3)
    pack(photos, folder / "raw.h5", encode="raw", resize="40x40")
    pack(photos, folder / "raw.pth", encode="raw", resize="40x40")
    return folder


@pytest.fixture
def server(remote_folder: Path) -> Iterator[ObjectServer]:
    made = ObjectServer(remote_folder)
    yield made
    made.close()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def opened(server: ObjectServer, cache: Path) -> Iterator[Opener]:
    """Opens a store of the server."""
    stores = []

    def make(name: str, **options: object) -> Store:
        given = {"cache_dir": cache, **options}
        store = open_store(f"{server.url}/{name}", remote=RemoteOptions(**given))  # type: ignore[arg-type]
        stores.append(store)
        return store

    yield make
    for store in stores:
        store.close()
