"""A lock that another thread holds during a fork is free in the child."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fastload._base.fork_lock import ForkLock
from fastload._base.timeline import Timeline
from fastload._engine.cache.opened import OpenedCache
from fastload._engine.cache.store import BYTES


def child_does(work: Callable[[], object]) -> bool:
    """Whether ``work`` ends in a forked child, well and in time."""
    child = os.fork()
    if not child:
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(30)
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def test_a_lock_is_free_in_a_forked_child_and_held_in_its_parent() -> None:
    lock = ForkLock()
    with ThreadPoolExecutor(1) as other:
        with lock:
            assert child_does(lock.__enter__)
            assert not other.submit(lock._lock.acquire, blocking=False).result()
        assert other.submit(lock._lock.acquire, blocking=False).result()


def test_a_signal_handler_may_enter_what_its_thread_holds() -> None:
    lock = ForkLock()
    with lock, lock:
        assert child_does(lock.__enter__)
    with ThreadPoolExecutor(1) as other:
        assert other.submit(lock._lock.acquire, blocking=False).result()


def test_a_child_of_the_thread_that_holds_it_may_leave_it() -> None:
    lock = ForkLock()

    def leave_and_enter() -> None:
        lock.__exit__()
        lock.__enter__()
        lock.__exit__()

    with lock:
        assert child_does(leave_and_enter)


def test_a_pickled_lock_is_another_one() -> None:
    lock = ForkLock()
    with lock, pickle.loads(pickle.dumps(lock)):
        pass


def test_timelines_and_caches_of_a_forked_child_wait_for_no_thread_of_its_parent(
    tmp_path: Path,
) -> None:
    timeline = Timeline(tmp_path / "trace.json")
    cache = OpenedCache("ram", BYTES, 1 << 20, None, 10)
    with timeline._lock, cache._lock:
        assert child_does(lambda: timeline.counter("x", 1.0))
        assert child_does(lambda: cache.number(b"0123456789abcdef"))
