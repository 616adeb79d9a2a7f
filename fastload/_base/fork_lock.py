"""ForkLock: a lock for the threads of this process, which a forked child finds free.

An ordinary lock that another thread holds during a fork stays locked in the child for ever: the
child does not have that thread. A thread may enter it again: what a signal handler calls may need
the lock that the handler has interrupted.
"""

from __future__ import annotations

import os
import threading
import weakref


class ForkLock:
    """A lock, for ``with``. A process that it was pickled for gets another one."""

    def __init__(self) -> None:
        self._lock = self._held = threading.RLock()
        _made.add(self)

    def acquire(self, blocking: bool = True) -> bool:
        """As that of any lock of ``threading``."""
        lock = self._lock
        if not lock.acquire(blocking):
            return False
        self._held = lock
        return True

    def release(self) -> None:
        self._held.release()  # in a child that was forked while this thread held it: the parent's

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *raised: object) -> None:
        self.release()

    def __reduce__(self) -> tuple[type[ForkLock], tuple[()]]:
        return ForkLock, ()


_made: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _free_all() -> None:
    for lock in list(_made):
        lock._lock = threading.RLock()


os.register_at_fork(after_in_child=_free_all)
