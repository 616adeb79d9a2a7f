"""Converters: from sources to stores. Installed as ``fastload.converters``.

Errors are those of ``fastload.storage``, and DecodeError for an image that is none; docstrings of
private functions name only others.
"""

from __future__ import annotations

from ._append import append, concat
from ._estimate import Estimate, estimate
from ._pack import pack
from ._report import PackedPart, PackReport, Skipped

__all__ = [
    "Estimate",
    "PackReport",
    "PackedPart",
    "Skipped",
    "append",
    "concat",
    "estimate",
    "pack",
]
