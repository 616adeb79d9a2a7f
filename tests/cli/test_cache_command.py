"""``fastload cache``: what it shows and deletes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("obstore", reason="obstore is not installed")

from fastload.cli.cache import command
from fastload.storage import open_store
from fastload.storage.remote.options import RemoteOptions
from object_server import ObjectServer


@pytest.fixture
def server(store: Path) -> Iterator[ObjectServer]:
    made = ObjectServer(store.parent)
    yield made
    made.close()


def ran(*words: str) -> str:
    done = CliRunner().invoke(command, list(words))
    assert done.exit_code == 0, done.output
    return done.output


def test_info_lists_objects_and_clear_deletes_those_not_in_use(
    server: ObjectServer, store: Path, tmp_path: Path
) -> None:
    folder = str(tmp_path / "cache")
    assert "of 0 objects" in ran("info", "--cache-dir", folder)
    assert "0 objects deleted" in ran("clear", "--cache-dir", folder)
    assert not (tmp_path / "cache").exists(), "asking makes no folder"
    url = f"{server.url}/{store.name}"
    with open_store(url, remote=RemoteOptions(cache_dir=folder)):
        (found,) = json.loads(ran("info", "--cache-dir", folder, "--json"))["objects"]
        assert (found["url"], found["nbytes"]) == (url, store.stat().st_size)
        assert 0 < found["cached_nbytes"] < store.stat().st_size
        assert "1 objects are in use and were kept" in ran("clear", "--cache-dir", folder)
    cleared = json.loads(ran("clear", "--cache-dir", folder, "--json"))
    assert cleared == {"cache_dir": folder, "deleted": 1, "kept": 0}
    assert json.loads(ran("info", "--cache-dir", folder, "--json"))["objects"] == []
