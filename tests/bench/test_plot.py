"""Charts of rows: a file for each suite that has figures."""

from __future__ import annotations

import json
import re
import runpy
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
    report.row(
        suite="cold",
        variant="float32",
        loader="ffcv",
        metric="throughput",
        unit="images/s",
        reason="not installed",
    ),
    row("spdl", [400.0], suite="memory", unit="MB"),
]


def test_each_suite_is_one_chart_for_light_and_dark_pages(tmp_path: Path) -> None:
    made = plot.figures(ROWS, tmp_path)
    assert sorted(path.name for path in made) == [
        "cold-dark.svg",
        "cold.svg",
        "memory-dark.svg",
        "memory.svg",
    ]


def test_bars_come_with_the_best_first_and_say_their_ratio(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    plot._chart(axes, [found for found in ROWS if found["suite"] == "cold"])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["fastload-lmdb", "torch-pil"]
    assert [text.get_text() for text in axes.texts] == ["8.000   4.00 x", "2.000   1.00 x"]
    assert axes.get_xlabel() == "without a figure: ffcv"


def test_the_same_rows_give_the_same_picture(tmp_path: Path) -> None:
    first, second = (plot.figures(ROWS, tmp_path / name) for name in "ab")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_charts_for_light_and_dark_pages_differ_in_colours_alone(tmp_path: Path) -> None:
    light, dark = (path.read_text() for path in plot.figures(ROWS[:2], tmp_path))
    for drawn, theme in ((light, plot.LIGHT), (dark, plot.DARK)):
        assert {theme.text, theme.ours, theme.best} <= set(re.findall(r"#[0-9a-f]{6}\b", drawn))
        assert ">fastload-lmdb</text>" in drawn  # text, which can be selected and searched
        assert "#ffffff" not in drawn  # no background
    words = re.compile(r">([^<>]+)</text>")
    assert words.findall(light) == words.findall(dark) and light != dark


def test_documents_show_charts_that_exist_for_both_kinds_of_pages() -> None:
    root = Path(__file__).resolve().parents[2]
    for page in (root / "README.md", root / "docs" / "benchmarks.md"):
        text = page.read_text(encoding="utf-8")
        shown = re.findall(r'(?:src|srcset)="([^"]+)"', text)
        assert shown and all((page.parent / path).is_file() for path in shown)
        for alt, path in re.findall(r'alt="([^"]+)" src="([^"]+)"', text):
            assert plot.picture(str(Path(path).parent), Path(path).stem, alt) in text


def test_the_site_shows_the_chart_that_its_switch_chooses() -> None:
    path = Path(__file__).resolve().parents[2] / ".ci" / "docs.py"
    docs = runpy.run_path(str(path))
    text = f"before\n{plot.picture('docs/charts', 'cold')}\nafter"
    assert docs["switched"](docs["relinked"](text)).splitlines() == [
        "before",
        "![cold: a bar for each loader](charts/cold.svg#only-light)",
        "![cold: a bar for each loader](charts/cold-dark.svg#only-dark)",
        "after",
    ]


def test_the_readme_has_its_chart_of_the_published_rows(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    rows = json.loads((root / "bench" / "results" / "imagenet-train.json").read_text())
    plot.figures(rows, tmp_path)
    for name in (f"{plot.OVERVIEW}.svg", f"{plot.OVERVIEW}-dark.svg"):
        drawn, shown = ((folder / name).read_text() for folder in (tmp_path, root / "docs/charts"))
        words = re.compile(r">([^<>]+)</text>")  # the rest may differ between matplotlibs
        assert words.findall(drawn) == words.findall(shown), (
            "run: python -m bench plot bench/results/imagenet-train.json --out docs/charts"
        )
        assert len(words.findall(drawn)) == 10  # five bars and their figures


def test_rows_without_any_figure_give_no_picture(tmp_path: Path) -> None:
    assert plot.figures([ROWS[2]], tmp_path) == []


def test_the_command_names_the_files_it_made(tmp_path: Path) -> None:
    from bench.__main__ import main

    (tmp_path / "rows.json").write_text(json.dumps(ROWS))
    words = ["plot", str(tmp_path / "rows.json"), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    names = ("cold", "cold-dark", "memory", "memory-dark")
    assert done.output.split() == [str(tmp_path / "out" / f"{name}.svg") for name in names]
