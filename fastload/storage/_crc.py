"""CRC32C of bytes and of files, by the native core or by google-crc32c."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from .. import _native
from ..errors import needed

_Bytes: TypeAlias = bytes | bytearray | memoryview


@functools.cache
def _function() -> Callable[[_Bytes, int], int]:
    core = _native.load()
    if core is not None:
        function: Callable[[_Bytes, int], int] = core.crc32c
        return function
    google_crc32c = needed(
        "google_crc32c",
        "checksums need the native core or google-crc32c, and neither is installed: "
        "pip install google-crc32c",
    )
    return lambda data, crc: int(google_crc32c.extend(crc, bytes(data)))


def crc32c(data: _Bytes, crc: int = 0) -> int:
    """CRC32C (Castagnoli, as in RFC 3720) of ``data``, continued from ``crc``."""
    return _function()(data, crc)


def crc32c_blocks(data: _Bytes, block: int) -> np.ndarray:
    """CRC32C of each ``block`` bytes of ``data``, of which the last may be fewer: uint32 (n,)."""
    view = memoryview(data).cast("B")
    sums = np.empty(-(-len(view) // block), np.uint32)
    core = _native.load()
    if core is not None:
        core.crc32c_blocks(view, block, sums)
    else:
        for number in range(len(sums)):
            sums[number] = crc32c(view[number * block : (number + 1) * block])
    return sums


def crc32c_of_file(descriptor: int, blocks: np.ndarray, block: int) -> np.ndarray:
    """CRC32C of these ``blocks`` (int64, their numbers) of an open file: uint32, in their order.

    Blocks have ``block`` bytes, at most 1 MiB; what is behind the end of the file is left out.
    """
    sums = np.empty(len(blocks), np.uint32)
    core = _native.load()
    if core is not None:
        core.crc32c_of_file(descriptor, np.ascontiguousarray(blocks), block, sums)
    else:
        for at, number in enumerate(blocks.tolist()):
            sums[at] = crc32c(os.pread(descriptor, block, number * block))
    return sums
