"""The block cache: exact whatever happens to its files and processes, and within its limit."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from fastload import FastloadError, StoreError, UsageError
from fastload.storage import Record, Store, open_store, open_writer
from fastload.storage.remote.area import DiskArea
from fastload.storage.remote.blocks import CELL
from fastload.storage.remote.content import contents
from fastload.storage.remote.options import RemoteOptions
from object_server import Faults, ObjectServer
from storage.test_mutations import mutated

Opener = Callable[..., Store]
RECORDS, SIDE = 240, 64  # 12 KB each, 4 MB with LMDB's pages


@pytest.fixture(scope="module")
def many_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores of records that are much larger than a cell and much smaller than the store."""
    folder = tmp_path_factory.mktemp("many")
    stores = (("many.lmdb", RECORDS), ("other.lmdb", RECORDS), ("few.pth", 60))
    for seed, (name, count) in enumerate(stores):
        pixels = np.random.default_rng(seed).integers(0, 256, (count, SIDE, SIDE, 3), np.uint8)
        with open_writer(folder / name, classes=["one"]) as writer:
            writer.append(
                [
                    Record(data=one.tobytes(), label=0, key=str(i), width=SIDE, height=SIDE, kind=1)
                    for i, one in enumerate(pixels)
                ]
            )
    return folder


@pytest.fixture
def many(many_folder: Path) -> Iterator[ObjectServer]:
    server = ObjectServer(many_folder)
    yield server
    server.close()


# A process of its own: waits for a line on stdin or its end, reads all records in its own order,
# compares them, and prints its counters.
READER = """
import json, sys, numpy as np
from fastload.storage import open_store
from fastload.storage.remote.options import RemoteOptions
url, cache, limit, local, seed = sys.argv[1:]
limit = None if limit == "none" else limit
store = open_store(url, remote=RemoteOptions(cache_dir=cache, disk_limit=limit))
print("open", flush=True)
sys.stdin.readline()
with open_store(local) as expected:
    for part in np.array_split(np.random.default_rng(int(seed)).permutation(len(store)), 40):
        assert store.read(part) == expected.read(part)
        print("read", flush=True)
print(json.dumps(store.fetched()))
"""


def start(
    server: ObjectServer,
    cache: Path,
    seed: int = 0,
    limit: str = "none",
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[str]:
    local = str(server.folder / "many.lmdb")
    command = [sys.executable, "-c", READER, f"{server.url}/many.lmdb", str(cache), limit, local]
    return subprocess.Popen([*command, str(seed)], stdin=stdin, stdout=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> dict[str, float]:
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    counters: dict[str, float] = json.loads(out.splitlines()[-1])
    return counters


def read_all(store: Store, server: ObjectServer, seed: int = 0, name: str = "many.lmdb") -> None:
    with open_store(server.folder / name) as local:
        for part in np.array_split(np.random.default_rng(seed).permutation(RECORDS), 20):
            assert store.read(part) == local.read(part)


def on_disk(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if not path.is_symlink())


def remote(
    server: ObjectServer, cache: Path, limit: str | int | None = None, name: str = "many.lmdb"
) -> Store:
    options = RemoteOptions(cache_dir=cache, disk_limit=limit)
    return open_store(f"{server.url}/{name}", remote=options)


def again(server: ObjectServer, cache: Path) -> dict[str, float]:
    """Open the store, read all of it, and close it."""
    with remote(server, cache) as store:
        read_all(store, server)
        counters = store.fetched()
    assert counters is not None
    return dict(counters)


def data_file(cache: Path) -> Path:
    (found,) = cache.glob("objects/*/data")
    return found


def test_two_processes_at_once_fetch_no_byte_twice(many: ObjectServer, cache: Path) -> None:
    both = [start(many, cache, seed, stdin=subprocess.PIPE) for seed in range(2)]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
    many.faults = Faults(latency_s=0.03)  # so that they meet
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    counters = [finished(process) for process in both]
    ranges = sorted((one.start, one.stop) for one in many.gets())
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ranges))
    assert min(one["nbytes"] for one in counters) > 0, "both have fetched a part"


@pytest.mark.parametrize("kills", [pytest.param(3), pytest.param(30, marks=pytest.mark.long)])
def test_a_killed_process_leaves_an_exact_cache(
    many: ObjectServer, cache: Path, kills: int
) -> None:
    many.faults = Faults(latency_s=0.002)
    random = np.random.default_rng(0)
    for number in range(kills):
        limit = ["none", "2MB"][number % 2]
        process = start(many, cache, seed=number, limit=limit)
        assert process.stdout is not None
        for _ in range(int(random.integers(1, 30))):
            process.stdout.readline()
        time.sleep(random.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    store = remote(many, cache)
    read_all(store, many)
    assert store.fetched()["damaged"] == 0, "what is marked as there is there"
    store.close()
    size = (many.folder / "many.lmdb").stat().st_size
    assert on_disk(cache) < 1.1 * size


def test_claims_of_a_killed_process_are_taken_over(many: ObjectServer, cache: Path) -> None:
    many.faults = Faults(stall=1.0, stall_s=600)
    process = start(many, cache)
    while not many.log:
        time.sleep(0.01)
    time.sleep(0.3)
    process.kill()
    process.communicate()
    many.faults = Faults()
    store = remote(many, cache)
    read_all(store, many)
    store.close()


def test_damaged_pieces_are_fetched_again(many: ObjectServer, cache: Path) -> None:
    again(many, cache)
    with open(data_file(cache), "r+b") as file:
        for cell in (100, 101, 700):
            file.seek(cell * CELL + 17)
            file.write(b"damaged")
    with many.asked() as asked:
        counters = again(many, cache)
    assert counters["damaged"] == 3
    assert sum(one.nbytes for one in asked) == 3 * CELL


@pytest.mark.parametrize("what", ["data", "short index", "bad index"])
def test_wiped_and_damaged_files_are_made_again(many: ObjectServer, cache: Path, what: str) -> None:
    again(many, cache)
    folder = data_file(cache).parent
    if what == "short index":
        os.truncate(folder / "index", 5000)
    elif what == "bad index":
        (folder / "index").write_bytes(b"x" * (folder / "index").stat().st_size)
    else:
        (folder / what).unlink()
    again(many, cache)
    shutil.rmtree(cache)
    again(many, cache)


def test_any_change_of_the_cache_s_files_is_repaired_or_an_error_of_ours(
    many: ObjectServer, cache: Path, tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    """Never other records, and never more memory or time because of a number in a file."""
    again(many, cache)
    files = [one for one in sorted(cache.rglob("*")) if one.is_file() and not one.is_symlink()]
    whole = {one: one.read_bytes() for one in files}
    repaired = 0
    for seed in range(count(24, 1000)):
        chance = random.Random(seed)
        for one in [*cache.rglob("*")]:
            if one.is_file() and not one.is_symlink() and one not in whole:
                one.unlink()
        for one, data in whole.items():
            one.parent.mkdir(parents=True, exist_ok=True)
            one.write_bytes(data)
        target = chance.choice(files)
        target.write_bytes(mutated(whole[target], chance))
        try:
            again(many, cache)
            contents(str(cache))
            repaired += 1
        except FastloadError as error:
            assert str(cache) in str(error) or many.url in str(error), error
        assert on_disk(cache) < 4 * sum(map(len, whole.values())) + (1 << 20)
    assert repaired > 12


@pytest.mark.parametrize("used", [2**64 - 1, 2**63, 2**40])
def test_a_wrong_sum_of_what_is_used_is_counted_anew(
    many: ObjectServer, cache: Path, used: int
) -> None:
    again(many, cache)
    with open(cache / "fastload.lock", "r+b") as file:
        file.seek(8)
        file.write(used.to_bytes(8, "little"))
    with open(data_file(cache).parent / "index", "r+b") as file:
        file.seek(4096)
        file.write(bytes(100))  # so that there is something to fetch
    again(many, cache)
    with open(cache / "fastload.lock", "rb") as file:
        assert int.from_bytes(file.read(16)[8:], "little") < 2 * on_disk(cache)


def test_files_deleted_while_in_use_are_made_and_fetched_again(
    many: ObjectServer, cache: Path
) -> None:
    store = remote(many, cache)
    store.read(np.arange(3))
    shutil.rmtree(cache)
    read_all(store, many)
    assert data_file(cache).stat().st_blocks > 0
    store.close()


def test_a_full_disk_is_an_error_and_nothing_worse(many: ObjectServer, cache: Path) -> None:
    size = (many.folder / "many.lmdb").stat().st_size
    # A file may not be written beyond this: what a full disk is to a process, but for the errno.
    code = f"""
import resource, sys
from fastload import StoreError
resource.setrlimit(resource.RLIMIT_FSIZE, ({size // 2}, resource.RLIM_INFINITY))
import numpy as np
from fastload.storage import open_store
from fastload.storage.remote.options import RemoteOptions
try:
    open_store(sys.argv[1], remote=RemoteOptions(cache_dir=sys.argv[2])).read(np.arange({RECORDS}))
except StoreError as error:
    assert "cache cannot be" in str(error), error
    sys.exit(7)
"""
    command = [sys.executable, "-c", code, f"{many.url}/many.lmdb", str(cache)]
    assert subprocess.run(command, timeout=60).returncode == 7
    store = remote(many, cache)
    read_all(store, many)
    store.close()


@pytest.mark.parametrize("most", [0, 100, 4096, 5000])
def test_a_disk_without_room_for_the_lock_itself_is_an_error_too(
    many: ObjectServer, cache: Path, most: int
) -> None:
    code = f"""
import resource, sys
from fastload import FastloadError
from fastload.storage import open_store
from fastload.storage.remote.options import RemoteOptions
resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, resource.RLIM_INFINITY))
try:
    open_store(sys.argv[1], remote=RemoteOptions(cache_dir=sys.argv[2]))
except FastloadError as error:
    assert "free some of the disk" in str(error), error
    sys.exit(7)
"""
    command = [sys.executable, "-c", code, f"{many.url}/many.lmdb", str(cache)]
    assert subprocess.run(command, timeout=60).returncode == 7
    again(many, cache)


def test_a_full_small_disk_makes_room_or_is_an_error(many: ObjectServer, tmp_path: Path) -> None:
    mounted = tmp_path / "small"
    mounted.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(mounted)], capture_output=True
    )
    if made.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        store = remote(many, mounted / "cache", "1GB")
        read_all(store, many)
        store.close()
    finally:
        subprocess.run(["umount", "-l", str(mounted)], check=True)


@pytest.mark.parametrize("limit", ["1.5MB", "3MB"])
def test_the_disk_holds_no_more_than_the_limit(many: ObjectServer, cache: Path, limit: str) -> None:
    most = int(float(limit[:-2]) * 1e6)
    store = remote(many, cache, limit)
    with open_store(many.folder / "many.lmdb") as local:
        for part in np.array_split(np.random.default_rng(0).permutation(RECORDS), 40):
            assert store.read(part) == local.read(part)
            assert on_disk(cache) < most + (64 << 10)  # links, folders and the lock
    store.close()


def test_memory_alone_writes_nothing_to_a_disk(many: ObjectServer, cache: Path) -> None:
    store = remote(many, cache, 0)
    read_all(store, many)
    assert not cache.exists()
    store.close()


def test_other_stores_that_nobody_uses_are_evicted_first(
    many: ObjectServer, opened: Opener, cache: Path
) -> None:
    other = opened("photos.lmdb", disk_limit="5MB")
    other.read(np.arange(len(other)))
    other.close()
    store = remote(many, cache, "5MB")
    read_all(store, many)
    with many.asked() as asked:
        read_all(store, many, seed=1)
    assert sum(one.nbytes for one in asked) == 0
    assert len(list(cache.glob("objects/*"))) == 1
    store.close()


# A process of its own: reads all records and needs the first ones, until its stdin ends; then it
# reads all of them once more.
NEEDING = """
import sys, numpy as np
from fastload.storage import open_store
from fastload.storage.remote.options import RemoteOptions
url, cache, limit, local, needed = sys.argv[1:]
store = open_store(url, remote=RemoteOptions(cache_dir=cache, disk_limit=limit))
with open_store(local) as expected:
    for end in (False, True):
        for part in np.array_split(np.arange(len(store)), 40):
            assert store.read(part) == expected.read(part)
        if not end:
            held = store.spans(np.arange(int(needed)))
            print("read", flush=True)
            sys.stdin.readline()
"""


@contextlib.contextmanager
def needing(server: ObjectServer, cache: Path, limit: str, needed: int) -> Iterator[None]:
    """While another process needs so many records of many.lmdb."""
    args = [f"{server.url}/many.lmdb", str(cache), limit, str(server.folder / "many.lmdb")]
    process = subprocess.Popen(
        [sys.executable, "-c", NEEDING, *args, str(needed)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None and process.stdout.readline() == "read\n"
        yield
    finally:
        process.communicate("\n", timeout=60)
    assert process.returncode == 0


def test_what_other_processes_only_keep_of_other_stores_makes_room(
    many: ObjectServer, cache: Path
) -> None:
    with needing(many, cache, "2MB", 10):
        with remote(many, cache, "2MB", "other.lmdb") as store:
            for seed in range(2):
                read_all(store, many, seed, "other.lmdb")
                assert 1_500_000 < on_disk(cache) < 2_000_000 + (64 << 10)
        kept = sorted(on_disk(data.parent) for data in cache.glob("objects/*/data"))
        assert kept[1] > 1_000_000, "no more than is needed is evicted"


def test_what_fits_alone_goes_on_in_memory_beside_others_though_its_groups_would_not_fit(
    many: ObjectServer, cache: Path
) -> None:
    apart = np.arange(0, RECORDS, 3)[:70]  # 1.8 MB in cells, 2.1 MB in groups
    with remote(many, cache, "2MB", "other.lmdb") as store:
        store.spans(apart)
    with needing(many, cache, "2MB", 10), remote(many, cache, "2MB", "other.lmdb") as store:
        with pytest.warns(UserWarning, match=r"other\.lmdb.* goes on in memory"):
            store.spans(apart)


def test_a_store_goes_on_in_memory_where_other_processes_need_all_of_the_limit(
    many: ObjectServer, cache: Path
) -> None:
    store = remote(many, cache, "2MB", "other.lmdb")
    with needing(many, cache, "2MB", 30):  # and what it reads to open the store, as the other one
        with pytest.warns(UserWarning, match=r"other\.lmdb.* goes on in memory"):
            spans = store.spans(np.arange(40))
        read_all(store, many, 0, "other.lmdb")
        del spans
        store.close()
        with pytest.warns(UserWarning, match=r"other\.lmdb.* goes on in memory"):
            store = remote(many, cache, "1.6MB", "other.lmdb")
        read_all(store, many, 1, "other.lmdb")
        store.close()
        with (
            pytest.warns(UserWarning, match=r"few\.pth.* goes on in memory"),
            pytest.raises(StoreError, match=r"few\.pth.* other processes need all of it: give"),
        ):
            remote(many, cache, "1.6MB", "few.pth")
        assert on_disk(cache) < 2_000_000 + (64 << 10)


def test_a_fork_uses_what_is_cached_and_says_why_it_can_fetch_nothing(
    many: ObjectServer, cache: Path
) -> None:
    store = remote(many, cache)
    store.read(np.arange(50))
    child = os.fork()
    if not child:
        status = 1
        try:
            with open_store(many.folder / "many.lmdb") as local:
                assert store.read(np.arange(50)) == local.read(np.arange(50))
            try:
                store.read(np.arange(100, 110))
            except UsageError as error:
                assert "multiprocessing_context='forkserver'" in str(error)
                status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    read_all(store, many)
    store.close()


def test_a_folder_that_cannot_be_used_is_refused(
    many: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match=r"file': the folder of the cache cannot be used: File ex"):
        remote(many, tmp_path / "file")

    def no_locks(*arguments: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "lockf", no_locks)
        with pytest.raises(
            StoreError, match=r"cannot be used: No locks .*another folder \(cache_d"
        ):
            remote(many, tmp_path / "cache")
    with pytest.raises(UsageError, match="disk_limit: expected bytes"):
        RemoteOptions(disk_limit="much")
    for wrong in ("", "s3://bucket/cache", "a\0b", 3, b"cache"):
        with pytest.raises(UsageError, match="cache_dir: expected a local folder, got"):
            RemoteOptions(cache_dir=wrong)  # type: ignore[arg-type]


def test_a_store_that_is_collected_while_another_one_opens_closes_no_cache_of_it(
    server: ObjectServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(area: DiskArea) -> bool:
        monkeypatch.undo()
        gone.clear()
        gc.collect()  # as it may begin at any allocation
        return area.lost

    gone = [remote(server, cache, name="photos.lmdb")]
    monkeypatch.setattr(DiskArea, "lost", property(lost))
    with remote(server, cache, name="photos.lmdb") as store:
        assert not gone
        assert len(store.read(np.arange(len(store)))) == len(store)


def test_who_changes_a_cache_waits_for_other_processes_that_do(cache: Path) -> None:
    area = DiskArea(str(cache), None)
    child = os.fork()
    if not child:
        try:
            with open(cache / "fastload.lock", "r+b") as lock:
                fcntl.lockf(lock, fcntl.LOCK_EX, 1, 0)
                (cache / "held").touch()
                time.sleep(0.5)
                (cache / "freed").touch()
        finally:
            os._exit(0)
    while not (cache / "held").exists():
        time.sleep(0.01)
    with area.mutex():
        assert (cache / "freed").exists()
        area.close()
    os.waitpid(child, 0)


def test_a_wrong_sum_of_what_a_cache_holds_is_counted_anew(many: ObjectServer, cache: Path) -> None:
    with remote(many, cache, "5MB") as store:
        with open(cache / "fastload.lock", "r+b") as lock:
            lock.seek(8)
            lock.write((1 << 40).to_bytes(8, "little"))
        read_all(store, many)
