"""Comparisons with torch's own loader."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _short(short_farewell: None) -> None:
    """Many of them raise in a worker."""


@pytest.fixture(scope="session")
def photos(small_photos: Path) -> Path:
    return small_photos


@pytest.fixture(scope="session")
def store(small_store: Path) -> Path:
    return small_store
