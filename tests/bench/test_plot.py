"""Charts of rows: a file for each suite that has figures."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from bench import plot, report
from bench.report import Row

pytest.importorskip("matplotlib")


def row(loader: str, values: list[float], suite: str = "cold", unit: str = "images/s") -> Row:
    return report.row(
        suite=suite,
        variant="float32",
        loader=loader,
        metric="throughput",
        unit=unit,
        values=values,
        setting={},
    )


ROWS = [
    row("torch-pil", [1.0, 2.0, 3.0]),
    row("fastload-lmdb", [8.0]),
    row("sequential-read", [1000.0]),
    report.missing(
        suite="cold",
        variant="float32",
        loader="ffcv",
        metric="throughput",
        unit="images/s",
        reason="not installed",
    ),
    row("spdl", [400.0], suite="memory", unit="MB"),
]


def test_each_suite_is_one_chart_in_each_format(tmp_path: Path) -> None:
    made = plot.figures(ROWS, tmp_path)
    assert sorted(path.name for path in made) == [
        "cold.png",
        "cold.svg",
        "memory.png",
        "memory.svg",
    ]
    assert (tmp_path / "cold.png").read_bytes().startswith(b"\x89PNG")


def test_bars_come_with_the_best_first_and_say_their_ratio(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    plot._chart(axes, [found for found in ROWS if found["suite"] == "cold"])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["fastload-lmdb", "torch-pil"]
    assert [text.get_text() for text in axes.texts] == ["8.000   4.00 x", "2.000   1.00 x"]
    assert axes.get_xlabel() == "a plain reader of the disk: 1,000; without a figure: ffcv"


def test_the_same_rows_give_the_same_picture(tmp_path: Path) -> None:
    first, second = (plot.figures(ROWS, tmp_path / name, ("png",)) for name in "ab")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_rows_without_any_figure_give_no_picture(tmp_path: Path) -> None:
    assert plot.figures([ROWS[3]], tmp_path) == []


def test_the_command_names_the_files_it_made(tmp_path: Path) -> None:
    import json

    from bench.__main__ import main

    (tmp_path / "rows.json").write_text(json.dumps(ROWS))
    words = ["plot", str(tmp_path / "rows.json"), "--out", str(tmp_path / "out"), "--format", "svg"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert done.output.split() == [str(tmp_path / "out" / f"{n}.svg") for n in ("cold", "memory")]


def test_a_timeline_is_drawn_with_a_row_for_each_thread(store: Path, tmp_path: Path) -> None:
    import fastload
    from bench.__main__ import main
    from fastload import FastLoader

    with fastload.trace(tmp_path / "run.json"):
        for _ in FastLoader(store, batch_size=1, sampler=[0] * 12, num_workers=2):
            pass
    for name in ("part.svg", "part.png"):
        words = ["timeline", str(tmp_path / "run.json"), "--out", str(tmp_path / name)]
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.output
    drawn = (tmp_path / "part.svg").read_text()
    assert drawn.count("fastload decoder") >= 1
    assert "wait" in drawn and "decode" in drawn
