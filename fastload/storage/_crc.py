"""CRC32C of bytes, by the native core or by google-crc32c."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias

from ..errors import MissingDependencyError

_Bytes: TypeAlias = bytes | bytearray | memoryview


@functools.cache
def _function() -> Callable[[_Bytes, int], int]:
    from .. import _native

    core = _native.load()
    if core is not None:
        function: Callable[[_Bytes, int], int] = core.crc32c
        return function
    try:
        import google_crc32c
    except ImportError as error:
        raise MissingDependencyError(
            "checksums need the native core or google-crc32c, and neither is installed: "
            "pip install google-crc32c"
        ) from error
    return lambda data, crc: int(google_crc32c.extend(crc, bytes(data)))


def crc32c(data: _Bytes, crc: int = 0) -> int:
    """CRC32C (Castagnoli, as in RFC 3720) of ``data``, continued from ``crc``.

    Raises:
        MissingDependencyError: neither the native core nor google-crc32c is installed.
    """
    return _function()(data, crc)
