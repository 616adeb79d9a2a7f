"""Memory in pages of 2 MiB, for processes that fork often.

A fork copies an entry for each page of anonymous memory, and the child's end drops each: with torch
and others in memory that is most of what a short-lived worker costs. A page of 2 MiB has one entry.
Writing to it behind a fork copies 4 KiB, as ever, and splits it.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

_COLLAPSE = 25  # MADV_COLLAPSE, madvise(2); Linux 6.1 and newer, an error elsewhere
_NBYTES = 2 << 20


def collapse() -> None:
    """Put the anonymous memory that this process has now into huge pages, where it can be."""
    library = ctypes.CDLL(None)
    maps = Path("/proc/self/maps").read_text()
    for words in map(str.split, maps.splitlines()):
        if words[1] != "rw-p" or words[5:] not in ([], ["[heap]"]):
            continue
        begin, end = (int(address, 16) for address in words[0].split("-"))
        for page in range(-(-begin // _NBYTES) * _NBYTES, end - _NBYTES + 1, _NBYTES):
            library.madvise(ctypes.c_void_p(page), ctypes.c_size_t(_NBYTES), _COLLAPSE)
