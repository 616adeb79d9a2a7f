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
        OSError: it cannot be written.
    """
    partial = f"{os.fspath(path)}.{os.getpid()}.partial"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(partial)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(partial, flags, 0o666), "wb") as file:
        try:
            yield file
            file.flush()
        except BaseException:
            os.unlink(partial)
            raise
    os.replace(partial, path)
