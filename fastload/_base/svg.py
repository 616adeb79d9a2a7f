"""Pictures as SVG: a card with its own background, which is legible on light and on dark pages.

Its colours follow the reader's system, all of them together: whatever colour the page around it
has, text and background fit.
"""

from __future__ import annotations

from html import escape

_STYLE = """
text { font: 13px system-ui, sans-serif; fill: var(--text) }
.mono { font-family: ui-monospace, Menlo, Consolas, monospace; white-space: pre }
.bold { font-weight: 600 } .soft { fill: var(--soft) } .code { fill: var(--code) }
.card { fill: var(--card); stroke: var(--line) }
.box { fill: var(--box); stroke: var(--line) } .line { stroke: var(--soft); fill: none }
:root { --text: #1f2328; --soft: #59636e; --code: #0550ae; --card: #ffffff; --box: #f6f8fa;
        --line: #d1d9e0 }
@media (prefers-color-scheme: dark) {
  :root { --text: #f0f6fc; --soft: #9198a1; --code: #79c0ff; --card: #0d1117; --box: #151b23;
          --line: #3d444d }
}
"""


def card(width: int, height: int, parts: list[str]) -> str:
    """A picture of so many pixels with ``parts``, which are elements of SVG, on a card."""
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    back = f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{_STYLE}</style>'
    return "\n".join([head, back, *parts, "</svg>"]) + "\n"


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """``words`` at ``x``, whose baseline is at ``y``; ``kind`` is a class of the style."""
    styled = f' class="{kind}"' * bool(kind) + f' text-anchor="{anchor}"' * (anchor != "start")
    return f'<text x="{x:g}" y="{y:g}"{styled}>{escape(words)}</text>'


def block(x: float, y: float, width: float, height: float, colour: str) -> str:
    """A rectangle filled with ``colour``."""
    return f'<rect x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{height:g}" fill="{colour}"/>'
