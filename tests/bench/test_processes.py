"""Suites whose figures are those of a process that begins with nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench_rows import rows_of

pytest.importorskip("torchvision")


@pytest.mark.long
def test_startup_says_import_time_and_first_batch(cache: Path) -> None:
    rows = rows_of(cache, "startup", "--loaders", "fastload-lmdb")
    assert [row["metric"] for row in rows] == ["first batch", "import"]


@pytest.mark.usefixtures("forked")
def test_memory_counts_the_process_tree(cache: Path) -> None:
    rows = rows_of(cache, "memory", "--loaders", "fastload-lmdb")
    own, beyond_imports, everything = (row["median"] for row in rows)
    assert beyond_imports < own < everything
    assert own > 10
