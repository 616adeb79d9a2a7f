"""HeaderTable: headers of JPEGs that were read before, for all workers of a loader, in any epoch.

To open a file, read its header and take that apart costs three times what asking for its stamp
does. So what the header said is kept by path and stamp, and later epochs only ask for the stamp.

Note [No lock]
    Workers share one table of fixed size, forked from the process that made it, and write to it at
    any time. A place is written once, its tag last. Two writers may still leave parts of two
    entries in one place. So each word has a part of the key in it, and an entry counts only if all
    of them fit: a file is taken for another one in less than one case of 2^60.
"""

from __future__ import annotations

import functools
import mmap
from typing import Final

from .headers import Header
from .stamps import Stamp

# 12 MB of memory that is taken as it is written to, by all workers together.
_PLACES: Final = 1 << 19
_WORDS: Final = 3
_PROBES: Final = 4  # places where an entry may be; when they are all taken, it is not kept

_MODES: Final = ("L", "RGB", "CMYK")
_NUMBERS: Final = {mode: number for number, mode in enumerate(_MODES)}
_SIDE: Final = 0xFFFF
_END: Final = 0xFFFFFFFF
_WHOLE: Final = 0xFFFFFFFFFFFFFFFF


class HeaderTable:
    """What headers said, by path and stamp."""

    def __init__(self) -> None:
        self._words = memoryview(mmap.mmap(-1, _PLACES * _WORDS * 8)).cast("Q")

    def find(self, path: str, stamp: Stamp) -> Header | None:
        """The header of the file at ``path``, which is absolute, if it is known.

        The time of change in its stamp tells of changed permissions, too.
        """
        tag, check = _key(path, stamp)
        words = self._words
        for probe in range(_PROBES):
            at = (tag + probe) % _PLACES * _WORDS
            known = words[at]
            if known == tag:
                facts, end = words[at + 1], words[at + 2]
                if facts >> 40 != check & 0xFFFFFF or end >> 32 != check >> 24:
                    return None
                size = facts & _SIDE, facts >> 16 & _SIDE
                return Header(size, _MODES[facts >> 32 & 3], bool(facts >> 34 & 1), end & _END)
            if not known:
                return None
        return None

    def keep(self, path: str, stamp: Stamp, header: Header) -> None:
        """Keep a header, if there is a place for it. Arguments as for ``find``."""
        tag, check = _key(path, stamp)
        words = self._words
        (width, height), mode, plain, end = header
        if width > _SIDE or height > _SIDE or end > _END:
            return
        for probe in range(_PROBES):
            at = (tag + probe) % _PLACES * _WORDS
            if not words[at]:
                facts = width | height << 16 | _NUMBERS[mode] << 32 | plain << 34
                words[at + 1] = facts | (check & 0xFFFFFF) << 40
                words[at + 2] = end | check >> 24 << 32
                words[at] = tag
                return


def _key(path: str, stamp: Stamp) -> tuple[int, int]:
    """A tag of 64 bits that is not 0, and 56 further bits."""
    # ``hash`` of a str is salted, but the same in forked workers, which share the table.
    return hash((path, stamp)) & _WHOLE | 1, hash((stamp, path)) & 0xFFFFFFFFFFFFFF


@functools.cache
def header_table() -> HeaderTable:
    """The one of this process and of the workers that it forks after the first call."""
    return HeaderTable()
