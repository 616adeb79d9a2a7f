"""Shows the result of autotune: a heat map as a self-contained HTML page."""

from __future__ import annotations

import html
import os
from collections.abc import Mapping
from pathlib import Path

from .result import TIED, Tried, Tuning

EPOCH = "in a later epoch, when the data has been read before"
"""The kind of epoch for which all figures hold."""

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em;
       color: #222 }
table { border-collapse: collapse; margin: 1em 0 }
td, th { padding: .4em .8em; border: 1px solid #ddd; text-align: right }
th { background: #f4f4f4 } .best { outline: 3px solid #d62728 } .left { text-align: left }
.none { color: #999; background: #fafafa }
"""


def places(tuning: Tuning) -> list[Tried]:
    """The fastest setting measured for each num_workers and batch_size, the fastest first."""
    tried_at: dict[tuple[int, int], Tried] = {}
    for tried in sorted(tuning.tried, key=lambda tried: -tried.images_per_s):
        if tried.images_per_s:
            tried_at.setdefault((tried.point.num_workers, tried.point.batch_size), tried)
    return list(tried_at.values())


def summary(tuning: Tuning) -> list[tuple[str, str]]:
    """The result as rows of (name, words)."""
    best = f"best for batch_size={tuning.batch_size}, the one in use"
    rows = [
        (
            best,
            f"{tuning.best}: {tuning.images_per_s:,.0f} images/s{_filling(tuning)}{_alone(tuning)}",
        ),
        ("smallest within 3 %", str(tuning.smallest)),
        ("chosen", str(tuning.chosen)),
    ]
    if tuning.busy:
        rows.insert(0, ("the machine was busy", busy(tuning)))
    else:
        words = (
            f"{tuning.gain:.1f} x ({_rounds(tuning)}): {tuning.uncached_images_per_s:,.0f} "
            f"images/s ({tuning.uncached}) against {tuning.torch_images_per_s:,.0f} "
            f"(num_workers=0); both without a cache, {EPOCH}"
        )
        rows += [("best of all", _fastest(tuning)), ("against torch's defaults", words)]
    if tuning.step_images_per_s is not None and tuning.loader_images_per_s is not None:
        rows.append(("the step alone", f"{tuning.step_images_per_s:,.0f} images/s: the limit"))
        rows.append(("the loader alone", f"{tuning.loader_images_per_s:,.0f} images/s"))
    rows.append(("bound by", f"{tuning.bound}: {tuning.why}"))
    return rows


def _rounds(tuning: Tuning) -> str:
    """How the comparison was made."""
    if not tuning.ratios:
        return "from a few of torch's samples: the budget was too short to measure both in turn"
    least, most, count = min(tuning.ratios), max(tuning.ratios), len(tuning.ratios)
    return f"{least:.1f} to {most:.1f}, in turn, in {count} round{'s' * (count > 1)}"


def busy(tuning: Tuning) -> str:
    """A warning about figures measured while other programs used the machine."""
    return (
        f"other programs took {tuning.others:.0%} of its CPUs: images/s are too low, and "
        "another setting may be best; measure again when it is idle"
    )


def _filling(tuning: Tuning) -> str:
    filling = next(one for one in tuning.tried if one.point == tuning.best).filling_images_per_s
    if filling is None:
        return ""
    return f" once the cache is full, {filling:,.0f} in the epoch that fills it"


def _alone(tuning: Tuning) -> str:
    """That nothing was compared."""
    measured = [tried for tried in tuning.tried if tried.images_per_s]
    return "" if len(measured) > 1 else "; no other was measured: the budget was too short"


def _fastest(tuning: Tuning) -> str:
    """The fastest setting, and how its batch size affects training."""
    if _alone(tuning):
        return "not known: no other setting was measured"
    gain = tuning.fastest_images_per_s / tuning.images_per_s
    if tuning.fastest.batch_size == tuning.batch_size or gain < 1 + TIED:
        return "the same: no other batch size is clearly faster"
    ratio = tuning.fastest.batch_size / tuning.batch_size
    steps = f"{ratio:.3g} times fewer" if ratio > 1 else f"{1 / ratio:.3g} times as many"
    return (
        f"{tuning.fastest}: {tuning.fastest_images_per_s:,.0f} images/s, "
        f"{gain:.2f} x; but it trains differently: "
        f"{steps} steps per epoch, gradients averaged over {tuning.fastest.batch_size} samples; "
        f"adapt the learning rate (times {ratio:.3g} by the linear rule) and everything counted in "
        "steps, such as its schedule"
    )


def write_html(tuning: Tuning, path: str | os.PathLike[str]) -> None:
    """Write a self-contained page: the summary, a heat map, and every setting measured."""
    title = html.escape(f"fastload autotune: {tuning.source}")
    body = [f"<h1>{title}</h1>", "<table>"]
    for name, words in summary(tuning):
        body.append(
            f'<tr><th class="left">{html.escape(name)}</th>'
            f'<td class="left">{html.escape(words)}</td></tr>'
        )
    body += [
        "</table>",
        f"<h2>images/s, {EPOCH}</h2>",
        *heat_map(tuning),
        "<h2>every setting</h2>",
    ]
    body += ["<table>", "<tr><th>setting</th><th>images/s</th><th>&plusmn;</th></tr>"]
    for tried in sorted(tuning.tried, key=lambda tried: -tried.images_per_s):
        if tried.reason:
            figures = f'<td class="left none" colspan="2">{html.escape(tried.reason)}</td>'
        else:
            error = "" if tried.error is None else f"{tried.error:.1%}"
            figures = f"<td>{tried.images_per_s:,.0f}</td><td>{error}</td>"
        body.append(f'<tr><td class="left">{html.escape(str(tried.point))}</td>{figures}</tr>')
    body += ["</table>", f"<p>{html.escape(_machine(tuning.machine))}</p>"]
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head><body>{''.join(body)}</body></html>"
    )
    Path(path).write_text(page, encoding="utf-8")


def heat_map(tuning: Tuning) -> list[str]:
    """The lines of a table in HTML: images/s by num_workers and batch size."""
    rate_at = {
        (one.point.num_workers, one.point.batch_size): one.images_per_s for one in places(tuning)
    }
    workers = sorted({place[0] for place in rate_at})
    sizes = sorted({place[1] for place in rate_at})
    best = max(rate_at.values())
    rows = ['<table id="heatmap">', "<tr><th>num_workers \\ batch_size</th>"]
    rows += [f"<th>{size}</th>" for size in sizes] + ["</tr>"]
    for number in workers:
        rows.append(f"<tr><th>{number}</th>")
        for size in sizes:
            rate = rate_at.get((number, size))
            if rate is None:
                rows.append('<td class="none">-</td>')
                continue
            mark = ' class="best"' if rate == best else ""
            rows.append(f'<td{mark} style="background:{_colour(rate / best)}">{rate:,.0f}</td>')
        rows.append("</tr>")
    return [*rows, "</table>"]


def _colour(share: float) -> str:
    """From white (0) to green (1)."""
    return f"hsl(140, 60%, {100 - 45 * share:.0f}%)"


def _machine(fields: Mapping[str, object]) -> str:
    return ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in fields.items())
