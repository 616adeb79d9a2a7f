"""Unreadable: the reason why no engine can read a dataset."""

from __future__ import annotations


class Unreadable(Exception):
    """Why no engine makes the samples of a dataset: its own code does. For ``explain()``."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
