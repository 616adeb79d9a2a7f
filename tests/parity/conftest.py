"""Comparisons with torch's own loader."""

from __future__ import annotations

import pytest
from torch.utils.data import _utils


@pytest.fixture(autouse=True)
def short_farewell(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's DataLoader waits 5 s for a worker to end if one of its samples raised. Here: 1 s."""
    monkeypatch.setattr(_utils, "MP_STATUS_CHECK_INTERVAL", 1.0)
