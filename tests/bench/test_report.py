"""Rows, ratios and the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from bench import report
from bench.__main__ import main


def row(loader: str, values: list[float], unit: str = "images/s") -> dict[str, Any]:
    return report.row(
        suite="s", variant="v", loader=loader, metric="m", unit=unit, values=values, setting={}
    )


def test_a_row_holds_the_median_and_the_extremes() -> None:
    found = row("fastload-lmdb", [3.0, 1.0, 2.0])
    assert (found["median"], found["min"], found["max"], found["rounds"]) == (2.0, 1.0, 3.0, 3)


def test_ratios_are_of_medians_and_turn_round_where_less_is_better() -> None:
    assert report.ratio(row("a", [4.0]), row("b", [2.0])) == 2.0
    assert report.ratio(row("a", [4.0], "MB"), row("b", [2.0], "MB")) == 0.5
    assert report.ratio(row("a", [4.0]), None) is None


def test_the_best_peer_is_never_fastload() -> None:
    rows = [row("fastload-lmdb", [9.0]), row("ffcv", [5.0]), row("dali", [6.0])]
    best = report.best_peer(rows)
    assert best is not None
    assert best["loader"] == "dali"
    assert report.best_peer(rows[:1]) is None


def test_the_table_keeps_loaders_without_a_figure() -> None:
    absent = report.row(
        suite="s", variant="v", loader="ffcv", metric="m", unit="images/s", reason="not installed"
    )
    console = Console(width=120, record=True, file=None, quiet=False)
    with console.capture() as captured:
        for table in report.tables([row("torch-pil", [2.0]), row("fastload-lmdb", [6.0]), absent]):
            console.print(table)
    shown = captured.get()
    assert "3.00" in shown
    assert "ffcv" in shown
    assert "not installed" in shown


@pytest.mark.parametrize("text", ["[{", "[1]", '{"parts": {}}', "3", "[\x00]"])
@pytest.mark.parametrize("command", ["table", "publish", "plot"])
def test_a_file_without_rows_is_an_error_that_names_it(
    tmp_path: Path, command: str, text: str
) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text)
    done = CliRunner().invoke(main, [command, str(path)])
    assert done.exit_code == 1
    assert f"{path}: expected rows that `run --json` wrote" in done.output
