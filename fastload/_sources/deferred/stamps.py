"""Stamps: what tells whether a file is still the one that was opened.

Note [Files written just now]
    The clock that a file system stamps files with ticks every few milliseconds, so a file that is
    written twice within a tick may have one stamp for both. A Dataset does that which unpacks each
    sample to the same temporary file. So a file that changed just now is not remembered by its
    path: its bytes are read when it is opened. Such files are often gone soon, too.
"""

from __future__ import annotations

import os
import time
from typing import Final, TypeAlias

Stamp: TypeAlias = "tuple[int, int, int]"
"""Time of change in ns, bytes and inode of a file.

The time is that of the inode (ctime), which a program cannot set back. ``shutil.copy2`` sets the
other one (mtime), so that two files of one size, copied to the same place, may agree in it.
"""

# Linux ticks every 1 to 10 ms, depending on how it was built.
RECENT_NS: Final = 100_000_000


def of(status: os.stat_result) -> Stamp:
    """The stamp of a file."""
    return status.st_ctime_ns, status.st_size, status.st_ino


def of_path(path: str | int) -> Stamp:
    """The stamp of a file, by path or descriptor."""
    return of(os.stat(path))


def is_recent(status: os.stat_result) -> bool:
    """Whether the file changed just now, so that its stamp may not tell of the next change."""
    return time.time_ns() - status.st_ctime_ns < RECENT_NS
