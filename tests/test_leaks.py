"""The check for leaks itself: it must see each kind of leak, and nothing where there is none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import shared_memory

import leaks


def left_since(before: leaks.Held) -> str:
    return "\n".join(leaks.wait_for(before, timeout_s=0))


def test_nothing_is_left_by_nothing() -> None:
    before = leaks.snapshot()
    assert leaks.wait_for(before, timeout_s=60) == []


def test_a_running_thread_is_seen() -> None:
    before = leaks.snapshot()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="forgotten")
    thread.start()
    assert "threads: forgotten" in left_since(before)
    stop.set()
    thread.join()
    assert leaks.wait_for(before, timeout_s=60) == []


def test_a_running_child_is_seen() -> None:
    before = leaks.snapshot()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert "children: " in left_since(before)
    child.communicate(b"\n")
    assert leaks.wait_for(before, timeout_s=60) == []


def test_shared_memory_is_seen() -> None:
    before = leaks.snapshot()
    block = shared_memory.SharedMemory(create=True, size=4096)
    assert f"shared_memory: {block.name}" in left_since(before)
    block.close()
    block.unlink()
    assert leaks.wait_for(before, timeout_s=60) == []


def test_an_open_descriptor_is_seen() -> None:
    before = leaks.snapshot()
    descriptor = os.open(os.devnull, os.O_RDONLY)
    assert f"descriptors: {descriptor} -> /dev/null" in left_since(before)
    os.close(descriptor)
    assert leaks.wait_for(before, timeout_s=60) == []


def test_what_a_neighbour_makes_and_removes_is_not_ours() -> None:
    code = """
import os, sys
number = 0
while True:
    name = f"/dev/shm/sem.mp-neighbour{os.getpid()}-{number}"
    open(name, "w").close()
    os.remove(name)
    number += 1
"""
    before = leaks.snapshot()
    # started by a process that has ended: no child of ours
    start = """
import subprocess, sys
nothing = subprocess.DEVNULL
print(subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=nothing, stderr=nothing).pid)
"""
    neighbour = int(subprocess.check_output([sys.executable, "-c", start, code], timeout=60))
    try:
        assert leaks.wait_for(before, timeout_s=60) == []
    finally:
        os.kill(neighbour, signal.SIGKILL)
        for left in leaks.SHM.glob(f"sem.mp-neighbour{neighbour}-*"):
            left.unlink()


def test_a_child_of_a_child_is_seen() -> None:
    before = leaks.snapshot()
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    deadline = time.monotonic() + 30
    while len(leaks.snapshot(before).since(before)) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left_since(before).count("children: ") == 2
    child.communicate(b"\n")
    assert leaks.wait_for(before, timeout_s=60) == []
