"""What a notebook and a terminal show for a loader, ``explain()`` and ``stats()``.

A notebook shows tables and bars, as HTML; a terminal the same as text. ``explain()`` is a str and
``stats()`` a dict all the same.
"""

from __future__ import annotations

from html import escape
from typing import cast

from .._base.notebook import Row, bar, table
from ..hints import Stats

_WIDEST = 12  # characters of the longest bar


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
    """The dict of ``stats()``, shown as the figures that matter, and bars for stages."""

    def __repr__(self) -> str:
        lines = _figures(cast(Stats, self))
        width = max(len(name) for name, _, _ in lines)
        return "\n".join(
            f"{name:<{width}}  {'' if share is None else '#' * round(_WIDEST * share) + ' '}{words}"
            for name, words, share in lines
        )

    def _repr_html_(self) -> str:
        return table(figure_rows(cast(Stats, self)))


def figure_rows(stats: Stats) -> list[Row]:
    """The figures that matter, and a bar for each stage, the longest first."""
    return [
        (name, escape(words) if share is None else bar(share, words))
        for name, words, share in _figures(stats)
    ]


def _figures(stats: Stats) -> list[tuple[str, str, float | None]]:
    """The figures that matter: a heading, words, and the length of a bar, 0 to 1, or None."""
    speed = f"{stats['images_per_s']:,.0f} images/s"
    if stats["mb_per_s"]:  # 0.0: the sizes of the records are not known
        speed += f", {stats['mb_per_s']:,.1f} MB/s"
    took = f"{stats['images']:,} images in {stats['elapsed_s']:,.1f} s"
    rows: list[tuple[str, str, float | None]] = [
        ("engine", stats["engine"], None),
        ("speed", f"{speed}; {took}", None),
        ("waiting", f"{stats['wait_share']:.0%} of the time", stats["wait_share"]),
        ("bound by", f"{stats['bound']}: {stats['why']}", None),
    ]
    spent = {name: value for name, value in stats["stages_s"].items() if value > 0}
    longest = max(spent.values(), default=0.0)
    for name, value in sorted(spent.items(), key=lambda item: -item[1]):
        rows.append((f"stage {name}", f"{value:,.3f} s", value / longest))
    if stats["images_opened"]:
        deferred = f"{stats['images_deferred']:,} deferred"
        rows.append(("images opened", f"{stats['images_opened']:,}, {deferred}", None))
    if stats["cache_hits"] or stats["cache_misses"]:
        hits = f"{stats['cache_hits']:,} hits, {stats['cache_misses']:,} misses"
        rows.append(("cache", f"{hits}, {stats['cache_nbytes'] / 1e6:,.1f} MB", None))
    for error in stats["errors"]:
        words = f"{error['file'] or ''} {error['error']}: {error['action']}"
        rows.append((f"bad sample {error['index']}", words.strip(), None))
    return rows


def as_figures(stats: Stats) -> Stats:
    """The same dict, which a notebook shows as a table."""
    return cast(Stats, Figures(stats))


def loader_text(title: str, explanation: str, stats: Stats) -> str:
    """A loader in a terminal: what ``loader_html`` shows."""
    figures = [repr(stats)] if stats["images"] or stats["errors"] else []
    return "\n".join([title, *(part.replace("\n", "\n  ") for part in (explanation, *figures))])


def loader_html(title: str, explanation: str, stats: Stats) -> str:
    """A loader: its title, what ``explain()`` says, and, once it has run, ``stats()``."""
    parts = [f"<b>{escape(title)}</b>", Explanation(explanation)._repr_html_()]
    if stats["images"] or stats["errors"]:
        parts.append(Figures(stats)._repr_html_())
    return "\n".join(parts)
