"""The memory file of a cache: the table in it and its rules."""

from __future__ import annotations

import fcntl
import itertools
import multiprocessing
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastload import _native
from fastload._base.machine import cgroup, memory
from fastload._engine.cache.memory_file import create, fits

RECORDS = 50


pytestmark = pytest.mark.native


@pytest.fixture
def make() -> Iterator[Any]:
    """Arenas of 64 KiB or as given."""
    opened: list[int] = []

    def arena(nbytes: int = 1 << 16) -> Any:
        opened.append(create(RECORDS, nbytes))
        return _native.required().Arena(opened[-1], lock=False)

    arena.fds = opened  # type: ignore[attr-defined]
    yield arena
    for fd in opened:
        os.close(fd)


def find(arena: Any, records: list[int]) -> list[dict[str, Any]]:
    n = len(records)
    columns = {
        "offset": np.empty(n, np.int64),
        "nbytes": np.empty(n, np.int64),
        "kind": np.empty(n, np.uint8),
        "size": np.empty((n, 2), np.int32),
        "converted": np.empty(n, np.uint8),
    }
    found = arena.find(np.array(records, np.int64), **columns)
    assert found == (columns["offset"] >= 0).sum()
    return [{name: column[i].tolist() for name, column in columns.items()} for i in range(n)]


def test_what_was_put_is_found(make: Any) -> None:
    arena = make()
    assert find(arena, [0, 7])[1]["offset"] == -1
    assert arena.put(7, b"seven", 2, 640, 480, True)
    assert arena.put(0, b"zero", 0, 65535, 1, False)
    zero, seven, missing = find(arena, [0, 7, 8])
    assert (seven["nbytes"], seven["kind"], seven["converted"]) == (5, 2, 1)
    assert (seven["size"], zero["size"]) == ([640, 480], [65535, 1])
    assert (zero["kind"], zero["converted"], missing["offset"]) == (0, 0, -1)
    assert os.pread(make.fds[-1], 5, seven["offset"]) == b"seven"
    assert os.pread(make.fds[-1], 4, zero["offset"]) == b"zero"
    assert (arena.count, arena.used, arena.full) == (2, 128, False)


def test_a_record_is_kept_once(make: Any) -> None:
    arena = make()
    assert arena.put(3, b"first", 0, 1, 1, False)
    assert not arena.put(3, b"other", 0, 1, 1, False)
    assert os.pread(make.fds[-1], 5, find(arena, [3])[0]["offset"]) == b"first"
    assert arena.count == 1


def test_a_full_one_keeps_what_it_has_and_takes_no_more(make: Any) -> None:
    arena = make(4096 * 4)
    taken = [arena.put(record, bytes(3000), 0, 1, 1, False) for record in range(RECORDS)]
    assert taken == [True] * 2 + [False] * (RECORDS - 2)
    assert arena.full
    assert not arena.put(40, b"small", 0, 1, 1, False)
    kept = [entry["offset"] >= 0 for entry in find(arena, [0, 1, 2, 40])]
    assert kept == [True, True, False, False]
    assert os.fstat(make.fds[-1]).st_size == 4096 * 4


def test_one_without_room_is_full_from_the_beginning(make: Any) -> None:
    arena = make(10)
    assert arena.full
    assert not arena.put(0, b"", 0, 1, 1, False)


def test_threads_fill_it_together(make: Any) -> None:
    arena, taken = make(1 << 20), np.zeros((4, RECORDS), bool)

    def work(number: int) -> None:
        for record in range(RECORDS):
            data = bytes([record]) * (100 + 7 * record)
            taken[number, record] = arena.put(record, data, 0, record + 1, 2, False)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert taken.sum(axis=0).tolist() == [1] * RECORDS
    check(arena, make.fds[-1])


def test_forked_processes_fill_it_together(make: Any) -> None:
    arena = make(1 << 20)

    def work() -> None:
        for record in range(RECORDS):
            arena.put(record, bytes([record]) * (100 + 7 * record), 0, record + 1, 2, False)

    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    check(arena, make.fds[-1])


def check(arena: Any, fd: int) -> None:
    """That every record is kept whole, and none lies over another."""
    assert arena.count == RECORDS
    places = []
    for record, entry in enumerate(find(arena, list(range(RECORDS)))):
        assert os.pread(fd, entry["nbytes"], entry["offset"]) == bytes([record]) * (
            100 + 7 * record
        )
        assert entry["size"] == [record + 1, 2]
        places.append((entry["offset"], entry["offset"] + entry["nbytes"]))
    places.sort()
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(places))


def test_memory_is_taken_when_it_is_written() -> None:
    fd = create(1_000_000, 1 << 40)
    try:
        assert os.fstat(fd).st_blocks * 512 <= 8192
        assert fits(fd, 1_000_000)
        assert not fits(fd, 999_999)
        for length in (0, 1 << 41):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, length)
        assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    finally:
        os.close(fd)


def test_a_header_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    core = _native.load()
    path = tmp_path / "file"
    for content in (b"", bytes(4096), b"FLARENA1" + b"\xff" * 24 + bytes(8160)):
        path.write_bytes(content)
        with open(path, "r+b") as file, pytest.raises(RuntimeError, match="expected"):
            core.Arena(file.fileno(), lock=False)  # type: ignore[union-attr]


def test_the_core_checks_what_it_is_to_keep() -> None:
    core: Any = _native.load()
    fd = create(RECORDS, 1 << 16)
    arena = core.Arena(fd, lock=True)
    os.close(fd)
    records, wanted = np.arange(2), np.ones(2, np.uint8)
    two, four = np.ones((2, 2), np.int32), np.ones((2, 4), np.int32)
    four[:, :2] = 0
    core.CacheFill(arena, 2, records, wanted, (two, four, two, four))
    for arguments, error in [
        ((arena, 3, records, wanted), ValueError),
        ((arena, 2, records, wanted), ValueError),
        ((arena, 0, records, wanted, (two, four, two, four)), ValueError),
        ((arena, 0, records, np.ones(3, np.uint8)), ValueError),
        ((arena, 2, records, wanted, (two, four + 1, two, four)), ValueError),
        ((arena, 2, records, wanted, (two, four, two * 0, four)), ValueError),
        ((arena, 2, records, wanted, (two, four, two, four - (1 << 25))), ValueError),
        ((None, 0, records, wanted), TypeError),
    ]:
        with pytest.raises(error):
            core.CacheFill(*arguments)
    for record in (-1, RECORDS):  # nowhere in the table
        assert not arena.put(record, b"x", 0, 1, 1, False)
        assert arena.find(
            np.array([record]), np.empty(1, np.int64), np.empty(1, np.int64), np.empty(1, np.uint8),
            np.empty((1, 2), np.int32), np.empty(1, np.uint8),
        ) == 0  # fmt: skip
    with pytest.raises(ValueError, match="kind"):
        arena.put(0, b"x", 4, 1, 1, False)


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_available_memory_is_the_machines_or_the_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable:    8000 kB\n")
    root, membership = tmp_path / "cgroup", tmp_path / "membership"
    membership.write_text("0::/job/step\n4:cpu,memory:/other\n")
    monkeypatch.setattr(memory, "_MEMINFO", meminfo)
    monkeypatch.setattr(cgroup, "ROOT", root)
    monkeypatch.setattr(cgroup, "MEMBERSHIP", membership)
    assert memory.available() == 8000 * 1024
    group(
        root / "job", memory__max="5000", memory__current="3000",
        memory__stat="anon 100\ninactive_file 400\nactive_file 100\n",
    )  # fmt: skip
    group(root / "job" / "step", memory__max="max", memory__current="1")
    assert memory.available() == 2500
    group(
        root / "memory" / "other", memory__limit_in_bytes="2000", memory__usage_in_bytes="1500",
        memory__stat="total_inactive_file 10\ntotal_active_file 20\n",
    )  # fmt: skip
    assert memory.available() == 530
    group(root / "memory" / "other", memory__limit_in_bytes=str(2**63 - 4096))
    assert memory.available() == 2500
    group(root / "job", memory__current="9000")
    assert memory.available() == 0
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "none")
    monkeypatch.setattr(cgroup, "ROOT", tmp_path / "none")
    assert memory.available() == 0
