"""Writing to descriptors, without buffers whose errors appear only when they are closed."""

from __future__ import annotations

import os
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
