"""The check for leaks itself: it must see each kind of leak, and nothing where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from multiprocessing import shared_memory

import leaks


def left_since(before: leaks.Held) -> str:
    return "\n".join(leaks.wait_for(before, timeout_s=0))


def test_nothing_is_left_by_nothing() -> None:
    before = leaks.snapshot()
    assert left_since(before) == ""


def test_a_running_thread_is_seen() -> None:
    before = leaks.snapshot()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="forgotten")
    thread.start()
    assert "threads: forgotten" in left_since(before)
    stop.set()
    thread.join()
    assert left_since(before) == ""


def test_a_running_child_is_seen() -> None:
    before = leaks.snapshot()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert "children: " in left_since(before)
    child.communicate(b"\n")
    assert left_since(before) == ""


def test_shared_memory_is_seen() -> None:
    before = leaks.snapshot()
    block = shared_memory.SharedMemory(create=True, size=4096)
    assert f"shared_memory: {block.name}" in left_since(before)
    block.close()
    block.unlink()
    assert left_since(before) == ""


def test_an_open_descriptor_is_seen() -> None:
    before = leaks.snapshot()
    descriptor = os.open(os.devnull, os.O_RDONLY)
    assert f"descriptors: {descriptor} -> /dev/null" in left_since(before)
    os.close(descriptor)
    assert left_since(before) == ""
