"""What a notebook shows for a loader, ``explain()`` and ``stats()``: tables and bars, as HTML.

Everywhere else the same objects are plain: a str, and a dict.
"""

from __future__ import annotations

from html import escape
from typing import cast

from .._base.notebook import Row, bar, table
from ..hints import Stats


class Explanation(str):
    """The text of ``explain()``; a notebook shows a table, with a row for each line."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        rows = []
        for line in self.splitlines():
            name, _, words = line.partition(":")
            rows.append((name, escape(words.strip())))
        return table(rows)


class Figures(dict[str, object]):
    """The dict of ``stats()``; a notebook shows the figures that matter, and bars for stages."""

    def _repr_html_(self) -> str:
        return table(figure_rows(cast(Stats, self)))


def figure_rows(stats: Stats) -> list[Row]:
    """The figures that matter, and a bar for each stage, the longest first."""
    rows = [
        ("engine", escape(stats["engine"])),
        (
            "speed",
            f"{stats['images_per_s']:,.0f} images/s, {stats['mb_per_s']:,.1f} MB/s; "
            f"{stats['images']:,} images in {stats['elapsed_s']:,.1f} s",
        ),
        ("waiting", bar(stats["wait_share"], f"{stats['wait_share']:.0%} of the time")),
        ("bound by", escape(f"{stats['bound']}: {stats['why']}")),
    ]
    spent = {name: value for name, value in stats["stages_s"].items() if value > 0}
    longest = max(spent.values(), default=0.0)
    for name, value in sorted(spent.items(), key=lambda item: -item[1]):
        rows.append((f"stage {name}", bar(value / longest, f"{value:,.3f} s")))
    if stats["images_opened"]:
        deferred = f"{stats['images_deferred']:,} deferred"
        rows.append(("images opened", f"{stats['images_opened']:,}, {deferred}"))
    if stats["cache_hits"] or stats["cache_misses"]:
        hits = f"{stats['cache_hits']:,} hits, {stats['cache_misses']:,} misses"
        rows.append(("cache", f"{hits}, {stats['cache_nbytes'] / 1e6:,.1f} MB"))
    for error in stats["errors"]:
        words = f"{error['file'] or ''} {error['error']}: {error['action']}"
        rows.append((f"bad sample {error['index']}", escape(words.strip())))
    return rows


def as_figures(stats: Stats) -> Stats:
    """The same dict, which a notebook shows as a table."""
    return cast(Stats, Figures(stats))


def loader_html(title: str, explanation: str, stats: Stats) -> str:
    """A loader: its title, what ``explain()`` says, and, once it has run, ``stats()``."""
    parts = [f"<b>{escape(title)}</b>", Explanation(explanation)._repr_html_()]
    if stats["images"] or stats["errors"]:
        parts.append(Figures(stats)._repr_html_())
    return "\n".join(parts)
