"""Stores: ``open_store`` and ``open_writer`` find the format of a path.

``base.py`` is the contract of a store, ``registry.py`` the table of formats. The module of a
format, and the library it needs, is imported when it is used.

In this package, what is damaged or cannot be read raises StoreError, what is not there
StoreNotFoundError, what is asked for wrongly UsageError, a library that is not installed
MissingDependencyError. Docstrings of private functions name only other errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._exports import lazily

if TYPE_CHECKING:
    from .base import DCT, ENCODED, RAW, Batch, Field, Record, Spans, Store, Writer
    from .opening import open_store, open_writer
    from .registry import (
        Format,
        find_by_suffix,
        find_format,
        format_of,
        get_format,
        known_formats,
    )

__all__ = [
    "DCT",
    "ENCODED",
    "RAW",
    "Batch",
    "Field",
    "Format",
    "Record",
    "Spans",
    "Store",
    "Writer",
    "find_by_suffix",
    "find_format",
    "format_of",
    "get_format",
    "known_formats",
    "open_store",
    "open_writer",
]

_LAZY = {
    "base": ("DCT", "ENCODED", "RAW", "Batch", "Field", "Record", "Spans", "Store", "Writer"),
    "opening": ("open_store", "open_writer"),
    "registry": (
        "Format", "find_by_suffix", "find_format", "format_of", "get_format", "known_formats",
    ),
}  # fmt: skip

__getattr__ = lazily(globals(), _LAZY)
