"""FASTLOAD_REQUIRE_CUDA=1 turns the skip of a test for GPUs into a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize(("required", "outcome"), [("0", "1 skipped"), ("1", "1 error")])
@pytest.mark.long
def test_a_missing_device_skips_or_fails(required: str, outcome: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default"]
        + [f"{HERE / 'test_transfer.py'}::test_copies_run_beside_the_callers_work"],
        env={**os.environ, "FASTLOAD_REQUIRE_CUDA": required, "CUDA_VISIBLE_DEVICES": ""},
        cwd=HERE.parent.parent,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert outcome in done.stdout, done.stdout
    assert "no CUDA device" in done.stdout
    assert (done.returncode != 0) == (required == "1")
