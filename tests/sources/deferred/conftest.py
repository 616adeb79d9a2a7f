"""Files of these tests were written just now, and are to be known by their paths all the same."""

from __future__ import annotations

import pytest

from fastload._sources.deferred import stamps


@pytest.fixture(autouse=True)
def settled_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stamps, "RECENT_NS", 0)
