"""Unreadable: why an engine cannot read a dataset by itself."""

from __future__ import annotations


class Unreadable(Exception):
    """The engines cannot make the samples of a dataset; it is no error, its own code makes them.

    Attributes:
        reason: in words, for ``explain()``.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
