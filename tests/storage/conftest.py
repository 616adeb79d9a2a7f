"""Where the official readers of formats are that are too large for the tests' own environment.

DALI and TensorFlow come with `make bench-peers`; `make test-long PEERS=FOLDER` (by default
.venv-peers) finds them there.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def _peers(request: pytest.FixtureRequest) -> Path | None:
    folder = Path(os.environ.get("PEERS") or ROOT / ".venv-peers")
    return folder if request.config.getoption("--long") and folder.is_dir() else None


@pytest.fixture
def dali(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvidia.dali can be imported, or the test is skipped."""
    peers = _peers(request)
    if peers is not None:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        others = str(peers / "lib" / version / "site-packages")
        monkeypatch.setattr(sys, "path", [*sys.path, others])  # what is missing here is found there
        importlib.invalidate_caches()
    pytest.importorskip("nvidia.dali", reason="DALI is not installed")


@pytest.fixture
def tensorflow(request: pytest.FixtureRequest) -> str:
    """A Python that has TensorFlow, or the test is skipped."""
    peers = _peers(request)
    candidates = [os.environ.get("FASTLOAD_TENSORFLOW_PYTHON"), sys.executable]
    candidates += [] if peers is None else [str(peers / "bin" / "python")]
    for python in filter(None, candidates):
        if not subprocess.run([python, "-c", "import tensorflow"], capture_output=True).returncode:
            return python
    pytest.skip(
        "TensorFlow is not installed; FASTLOAD_TENSORFLOW_PYTHON names a Python with it, or PEERS "
        "the environment of `make bench-peers`"
    )
