"""Threads that run a generator ahead of its consumer: prefetch_generator's, ended at exit.

They are daemon threads, so that an abandoned iterator cannot keep the process alive. But torch
aborts the process if a daemon thread drops a tensor while the interpreter shuts down. So the
interpreter waits for the threads at exit. The module that starts one also registers an ``atexit``
function that tells it to end.
"""

from __future__ import annotations

import atexit
import queue
import weakref
from collections.abc import Iterator
from typing import Any, Protocol

# How long the exit of the interpreter waits for a thread.
EXIT_S = 5.0


class BackgroundThread(Protocol):
    """``prefetch_generator.BackgroundGenerator``, as far as it is used here."""

    queue: queue.Queue[Any]

    def join(self, timeout: float | None = None) -> None: ...


_started: weakref.WeakSet[BackgroundThread] = weakref.WeakSet()


def start(generator: Iterator[object]) -> BackgroundThread:
    """Run ``generator`` in a thread, which puts (True, item) into an unbounded queue."""
    from prefetch_generator import BackgroundGenerator

    thread: BackgroundThread = BackgroundGenerator(generator, max_prefetch=0)
    _started.add(thread)
    return thread


def _join_all() -> None:
    for thread in list(_started):
        thread.join(EXIT_S)


atexit.register(_join_all)
