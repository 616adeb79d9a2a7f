"""What shows things in a notebook: tables and bars as HTML, and an output that is replaced.

Colours are shades of the page's own text colour, so that they fit light and dark notebooks.
Nothing is loaded and no script runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from html import escape
from typing import Protocol

_CELL = "text-align:left;vertical-align:top;padding:2px 10px"
_HEADING = f"{_CELL};white-space:nowrap"
_BAR = "display:inline-block;height:0.7em;background:currentColor;opacity:0.5;margin-right:6px"
_WIDEST_EM = 12.0

Row = tuple[str, str]
"""A heading, which is text, and a cell, which is HTML."""


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook. Imports nothing."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config


def table(rows: Iterable[Row]) -> str:
    """A table with a heading at the left of each row."""
    lines = [
        f'<tr><th style="{_HEADING}">{escape(name)}</th><td style="{_CELL}">{html}</td></tr>'
        for name, html in rows
    ]
    return "<table>\n" + "\n".join(lines) + "\n</table>"


def bar(share: float, words: str) -> str:
    """A bar, as long as ``share`` of the longest (0 to 1), and words behind it."""
    width = _WIDEST_EM * min(1.0, max(0.0, share))
    return f'<span style="{_BAR};width:{width:.2f}em"></span>{escape(words)}'


class _Handle(Protocol):
    """The part of IPython's DisplayHandle that is used here."""

    def update(self, shown: dict[str, str], *, raw: bool) -> None:
        """Replace what is displayed."""


class Output:
    """A place below a notebook's cell; each ``show`` replaces what is there."""

    def __init__(self) -> None:
        self._handle: _Handle | None = None

    def show(self, html: str, text: str) -> None:
        """Show ``html``, or ``text`` where the notebook shows no HTML."""
        from IPython.display import display as untyped

        display: Callable[..., _Handle] = untyped
        shown = {"text/html": html, "text/plain": text}
        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)
