"""Converters: from sources to stores. Installed as ``fastload.converters``."""

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
