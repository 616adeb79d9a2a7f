"""One process at a time replaces a store: by ``append``, or by ``overwrite=True``."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterable, Iterator

from ..errors import UsageError


@contextlib.contextmanager
def alone(paths: Iterable[str]) -> Iterator[None]:
    """Hold the locks on replacing the stores ``paths``: two processes would mix their files.

    Each lock is on an empty file beside the store. A kill leaves it, and the next run deletes it.
    """
    with contextlib.ExitStack() as stack:
        for path in sorted(paths):  # of two processes, one gets the first that both want
            stack.enter_context(_locked(path))
        yield


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    name = f"{path}.replacing-lock"
    while True:
        try:
            lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR):
                raise _not_a_lock(name) from error
            raise UsageError(
                f"{path!r} has to be replaced by a new store beside it, but its folder cannot be "
                f"written ({error.strerror}): make it writable, or work on a copy elsewhere"
            ) from error
        try:
            if os.fstat(lock).st_size:
                raise _not_a_lock(name)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UsageError(
                    f"{path!r}: another process is appending to this store or overwriting it: wait "
                    "until it is done"
                ) from error
            except OSError as error:
                os.remove(name)
                raise UsageError(
                    f"{path!r} has to be locked while it is replaced, and its file system cannot "
                    f"do that ({error.strerror}): work on a copy elsewhere"
                ) from error
            if os.path.exists(name) and os.path.samestat(os.fstat(lock), os.stat(name)):
                try:
                    yield
                finally:
                    os.remove(name)
                return
        finally:  # if its owner deleted the file that was opened here, try again
            os.close(lock)


def _not_a_lock(name: str) -> UsageError:
    return UsageError(f"expected an empty file at {name!r}, found something else: move it")
