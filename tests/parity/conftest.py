"""Comparisons with torch's own loader."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _short(short_farewell: None) -> None:
    """Many of them raise in a worker."""
