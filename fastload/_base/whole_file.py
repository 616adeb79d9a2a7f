"""Write a file atomically: it appears complete or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import BinaryIO


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A new file that replaces ``path`` when the block ends without an error.

    Until then it is ``PATH.PROCESS.partial`` in the same folder; a link there is not followed.

    Raises:
        OSError: it cannot be written; its ``filename`` is ``path``.
    """
    partial = _partial(path)
    with _naming(path, partial):
        with open(_create(partial), "wb") as file:
            try:
                yield file
                file.flush()
            except BaseException:
                os.unlink(partial)
                raise
        os.replace(partial, path)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise the OSError of ``whole_file`` at once, before long work whose result goes there."""
    partial = _partial(path)
    with _naming(path, partial):
        os.close(_create(partial))
        os.unlink(partial)


@contextlib.contextmanager
def _naming(path: str | os.PathLike[str], instead_of: str) -> Iterator[None]:
    """A block whose errors of the system name ``path``, the file that the user asked for.

    The temporary name ``instead_of`` must not be shown. (A full disk gives no name.)
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename in (None, instead_of):
            error.filename = os.fspath(path)
        raise


def _partial(path: str | os.PathLike[str]) -> str:
    return f"{os.fspath(path)}.{os.getpid()}.partial"


def _create(partial: str) -> int:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(partial)
    try:
        return os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileNotFoundError as error:
        error.strerror = f"there is no folder {os.path.dirname(partial)!r}: create it first"
        raise
