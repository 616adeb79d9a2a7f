"""A timeline as a picture: a row for each thread, a colour for each thing it did, and a legend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from . import svg

if TYPE_CHECKING:
    from .timeline import Span

_WIDTH, _LEFT, _ROW, _GAP = 640, 130, 24, 12  # pixels
_LEAST = 0.5  # pixels: shorter blocks are drawn as long, and what they cover is left out
_COLOURS = {
    "wait": "#e5534b", "step": "#46954a", "decode": "#4c8de0", "resize": "#986ee2",
    "read": "#c69026", "check": "#cc6b2c", "augment": "#c96198", "collate": "#2f9c95",
    "fetch": "#4c8de0", "network": "#c69026", "copy": "#c69026", "device": "#46954a",
}  # fmt: skip
_OTHER = "#8b949e"  # what takes little: the order, parameters


def picture(spans: Sequence[Span], name_of: Callable[[int], str]) -> str:
    """``spans`` as SVG: by thread and time, an enclosing one before those it encloses."""
    threads = dict.fromkeys(span[1] for span in spans)
    # The loop comes first, then who makes batches.
    looped = {span[1] for span in spans if span[0] in ("wait", "step")}
    rows = sorted(threads, key=lambda thread: (thread not in looped, name_of(thread)))
    begin = min((span[2] for span in spans), default=0)
    length = max(1, max((span[3] for span in spans), default=0) - begin)
    scale = (_WIDTH - _LEFT - _GAP) / length
    parts = []
    for place, thread in enumerate(rows):
        y = _GAP + place * _ROW
        shown = "the loop" if thread in looped else name_of(thread).removeprefix("fastload ")
        parts.append(svg.text(_LEFT - 8, y + 15, shown, anchor="end"))
        merged: list[tuple[str, float, float]] = []
        for name, of, first, last, _ in spans:
            if of == thread:
                _add(merged, name, (first - begin) * scale, (last - begin) * scale)
        for name, left, right in merged:
            colour = _COLOURS.get(name, _OTHER)
            parts.append(svg.block(_LEFT + left, y, right - left, _ROW - 4, colour))
    bottom = _GAP + len(rows) * _ROW + 12
    parts.append(svg.text(_LEFT, bottom, "0", "soft"))
    parts.append(svg.text(_WIDTH - _GAP, bottom, f"{length / 1e6:,.1f} ms", "soft", "end"))
    named = [name for name in _COLOURS if any(span[0] == name for span in spans)]
    others = any(span[0] not in _COLOURS for span in spans)
    x, y = _GAP, bottom + 14
    for name, colour in [
        *((name, _COLOURS[name]) for name in named),
        *[("other", _OTHER)] * others,
    ]:
        if x + 22 + 8 * len(name) > _WIDTH - _GAP:
            x, y = _GAP, y + 20
        parts += [svg.block(x, y, 12, 12, colour), svg.text(x + 17, y + 11, name)]
        x += 34 + 8 * len(name)
    return svg.card(_WIDTH, y + 12 + _GAP, parts)


def _add(blocks: list[tuple[str, float, float]], name: str, left: float, right: float) -> None:
    """Append a block, unless it is seen already: a picture has few, however long the run."""
    if blocks:
        before, begin, end = blocks[-1]
        if before == name and left - end < _LEAST:
            blocks[-1] = (name, begin, max(end, right))
            return
        if right <= end and right - left < _LEAST:
            return
    blocks.append((name, left, max(right, left + _LEAST)))
