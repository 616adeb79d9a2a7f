"""Bar charts of rows: one figure a suite, one chart for each of its variants and metrics.

An SVG is made for light pages and for dark ones, with a transparent background and with text that
stays text. ``picture`` is what a page shows: the one that its reader prefers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from bench import report
from bench.report import Row

# Inches: a figure, a bar with its gap, a chart's title and axis.
_WIDTH, _BAR, _REST = 9.0, 0.26, 0.9

OVERVIEW = "overview"
_OVERVIEW_ROWS = ("imagenet-train", "float32", "throughput")
_OVERVIEW_NAMES = {
    "fastload-lmdb-dct": "FastLoader, DCT store",
    "fastload-folder": "FastLoader, folder",
    "dali": "DALI, on the CPU",
    report.BASELINE: "torch's DataLoader",
}


class Theme(NamedTuple):
    """Of one kind of page: a file's suffix, and colours of words and lines, and of bars:
    fastload's, the best peer's, other peers'."""

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
        from matplotlib.figure import Figure
    except ImportError as error:
        raise click.ClickException("plots need matplotlib: pip install matplotlib") from error
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for suite in dict.fromkeys(row["suite"] for row in rows):
        of_suite = [row for row in rows if row["suite"] == suite]
        groups = report.groups(of_suite).values()
        charts = [group for group in groups if report.best_first(group)]
        for name, drawn in ((suite, charts), (OVERVIEW, overview(of_suite))):
            for theme in (LIGHT, DARK) if drawn else ():
                style: Any = {**_STYLE, **dict.fromkeys(_COLOURED, theme.text)}
                with matplotlib.rc_context(style):
                    figure = Figure(layout="constrained")
                    if isinstance(drawn, dict):
                        _overview(figure, drawn, theme)
                    else:
                        _charts(figure, drawn, theme)
                    made.append(folder / f"{name}{theme.suffix}.svg")
                    figure.savefig(made[-1], transparent=True, metadata={"Date": None})
    return made


# No date and fixed ids, so that the same rows give the same file.
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fastload",
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_COLOURED = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")


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


def _overview(figure: Any, few: Mapping[str, Row], theme: Theme) -> None:
    """Few bars, in letters that a phone shows large enough."""
    figure.set_size_inches(4.8, 2.1)
    axes = figure.subplots()
    for text, row in zip(_bars(axes, few, theme, 11), few.values(), strict=True):
        text.set_fontweight("normal" if report.is_peer(row["loader"]) else "bold")
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0)
    axes.spines["bottom"].set_visible(False)


def _charts(figure: Any, charts: Sequence[Sequence[Row]], theme: Theme) -> None:
    """A chart for each table; below them all, where they were measured."""
    heights = [_BAR * len(report.best_first(group)) + _REST for group in charts]
    figure.set_size_inches(_WIDTH, sum(heights))
    every = figure.subplots(len(charts), squeeze=False, height_ratios=heights)[:, 0]
    for axes, group in zip(every, charts, strict=True):
        _chart(axes, group, theme)
    row = charts[0][0]
    conditions = (
        f"{row.get('machine', {}).get('cpu', '')}, {row.get('threads', '?')} threads or workers "
        f"each, batch {row.get('batch', '?')}; x: times the best peer"
    )
    figure.supxlabel(conditions, fontsize=7, color=theme.best)


def _chart(axes: Any, group: Sequence[Row], theme: Theme = LIGHT) -> None:
    """Bars with their rounds and ratios, and what has none."""
    rows = report.best_first(group)
    _bars(axes, {row["loader"]: row for row in rows}, theme, 8, spread=True)
    axes.tick_params(axis="x", labelsize=7)
    first = group[0]
    better = ", less is better" if first["unit"] in report.LOWER_IS_BETTER else ""
    title = f"{first['suite']}, {first['variant']}: {first['metric']}, {first['unit']}{better}"
    axes.set_title(title, fontsize=10, loc="left")
    absent = [row["loader"] for row in group if row["median"] is None]
    if absent:
        axes.set_xlabel(f"without a figure: {', '.join(absent)}", fontsize=7, loc="left")


def _bars(
    axes: Any, rows: Mapping[str, Row], theme: Theme, fontsize: int, *, spread: bool = False
) -> list[Any]:
    """Draw a bar for each of ``rows`` under its label; ``spread``: with its rounds and its ratio.

    Returns the texts at their ends.
    """
    peer = report.best_peer(rows.values())
    medians = [float(row["median"]) for row in rows.values()]
    rounds = [[abs(row[key] - row["median"]) for row in rows.values()] for key in ("min", "max")]
    colours, texts = [], []
    for row in rows.values():
        others = theme.best if row is peer else theme.others
        colours.append(others if report.is_peer(row["loader"]) else theme.ours)
        times = report.ratio(row, peer) if spread else None
        texts.append(report.shown(row["median"]) + ("" if times is None else f"   {times:.2f} x"))
    bars = axes.barh(
        range(len(rows)),
        medians,
        xerr=rounds if spread else None,
        color=colours,
        error_kw={"linewidth": 0.8, "ecolor": theme.text},
        height=0.75 if spread else 0.8,
    )
    axes.set_yticks(range(len(rows)), list(rows), fontsize=fontsize)
    axes.invert_yaxis()
    axes.set_xlim(min(0.0, *medians), max(row["max"] for row in rows.values()) * 1.25 or 1)
    said: list[Any] = axes.bar_label(bars, texts, padding=3, fontsize=fontsize)
    return said
