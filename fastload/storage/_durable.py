"""Writing to disks: what is synced survives a power failure, and no error waits for a close."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Sequence

_BUFFERS = 1024  # IOV_MAX of Linux: of one system call


def write_all(descriptor: int, pieces: Sequence[bytes | memoryview], offset: int) -> None:
    """Write ``pieces`` one after the other from ``offset`` on. Raises OSError on a full disk."""
    for start in range(0, len(pieces), _BUFFERS):
        some = pieces[start : start + _BUFFERS]
        nbytes = sum(map(len, some))
        done = os.pwritev(descriptor, some, offset)
        if done < nbytes:  # a signal, or the limit of 2 GiB of one call
            rest = memoryview(b"".join(some))
            while done < nbytes:
                done += os.pwrite(descriptor, rest[done:], offset + done)
        offset += nbytes


def sync(path: str) -> None:
    """Make the content of a file, or the names in a folder, survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: str, *parts: bytes | memoryview) -> None:
    """Write a small new file, durably."""
    with open(path, "xb") as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: str, value: object) -> None:
    """Write a small file, durably, whole or not at all; another one of this name is replaced."""
    new = path + ".new"
    with open(new, "w", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    sync(os.path.dirname(path))


def remove(path: str) -> None:
    """Delete what is at ``path``, if anything is: of a link the link, of a folder all of it."""
    with contextlib.suppress(FileNotFoundError):
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
