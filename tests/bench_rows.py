"""Runs a suite at toy size and reads its rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from bench.__main__ import main

KEYS = ["suite", "variant", "loader", "metric", "unit", "median", "min", "max", "rounds", "setting"]


def run(cache: Path, *arguments: object) -> Result:
    words = ["run", *map(str, arguments), "--cache", str(cache), "--toy"]
    return CliRunner().invoke(main, words)


def rows_of(cache: Path, suite: str, *arguments: object) -> list[dict[str, Any]]:
    rows = _rows(cache, suite, *arguments)
    for row in rows:
        assert list(row)[: len(KEYS)] == KEYS
        assert row["suite"] == suite
        assert row["median"] is not None, row["reason"]
        assert row["min"] <= row["median"] <= row["max"]
        assert row["rounds"] == 1
        assert row["machine"]["cpu"] and row["machine"]["instruction_set"]
        assert row["shared_versions"]["torch"]
        assert row["threads"] >= 1
        assert row["warmup_s"] > 0
    return rows


def rows_of_any(cache: Path, suite: str, variant: str, *arguments: object) -> list[dict[str, Any]]:
    return _rows(cache, suite, "--variant", variant, *arguments)


def _rows(cache: Path, suite: str, *arguments: object) -> list[dict[str, Any]]:
    path = cache / f"{suite}.json"
    path.unlink(missing_ok=True)  # rows of other variants would stay
    done = run(cache, suite, *arguments, "--threads", 2, "--json", path)
    assert done.exit_code == 0, done.output
    rows: list[dict[str, Any]] = json.loads(path.read_text())
    return rows
