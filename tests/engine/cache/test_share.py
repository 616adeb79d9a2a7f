"""cache="shm": processes of a user share one memory file, and nothing of it is ever left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fastload import FastLoader, PackedDataset
from fastload._engine.cache.memory_file import CacheFile, fingerprint, fits
from fastload.storage import open_store

pytestmark = [pytest.mark.timeout(90), pytest.mark.native]


def serve(commands: Any, store: Path) -> None:
    """Iterate over a store when told to; answer with the cache hits and a sum over the images."""
    loader = FastLoader(PackedDataset(store), batch_size=1, cache="shm", num_workers=2)
    while True:
        command = commands.recv()
        if command == "end":
            return
        if command == "raise":
            sys.stderr = open(os.devnull, "w")
            raise RuntimeError("as asked")
        # NumPy's sum: the OpenMP threads of torch do not survive a fork.
        digest = sum(int(images.numpy().sum()) for images, _ in loader)
        commands.send((loader.stats()["cache_hits"], digest))


class Peer:
    """A process that iterates over a store when it is told to. Forked: it need not import torch."""

    def __init__(self, store: Path) -> None:
        context = multiprocessing.get_context("fork")
        self._commands, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, store), daemon=True)
        self.process.start()
        theirs.close()

    def send(self, command: str) -> None:
        self._commands.send(command)

    def answer(self) -> tuple[int, int]:
        hits, digest = self._commands.recv()
        return hits, digest

    def epoch(self) -> tuple[int, int]:
        """Cache hits, and a sum over the images."""
        self.send("epoch")
        return self.answer()

    def end(self) -> None:
        if self.process.is_alive():
            self.send("end")
        self._wait()

    def kill(self) -> None:
        self.process.kill()
        self._wait()

    def _wait(self) -> None:
        self.process.join(60)
        self._commands.close()


@pytest.fixture
def start() -> Iterator[Callable[[Path], Peer]]:
    peers: list[Peer] = []

    def begin(store: Path) -> Peer:
        peers.append(Peer(store))
        return peers[-1]

    yield begin
    for peer in peers:
        peer.kill()


def names() -> list[str]:
    """What processes announce, and what lies in /dev/shm under our name."""
    with open("/proc/net/unix") as table:
        found = [line.split()[-1] for line in table if "@fastload-cache/" in line]
    return found + [name for name in os.listdir("/dev/shm") if "fastload" in name]


def nothing_left(store: Path) -> bool:
    """Whether nobody announces the store any more; other tests may run beside this one."""

    with open_store(store) as opened:
        name = fingerprint([opened], None)
    deadline = time.monotonic() + 100
    while any(name in entry for entry in names()):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return not any("fastload" in entry for entry in os.listdir("/dev/shm"))


def test_one_process_fills_and_another_finds_everything(
    store: Path, start: Callable[[Path], Peer]
) -> None:
    first, second = start(store), start(store)
    hits, digest = first.epoch()
    assert hits == 0
    assert second.epoch() == (24, digest)
    # The second continues without the first, and a third finds it there.
    first.end()
    third = start(store)
    assert third.epoch() == (24, digest)
    for peer in (second, third):
        peer.end()
        assert peer.process.exitcode == 0
    assert nothing_left(store)


def test_a_killed_process_leaves_nothing_behind_and_hurts_nobody(
    store: Path, start: Callable[[Path], Peer]
) -> None:
    first, second = start(store), start(store)
    _, digest = first.epoch()
    assert second.epoch() == (24, digest)
    first.kill()
    assert first.process.exitcode == -signal.SIGKILL
    third = start(store)
    assert third.epoch() == (24, digest)
    third.send("raise")
    third.process.join(60)
    assert third.process.exitcode == 1
    second.kill()
    assert nothing_left(store)


def test_processes_that_start_together_share_one_file(
    store: Path, start: Callable[[Path], Peer]
) -> None:
    peers = [start(store) for _ in range(3)]
    for peer in peers:
        peer.send("epoch")
    digests = {peer.answer()[1] for peer in peers}
    assert len(digests) == 1
    inherited = memory_files(os.getpid())  # of tests before this one
    found = set().union(*(memory_files(peer.process.pid) for peer in peers))
    assert len(found - inherited) == 1


def memory_files(process: int | None) -> set[str]:
    """Numbers of the caches' memory files that a process has mapped."""
    lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "memfd:fastload-cache" in line}


def test_a_changed_store_is_another(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "copy.lmdb"
    path.write_bytes(store.read_bytes())
    with open_store(path) as opened:
        before = fingerprint([opened])
        assert fingerprint([opened]) == before
        assert fingerprint([opened], 5) != before
    os.utime(path, ns=(1, 1))
    with open_store(path) as opened:
        assert fingerprint([opened]) != before


def make(records: int = 3) -> CacheFile:
    return CacheFile("shm", records, 1 << 20, lambda: "ab" * 16)


def test_a_name_that_leads_nowhere_is_passed_over() -> None:
    """Another process's number, a file that is no memory file, or one of another store."""
    first = make(4)
    second = make(3)  # the first's file is not for three records
    third = make(3)
    assert os.fstat(first.fd).st_ino != os.fstat(second.fd).st_ino
    assert os.fstat(third.fd).st_ino == os.fstat(second.fd).st_ino
    with open(__file__, "rb") as file:
        assert not fits(file.fileno(), 3)


def test_a_search_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastload._engine.cache import memory_file

    monkeypatch.setattr(memory_file, "_WAIT_S", 0.05)
    turn = memory_file._turn(f"fastload-cache/{os.geteuid()}/{'ab' * 16}")
    assert turn is not None
    with turn, pytest.warns(RuntimeWarning, match="keeps a cache of its own") as heard:
        make()
    assert heard[0].filename == __file__


def test_a_forked_child_announces_itself(store: Path) -> None:
    loader = FastLoader(PackedDataset(store), batch_size=1, cache="shm", num_workers=0)
    next(iter(loader))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            next(iter(loader))
            mine = any(entry.split("/")[-2] == str(os.getpid()) for entry in names())
            os.write(write, b"1" if mine else b"0")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    assert os.read(read, 1) == b"1"
    os.close(read)
