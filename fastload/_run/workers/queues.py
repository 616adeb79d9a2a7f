"""DirectQueue: a Queue whose ``put`` writes a short message itself, and that shows what arrived.

multiprocessing's ``put`` hands each message to a thread of the queue, which waits for the
interpreter's lock, and its ``get`` makes a selector for each wait. With batches of one image that
takes a good part of the time, in both processes. Here both are a few system calls.

How ``put`` sends
    at once     the message fits into what is free of the pipe, and none is before it.
    by thread   anything else: as in multiprocessing, so ``put`` never waits for the reader. So is
                the first message: when a long one comes, there may be no memory for a new thread.
Messages arrive in the order of ``put``. What cannot be pickled raises in ``put``, where
multiprocessing's thread would print the error and lose the message.

``arrived`` shows what is here already, so that work on it can begin; ``get`` still returns it.
"""

from __future__ import annotations

import collections
import copy
import fcntl
import functools
import multiprocessing
import multiprocessing.queues
import pickle
import select
import struct
import sys
import termios
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from multiprocessing.synchronize import BoundedSemaphore, Lock
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    _Queue: TypeAlias = multiprocessing.queues.Queue[Any]
else:
    _Queue = multiprocessing.queues.Queue

# A pipe that select reports as writable has room for a page, into which this and less is written
# in one piece (pipe(7)).
_WRITTEN_WHOLE = select.PIPE_BUF

# A Connection writes these bytes before a message, and up to so long a message together with them.
# Of two writes Ctrl-C may prevent the second, and then the other end waits for the rest.
_PREFIX_NBYTES = 4
_ONE_WRITE_NBYTES = 16384


class DirectQueue(_Queue):
    """As multiprocessing's Queue; its messages are sent directly on Linux."""

    # multiprocessing's own, from Python 3.10 to 3.14. Without one of them it is as its Queue.
    _reader: Connection
    _writer: Connection
    _wlock: Lock
    _sem: BoundedSemaphore
    _notempty: threading.Condition
    _buffer: collections.deque[Any]
    _closed: bool
    _send_bytes: Callable[[memoryview], None]

    _direct = False

    def _reset(self, after_fork: bool = False) -> None:
        super()._reset(after_fork)  # type: ignore[misc] # not among the published types
        self._taken: collections.deque[Any] = collections.deque()  # out of the pipe
        self._shown: list[Any] | None = None  # None: nobody asks for what arrived
        known = all(hasattr(self, name) for name in DirectQueue.__annotations__)
        if sys.platform == "linux" and known and hasattr(self._notempty, "_waiters"):
            self._direct = True
            self._poll = functools.partial(_readable, self._reader.fileno())

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        """Send ``obj``, at once where the pipe has room for it."""
        if not self._direct:
            super().put(obj, block, timeout)
            return
        if self._closed:
            raise ValueError(f"Queue {self!r} is closed")
        data = ForkingPickler.dumps(obj)
        with self._notempty:
            # Its thread has sent all that it was given once it waits for more.
            idle = not self._buffer and _waited_for(self._notempty)
            if idle and self._sem.acquire(False):
                if self._sent(data):
                    return
                self._sem.release()
        super().put(_Pickled(bytes(data)), block, timeout)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The next message, as from multiprocessing's Queue."""
        if self._taken:
            return self._taken.popleft()
        message = super().get(block, timeout)
        if self._shown is not None:
            self._shown.append(message)
        return message

    def empty(self) -> bool:
        """Whether ``get`` would wait."""
        return not self._taken and super().empty()

    def arrived(self) -> list[Any]:
        """What has arrived since the last call, in this process; nothing before the first one."""
        if self._shown is None:
            self._shown = []
        while not super().empty():
            message = super().get()
            self._taken.append(message)
            self._shown.append(message)
        shown, self._shown = self._shown, []
        return shown

    def _sent(self, data: memoryview) -> bool:
        """Whether ``data`` could be written without waiting; then it is."""
        # Held by another process that writes, or for ever by one that was killed while it did.
        if not self._wlock.acquire(False):
            return False
        try:
            if not _has_room(self._writer.fileno(), len(data) + _PREFIX_NBYTES):
                return False
            self._send_bytes(data)
            return True
        finally:
            self._wlock.release()


class _Pickled:
    """An object that is pickled already."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self._data,)


def _waited_for(condition: threading.Condition) -> bool:
    """Whether a thread waits for ``condition``, whose lock the caller has."""
    waiters: collections.deque[Any] = condition._waiters  # type: ignore[attr-defined]
    return bool(waiters)


def _has_room(descriptor: int, nbytes: int) -> bool:
    """Whether a pipe takes so many bytes without waiting, while nobody else writes to it."""
    if nbytes <= _WRITTEN_WHOLE:
        waiting = select.poll()
        waiting.register(descriptor, select.POLLOUT)
        return any(event & select.POLLOUT for _, event in waiting.poll(0))
    if nbytes > min(_ONE_WRITE_NBYTES, fcntl.fcntl(descriptor, fcntl.F_GETPIPE_SZ)):
        return False
    (unread,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4))
    return not unread


def _readable(descriptor: int, timeout: float | None = 0.0) -> bool:
    """Whether there is something to read, or the other end is closed, within ``timeout`` s."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(None if timeout is None else 1000 * max(0.0, timeout)))


def with_direct_queues(wanted: str | BaseContext | None) -> BaseContext:
    """A multiprocessing context as ``wanted``, whose queues are direct ones.

    Args:
        wanted: DataLoader's ``multiprocessing_context``.
    """
    base = wanted if isinstance(wanted, BaseContext) else multiprocessing.get_context(wanted)
    context = copy.copy(base)
    context.Queue = functools.partial(DirectQueue, ctx=base)  # type: ignore[method-assign]
    return context
