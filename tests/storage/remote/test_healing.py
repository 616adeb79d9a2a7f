"""Whatever is found wrong in a cache is dropped and fetched again once, before it is an error."""

from __future__ import annotations

import concurrent.futures
import ctypes
import gc
import os
import shutil
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastload._run.fetch_ahead as fetch_ahead_module
import fastload.storage._read as read_module
import fastload.storage.remote.store as store_module
from combinations import combinations
from fastload import FastLoader, FastloadError, PackedDataset, StoreError
from fastload.errors import ChecksumError
from fastload.storage import Store, open_store
from fastload.storage.remote.area import DiskArea
from fastload.storage.remote.blocks import CELL
from fastload.storage.remote.cache import BlockCache, Crowded
from fastload.storage.remote.content import clear, contents
from fastload.storage.remote.options import RemoteOptions
from object_server import Faults, ObjectServer
from sides import assert_same

Opener = Callable[..., Store]

FILES = [
    "fastload.lock",
    "objects",
    "objects/*",
    "objects/*/data",
    "objects/*/index",
    "objects/*/about.json",
    "objects/*/pins-*",
    "mirrors",
    "mirrors/*",
    "mirrors/*/*",
]


def deleted(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        gone = _place() / "gone"
        path.rename(gone)  # at once: a loader that runs makes files in it
        shutil.rmtree(gone)
    else:
        path.unlink()


def truncated(path: Path) -> None:
    if path.is_dir() or path.is_symlink():
        (other := _place() / "empty").write_bytes(b"")
        exchanged(path, other)
    else:
        os.truncate(path, 100)


def garbage(path: Path) -> None:
    """Of the same size, as another file: what is mapped stays as it is."""
    nbytes = path.stat().st_size if path.is_file() else 5000
    (other := _place() / "garbage").write_bytes(np.random.default_rng(0).bytes(nbytes))
    exchanged(path, other)


def folder(path: Path) -> None:
    (other := _place() / "folder").mkdir()
    (other / "somebody's").write_bytes(b"else")
    exchanged(path, other)


def link(path: Path) -> None:
    (other := _place() / "link").symlink_to(THESIS)
    exchanged(path, other)


def linked_folder(path: Path) -> None:
    (other := _place() / "link").symlink_to(THESES)
    exchanged(path, other)


def exchanged(path: Path, other: Path) -> None:
    """Put ``other`` in the place of ``path`` at once: a running loader makes anew what is gone."""
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(here, os.fsencode(path), here, os.fsencode(other), exchange):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    deleted(other)


def _place() -> Path:
    return Path(tempfile.mkdtemp(dir=THESES.parent))


THESIS, THESES = Path("thesis.tex"), Path("theses")
"""Replaced by a place of the test's own, see ``theses``."""


@pytest.fixture(autouse=True)
def theses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What links lead to: nobody writes to it."""
    place = tmp_path / "theses"
    place.mkdir()
    text = b"text " * 2000
    for name in ("thesis.tex", "data", "index", "lock"):
        (place / name).write_bytes(text)
    monkeypatch.setitem(globals(), "THESIS", place / "thesis.tex")
    monkeypatch.setitem(globals(), "THESES", place)
    yield
    assert sorted(path.name for path in place.iterdir()) == ["data", "index", "lock", "thesis.tex"]
    assert {path.read_bytes() for path in place.iterdir()} == {text}


def pipe(path: Path) -> None:
    """Who opens it for reading waits for ever, and who reads at a place of it gets an error."""
    os.mkfifo(other := _place() / "pipe")
    exchanged(path, other)


# In this order, in which `make test` has the folders replaced by links to others.
DAMAGES = [deleted, linked_folder, truncated, garbage, folder, link, pipe]


def damage(cache: Path, pattern: str, how: Callable[[Path], None]) -> None:
    found = sorted(cache.glob(pattern))
    assert found, "there is such a file"
    for path in found:
        how(path)


def loader(server: ObjectServer, cache: Path, name: str, **options: Any) -> FastLoader[Any]:
    dataset = PackedDataset(f"{server.url}/{name}", cache_dir=cache)
    return FastLoader(dataset, 2, num_workers=1, **options)


@pytest.fixture(scope="module")
def expected(remote_folder: Path) -> dict[str, list[Any]]:
    """The batches of the local files."""
    return {
        name: list(FastLoader(remote_folder / name, 2, num_workers=1, transform=_crop()))
        for name in ("photos.lmdb", "photos.tfrecord")
    }


def _crop() -> Any:
    from torchvision import transforms as T

    return T.Compose([T.CenterCrop(32), T.ToTensor()])


@pytest.mark.parametrize(("pattern", "how"), combinations(FILES, DAMAGES, rounds=3))
def test_a_cache_damaged_at_rest_heals(
    server: ObjectServer,
    cache: Path,
    expected: dict[str, list[Any]],
    pattern: str,
    how: Callable[[Path], None],
) -> None:
    name = "photos.lmdb"
    assert_same(list(loader(server, cache, name, transform=_crop())), expected[name])
    gc.collect()  # iterators end with their loaders: now nobody has the files open
    if "pins" in pattern:  # of a killed process
        for place in cache.glob("objects/*"):
            (place / "pins-7").write_bytes(b"\1" * 10)
    damage(cache, pattern, how)
    for _ in range(2):
        assert_same(list(loader(server, cache, name, transform=_crop())), expected[name])
    assert contents(str(cache))
    for _ in range(600):  # a request that is under way holds what it fetches for until it ends
        gc.collect()
        if clear(str(cache))[1] == 0:
            break
        time.sleep(0.1)
    assert not contents(str(cache))


@pytest.mark.parametrize(("pattern", "how"), combinations(FILES, DAMAGES, rounds=3))
@pytest.mark.parametrize(
    "name", ["photos.lmdb", pytest.param("photos.tfrecord", marks=pytest.mark.long)]
)
def test_a_cache_damaged_while_a_loader_runs_heals_or_is_an_error_that_says_how(
    server: ObjectServer,
    cache: Path,
    expected: dict[str, list[Any]],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    pattern: str,
    how: Callable[[Path], None],
) -> None:
    monkeypatch.setattr(fetch_ahead_module, "_WINDOW_NBYTES", 1)
    running = loader(server, cache, name, transform=_crop(), prefetch_factor=1)
    healed = True
    try:
        for epoch in range(2):
            batches = []
            for batch in running:
                batches.append(batch)
                if epoch == 0 and len(batches) == 2:
                    damage(cache, pattern, how)
            assert_same(batches, expected[name])
    except FastloadError as error:
        healed = False
        assert "fastload cache clear" in str(error), error
    # Labels are views of a file that was truncated, perhaps of zeros.
    assert healed or (how is truncated and pattern == "objects/*/data")
    assert_same(list(loader(server, cache, name, transform=_crop())), expected[name])


def test_strangers_in_the_cache_stay_and_do_not_end_eviction(
    server: ObjectServer, opened: Opener, cache: Path
) -> None:
    first = opened("photos.lmdb", disk_limit="5MB")
    first.read(np.arange(len(first)))
    first.close()
    (cache / "objects" / "notes.txt").write_text("mine")
    (cache / "objects" / "more").mkdir()
    (cache / "objects" / ("0" * 32)).write_text("has the name of an object")
    nbytes = sum(path.stat().st_size for path in server.folder.glob("photos.tar*"))
    second = opened("photos.tar", disk_limit=nbytes + (300 << 10))
    for index in range(len(second)):
        second.read(np.array([index]))
    assert len(list(cache.glob("objects/*/data"))) == 2, "the other store was evicted"
    second.close()
    clear(str(cache))
    assert sorted(path.name for path in (cache / "objects").iterdir()) == ["more", "notes.txt"]


@pytest.fixture
def flipped(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Call it: a bit flips in the next so many pieces of more than 20,000 bytes that come."""
    deliver = BlockCache._deliver
    left: list[int] = []

    def flip(self: BlockCache, fetch: Any, data: bytes | memoryview) -> None:
        if left and len(data) > 20_000:
            left.pop()
            data = bytearray(data)
            data[len(data) // 2] ^= 1
        deliver(self, fetch, data)

    monkeypatch.setattr(BlockCache, "_deliver", flip)

    def start(count: int) -> list[int]:
        left.extend(range(count))
        return left

    return start


@pytest.mark.parametrize("name", ["photos.lmdb", "photos.tfrecord"])
def test_a_bit_that_flips_in_transit_is_fetched_again(
    server: ObjectServer,
    cache: Path,
    expected: dict[str, list[Any]],
    flipped: Callable[[int], list[int]],
    name: str,
) -> None:
    running = loader(server, cache, name, transform=_crop())
    left = flipped(1)
    assert_same(list(running), expected[name])
    assert not left
    assert running.stats()["remote"]["damaged"] > 0
    assert_same(list(loader(server, cache, name, transform=_crop())), expected[name])


def test_a_bit_that_flips_again_is_an_error_that_says_what_to_do(
    server: ObjectServer,
    cache: Path,
    expected: dict[str, list[Any]],
    flipped: Callable[[int], list[int]],
) -> None:
    name = "photos.lmdb"
    running = loader(server, cache, name, transform=_crop())
    left = flipped(1000)
    with pytest.raises(ChecksumError, match=r"fetched again, to no avail.*fastload cache clear"):
        list(running)
    left.clear()
    assert_same(list(loader(server, cache, name, transform=_crop())), expected[name])


@pytest.mark.parametrize("name", ["photos.lmdb", "photos.tfrecord", "raw.h5"])
def test_what_opening_a_store_finds_damaged_is_fetched_again(
    server: ObjectServer, cache: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    deliver, seen = BlockCache._deliver, set[int]()

    def zeros_first(self: BlockCache, fetch: Any, data: bytes | memoryview) -> None:
        new = fetch.first not in seen
        seen.add(fetch.first)
        # The ends of the data are compared with its sidecar alone, see ``_sidecar.py``.
        told = name != "photos.tfrecord" or fetch.file.what.url.text.endswith(".fastload")
        deliver(self, fetch, bytes(len(data)) if new and told else data)

    monkeypatch.setattr(BlockCache, "_deliver", zeros_first)
    store = opened(name)
    monkeypatch.setattr(BlockCache, "_deliver", deliver)
    with open_store(server.folder / name) as local:
        assert np.array_equal(store.labels, local.labels)  # type: ignore[arg-type]


def test_what_is_no_store_is_fetched_twice_and_is_an_error(
    tmp_path: Path, cache: Path, remote_folder: Path
) -> None:
    damaged = tmp_path / "served"
    damaged.mkdir()
    data = bytearray((remote_folder / "photos.lmdb").read_bytes())
    data[: 3 * CELL] = bytes(3 * CELL)
    (damaged / "photos.lmdb").write_bytes(data)
    server = ObjectServer(damaged)
    try:
        with pytest.raises(StoreError, match=r"fetched again, to no avail.*fastload cache clear"):
            PackedDataset(f"{server.url}/photos.lmdb", cache_dir=cache)
    finally:
        server.close()


@pytest.mark.parametrize("name", ["objects", "mirrors"])
def test_a_folder_of_somebody_else_is_refused(server: ObjectServer, cache: Path, name: str) -> None:
    cache.mkdir()
    (cache / name).write_text("somebody's")
    with pytest.raises(StoreError, match=r"the cache cannot be used.*choose another folder"):
        loader(server, cache, "photos.lmdb")
    assert (cache / name).read_text() == "somebody's"


@pytest.mark.parametrize("slot", [2, 3, 200])
@pytest.mark.parametrize("running", [False, True])
def test_cells_that_are_claimed_and_that_nobody_fetches_are_fetched(
    server: ObjectServer, cache: Path, opened: Opener, slot: int, running: bool
) -> None:
    """As after a power failure. Processes 2 and 3 live; one of them is this one."""
    store = opened("photos.lmdb")
    everything = np.arange(len(store))
    with open_store(server.folder / "photos.lmdb") as local:
        expected = local.read(everything)
    assert store.read(everything) == expected
    if not running:
        store.close()
    (index,) = cache.glob("objects/*/index")
    cells = -(-(server.folder / "photos.lmdb").stat().st_size // CELL)
    with open(index, "r+b") as file:
        file.seek(4096 + cells // 2)
        file.write(bytes([slot]) * 8)
    with open(index.parent / "data", "r+b") as file:
        file.seek(cells // 2 * CELL)
        file.write(bytes(8 * CELL))
    if not running:
        store = opened("photos.lmdb")
    assert store.read(everything) == expected


def test_a_claim_of_a_process_that_lives_and_does_not_fetch_is_taken_over(
    server: ObjectServer, cache: Path, opened: Opener
) -> None:
    store = opened("photos.lmdb")
    child = os.fork()
    if not child:  # has a number of its own, until it is killed
        try:
            area = DiskArea(str(cache), None)
            (cache / "other").write_text(str(area.slot))
            while True:
                signal.pause()
        finally:
            os._exit(1)
    try:
        while not (cache / "other").exists() or not (cache / "other").read_text():
            time.sleep(0.01)
        slot = int((cache / "other").read_text())
        (index,) = cache.glob("objects/*/index")
        with open(index, "r+b") as file:
            states = np.frombuffer(file.read(), np.uint8)[4096:].copy()
            absent = int(np.flatnonzero(states == 0)[0])
            file.seek(4096 + absent)
            file.write(bytes([slot]))
        everything = np.arange(len(store))
        with open_store(server.folder / "photos.lmdb") as local:
            assert store.read(everything) == local.read(everything)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("file", ["index", "data"])
def test_a_pipe_in_the_place_of_a_file_of_a_killed_process_ends_no_other_one(
    server: ObjectServer, cache: Path, opened: Opener, file: str
) -> None:
    opened("photos.lmdb").close()
    with open(cache / "fastload.lock", "r+b") as lock:  # number 9 was killed
        lock.seek(1024 + 9)
        lock.write(b"\1")
    damage(cache, f"objects/*/{file}", pipe)
    store = opened("photos.lmdb")
    with open_store(server.folder / "photos.lmdb") as local:
        everything = np.arange(len(store))
        assert store.read(everything) == local.read(everything)


@pytest.mark.parametrize("text", ["[]", "3", "{}", '{"url": 1, "nbytes": null}', "[" * 50_000])
def test_what_is_no_description_of_an_object_is_not_listed(
    server: ObjectServer, cache: Path, opened: Opener, text: str
) -> None:
    opened("photos.lmdb")
    (about,) = cache.glob("objects/*/about.json")
    about.write_text(text)
    assert contents(str(cache)) == []
    damage(cache, "objects/*/about.json", pipe)
    assert contents(str(cache)) == []


def test_a_loader_goes_on_after_its_lost_files_could_not_be_opened_again_at_once(
    server: ObjectServer,
    cache: Path,
    expected: dict[str, list[Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "photos.tfrecord"
    running = loader(server, cache, name, transform=_crop())
    assert_same(list(running), expected[name])
    damage(cache, "objects/*", deleted)

    def unreachable(*_: object) -> None:
        raise StoreError("the network is down")

    with monkeypatch.context() as patch:
        patch.setattr(store_module._Attached, "open", unreachable)
        with pytest.raises(StoreError, match="the network is down"):
            list(running)
    assert_same(list(running), expected[name])


def test_other_threads_wait_while_a_store_leaves_the_disk(
    server: ObjectServer, cache: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened("photos.lmdb")
    attach, began = store_module._Attached.open, threading.Event()

    def slow(self: Any, columns: Any) -> Store:
        began.set()
        time.sleep(0.3)
        return attach(self, columns)

    hold, crowded = BlockCache.hold, [Crowded("others need all of it")]

    def full(self: BlockCache, *args: Any, **kwargs: Any) -> Any:
        if crowded:
            raise crowded.pop()
        return hold(self, *args, **kwargs)

    monkeypatch.setattr(store_module._Attached, "open", slow)
    monkeypatch.setattr(BlockCache, "hold", full)
    with (
        open_store(server.folder / "photos.lmdb") as local,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        first = pool.submit(store.read, np.arange(3))
        assert began.wait(60)
        assert store.read(np.arange(3, 6)) == local.read(np.arange(3, 6))
        assert first.result() == local.read(np.arange(3))


def test_a_failing_network_is_not_asked_twice_as_often_for_a_damaged_store(
    server: ObjectServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastload.storage.remote.requests._ATTEMPTS", 2)
    options = RemoteOptions(cache_dir=cache)
    looked = Faults()
    open_store(f"{server.url}/photos.lmdb", remote=options).close()
    clear(str(cache))
    server.faults = looked
    calls = []
    attach = BlockCache.hold

    def hold(self: BlockCache, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        server.faults = Faults(unavailable=1.0)
        return attach(self, *args, **kwargs)

    monkeypatch.setattr(BlockCache, "hold", hold)
    with pytest.raises(StoreError, match="2 times in a row"):
        open_store(f"{server.url}/photos.lmdb", remote=options)
    assert len(calls) == 1


def test_records_are_never_read_from_files_made_anew_meanwhile(
    opened: Opener, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened("photos.tfrecord")
    everything = np.arange(len(store))
    expected = store.read(everything)
    original, exchanges = read_module.read_places, [0]

    def read_places(*args: Any, **named: Any) -> Any:
        if not exchanges[0]:
            exchanges[0] += 1
            shutil.rmtree(cache / "objects")
            opened("photos.tfrecord").keys(everything)  # another one makes them, with holes
        return original(*args, **named)

    monkeypatch.setattr(read_module, "read_places", read_places)
    assert store.read(everything) == expected
    assert exchanges == [1]


def test_labels_of_a_truncated_cache_are_never_zeros(server: ObjectServer, cache: Path) -> None:
    dataset = PackedDataset(f"{server.url}/photos.lmdb", _crop(), cache_dir=cache)
    running = FastLoader(dataset, 2, num_workers=1)
    list(running)
    damage(cache, "objects/*/data", truncated)
    with pytest.raises(StoreError, match=r"make a new loader.*fastload cache clear"):
        list(running)


def test_records_that_were_truncated_away_are_fetched_again_while_a_loader_runs(
    server: ObjectServer, cache: Path, expected: dict[str, list[Any]]
) -> None:
    name = "photos.tfrecord"  # its labels are in another file, the sidecar
    running = loader(server, cache, name, transform=_crop())
    list(running)
    for about in cache.glob("objects/*/about.json"):
        if ".fastload" not in about.read_text():
            truncated(about.parent / "data")
    for _ in range(2):
        assert_same(list(running), expected[name])
