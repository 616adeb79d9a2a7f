"""Converters: from sources to stores. Installed as ``fastload.converters``."""

from __future__ import annotations

from ._append import append, concat
from ._pack import pack
from ._report import PackedPart, PackReport, Skipped

__all__ = ["PackReport", "PackedPart", "Skipped", "append", "concat", "pack"]
