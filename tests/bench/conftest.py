"""The benchmark is no part of the installed package: it is imported from the repository's root."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images and packed stores, shared by the tests of suites."""
    return tmp_path_factory.mktemp("bench")


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaders run in processes that have torch imported already."""
    from bench import process
    from bench_forked import Forked

    monkeypatch.setattr(process, "Popen", Forked)
