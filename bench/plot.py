"""Bar charts of rows: one figure a suite, one chart for each of its variants and metrics.

An SVG is made for light pages and for dark ones, with a transparent background and with text that
stays text. ``picture`` is what a page shows: the one that its reader prefers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench import report
from bench.report import Row
from fastload.errors import MissingDependencyError

# Inches: a figure, a bar with its gap, a chart's title and axis.
_WIDTH, _BAR, _REST = 9.0, 0.26, 0.9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Theme:
    """Colours for one kind of page.

    Attributes:
        suffix: of a file's name.
        text: of words, axes and the lines of the rounds.
        ours, best, others: of bars: fastload's, the best peer's, other peers'.
    """

    suffix: str
    text: str
    ours: str
    best: str
    others: str


LIGHT = Theme(suffix="", text="#1f2328", ours="#1f6fb4", best="#6b6b6b", others="#b4b4b4")
DARK = Theme(suffix="-dark", text="#e6edf3", ours="#4c9fe6", best="#9a9a9a", others="#5a5f66")


def figures(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draw ``rows`` into ``folder``, and return the files.

    A suite becomes SUITE.svg and SUITE-dark.svg. What imagenet-train has for the README becomes
    ``OVERVIEW``, alike. The best bar comes first: fastload's are blue, the best peer's stands out
    among the gray ones. Each shows its median and its ratio to the best peer's; a line on it goes
    from the smallest to the largest round. Loaders without a figure are named below.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise MissingDependencyError("plots need matplotlib: pip install matplotlib") from error
    folder.mkdir(parents=True, exist_ok=True)
    suites: dict[str, list[Row]] = {}
    for row in rows:
        suites.setdefault(row["suite"], []).append(row)
    made = []
    for suite, of_suite in suites.items():
        charts = [group for group in report.groups(of_suite).values() if _measured(group)]
        drawn: dict[str, Callable[[Theme], Any]] = {}
        if charts:
            drawn[suite] = partial(_figure, charts, _conditions(of_suite[0]))
        if few := overview(of_suite):
            drawn[OVERVIEW] = partial(_overview, few)
        for name, draw in drawn.items():
            for theme in (LIGHT, DARK):
                made.append(folder / f"{name}{theme.suffix}.svg")
                # No date and fixed ids, so that the same rows give the same file.
                with matplotlib.rc_context({**_colours(theme), **_SVG}):
                    draw(theme).savefig(made[-1], transparent=True, metadata={"Date": None})
    return made


def overview(rows: Sequence[Row]) -> dict[str, Row]:
    """The README's five bars, the fastest first; empty if ``rows`` lack one of them.

    They are torch's loader, DALI, the best other loader, and fastload on the folder and on a DCT
    store, in the training recipe of photos.
    """
    row_of = {
        row["loader"]: row
        for row in rows
        if (row["suite"], row["variant"], row["metric"]) == _OVERVIEW_ROWS and row["median"]
    }
    others = [row for name, row in row_of.items() if name not in _OVERVIEW_NAMES]
    if not row_of.keys() >= _OVERVIEW_NAMES.keys() or not (best := report.best_peer(others)):
        return {}
    named = {label: row_of[loader] for loader, label in _OVERVIEW_NAMES.items()}
    named[best["loader"]] = best
    return dict(sorted(named.items(), key=lambda item: -float(item[1]["median"])))


def picture(folder: str, name: str, alt: str = "") -> str:
    """HTML of a page that shows the chart ``name`` in ``folder``: the dark one on dark pages.

    ``alt`` is its text for who does not see it. ``.ci/docs.py`` knows this form, because the site
    has a switch of its own.
    """
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" '
        f'srcset="{folder}/{name}{DARK.suffix}.svg">'
        f'<img alt="{alt or f"{name}: a bar for each loader"}" src="{folder}/{name}.svg"></picture>'
    )


OVERVIEW = "overview"
_OVERVIEW_ROWS = ("imagenet-train", "float32", "throughput")
_OVERVIEW_NAMES = {
    "fastload-lmdb-dct": "FastLoader, DCT store",
    "fastload-folder": "FastLoader, folder",
    "dali": "DALI, on the CPU",
    report.BASELINE: "torch's DataLoader",
}


def _overview(few: dict[str, Row], theme: Theme) -> Any:
    """matplotlib's Figure: few bars, in letters that a phone shows large enough."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.8, 2.1), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    medians = [float(row["median"]) for row in few.values()]
    peer = report.best_peer(few.values())
    colours = [_colour(row, peer, theme) for row in few.values()]
    axes.barh(range(len(few)), medians, color=colours)
    axes.set_yticks(range(len(few)), list(few), fontsize=11)
    axes.invert_yaxis()
    axes.set_xlim(0, max(medians) * 1.2)
    for place, (median, colour) in enumerate(zip(medians, colours, strict=True)):
        axes.text(
            median + max(medians) * 0.015,
            place,
            report.shown(median),
            va="center",
            fontsize=11,
            fontweight="bold" if colour == theme.ours else "normal",
        )
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    return figure


_SVG = {"svg.fonttype": "none", "svg.hashsalt": "fastload"}


def _colours(theme: Theme) -> dict[str, str]:
    """matplotlib's settings of everything that is not a bar."""
    names = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    return dict.fromkeys(names, theme.text)


def _figure(charts: Sequence[Sequence[Row]], conditions: str, theme: Theme) -> Any:
    """matplotlib's Figure, which publishes no types here, with a chart for each table."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    heights = [_BAR * len(_measured(group)) + _REST for group in charts]
    figure = Figure(figsize=(_WIDTH, sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    every = figure.subplots(len(charts), squeeze=False, height_ratios=heights)[:, 0]
    for axes, group in zip(every, charts, strict=True):
        _chart(axes, group, theme)
    figure.supxlabel(conditions, fontsize=7, color=theme.best)
    return figure


def _measured(group: Sequence[Row]) -> list[Row]:
    """The rows with a bar: all but the plain reader's, which would dwarf the others."""
    rows = report.best_first(group)
    return [row for row in rows if row["loader"] != report.SEQUENTIAL]


def _chart(axes: Any, group: Sequence[Row], theme: Theme = LIGHT) -> None:
    rows = _measured(group)
    peer = report.best_peer(rows)
    medians = [float(row["median"]) for row in rows]
    spread = [
        [median - float(row["min"]) for row, median in zip(rows, medians, strict=True)],
        [float(row["max"]) - median for row, median in zip(rows, medians, strict=True)],
    ]
    places = range(len(rows))
    axes.barh(
        places,
        medians,
        xerr=spread,
        color=[_colour(row, peer, theme) for row in rows],
        error_kw={"linewidth": 0.8, "ecolor": theme.text},
        height=0.75,
    )
    axes.set_yticks(places, [row["loader"] for row in rows], fontsize=8)
    axes.invert_yaxis()
    most = max(float(row["max"]) for row in rows)
    axes.set_xlim(min(0.0, *medians), most * 1.25 or 1)
    for place, row in zip(places, rows, strict=True):
        times = report.ratio(row, peer)
        shown = report.shown(row["median"]) + ("" if times is None else f"   {times:.2f} x")
        axes.text(float(row["max"]) + most * 0.01, place, shown, va="center", fontsize=8)
    first = rows[0]
    better = ", less is better" if first["unit"] in report.LOWER_IS_BETTER else ""
    title = f"{first['suite']}, {first['variant']}: {first['metric']}, {first['unit']}{better}"
    axes.set_title(title, fontsize=10, loc="left")
    axes.tick_params(axis="x", labelsize=7)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    notes = []
    for row in group:
        if row["loader"] == report.SEQUENTIAL:
            notes.append(f"a plain reader of the disk: {report.shown(row['median'])}")
    absent = [row["loader"] for row in group if row["median"] is None]
    if absent:
        notes.append(f"without a figure: {', '.join(absent)}")
    axes.set_xlabel("; ".join(notes), fontsize=7, loc="left")


def _colour(row: Row, peer: Row | None, theme: Theme) -> str:
    if row["loader"].startswith("fastload"):
        return theme.ours
    return theme.best if row is peer else theme.others


def _conditions(row: Row) -> str:
    machine = row.get("machine", {})
    return (
        f"{machine.get('cpu', '')}, {row.get('threads', '?')} threads or workers each, "
        f"batch {row.get('batch', '?')}; x: times the best peer"
    )
