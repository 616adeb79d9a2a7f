"""Unreadable: the reason why no engine can read a dataset."""

from __future__ import annotations


class Unreadable(Exception):
    """No engine can make the samples of a dataset, so the dataset's own code makes them.

    It never reaches the user as an exception.

    Attributes:
        reason: in words, for ``explain()``.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
