"""A timeline as a picture: a row for each thread, a colour for each thing it did, and a legend.

It is SVG: a card with its own background, which is legible on light and on dark pages. Its colours
follow the reader's system, all of them together: whatever colour the page around it has, text and
background fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING

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

_STYLE = """
text { font: 13px system-ui, sans-serif; fill: var(--text) }
.soft { fill: var(--soft) }
.card { fill: var(--card); stroke: var(--line) }
:root { --text: #1f2328; --soft: #59636e; --card: #ffffff; --line: #d1d9e0 }
@media (prefers-color-scheme: dark) {
  :root { --text: #f0f6fc; --soft: #9198a1; --card: #0d1117; --line: #3d444d }
}
"""


def picture(spans: Sequence[Span], name_of: Callable[[int], str]) -> str:
    """``spans`` as SVG: by thread and time, an enclosing one before those it encloses."""
    threads = dict.fromkeys(span[1] for span in spans)
    # The loop comes first, then who makes batches.
    looped = {span[1] for span in spans if span[0] in ("wait", "step")}
    rows = sorted(threads, key=lambda thread: (thread not in looped, name_of(thread)))
    begin = min((span[2] for span in spans), default=0)
    length = max(1, max((span[3] for span in spans), default=0) - begin)
    scale = (_WIDTH - _LEFT - _GAP) / length
    elements = []
    for row, thread in enumerate(rows):
        y = _GAP + row * _ROW
        shown = "the loop" if thread in looped else name_of(thread).removeprefix("fastload ")
        elements.append(_text(_LEFT - 8, y + 15, shown, anchor="end"))
        merged: list[tuple[str, float, float]] = []
        for name, of, first, last, _ in spans:
            if of == thread:
                _add(merged, name, (first - begin) * scale, (last - begin) * scale)
        for name, left, right in merged:
            colour = _COLOURS.get(name, _OTHER)
            elements.append(_block(_LEFT + left, y, right - left, _ROW - 4, colour))
    bottom = _GAP + len(rows) * _ROW + 12
    elements.append(_text(_LEFT, bottom, "0", "soft"))
    elements.append(_text(_WIDTH - _GAP, bottom, f"{length / 1e6:,.1f} ms", "soft", "end"))
    named = [name for name in _COLOURS if any(span[0] == name for span in spans)]
    others = any(span[0] not in _COLOURS for span in spans)
    x, y = _GAP, bottom + 14
    for name, colour in [
        *((name, _COLOURS[name]) for name in named),
        *[("other", _OTHER)] * others,
    ]:
        if x + 22 + 8 * len(name) > _WIDTH - _GAP:
            x, y = _GAP, y + 20
        elements += [_block(x, y, 12, 12, colour), _text(x + 17, y + 11, name)]
        x += 34 + 8 * len(name)
    return _card(_WIDTH, y + 12 + _GAP, elements)


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


def _card(width: int, height: int, elements: list[str]) -> str:
    """A picture of so many pixels with ``elements``, which are elements of SVG, on a card."""
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    back = f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{_STYLE}</style>'
    return "\n".join([head, back, *elements, "</svg>"]) + "\n"


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """``words`` at ``x``, whose baseline is at ``y``; ``kind`` is a class of the style."""
    styled = f' class="{kind}"' * bool(kind) + f' text-anchor="{anchor}"' * (anchor != "start")
    return f'<text x="{x:g}" y="{y:g}"{styled}>{escape(words)}</text>'


def _block(x: float, y: float, width: float, height: float, colour: str) -> str:
    """A rectangle filled with ``colour``."""
    return f'<rect x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{height:g}" fill="{colour}"/>'
