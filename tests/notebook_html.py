"""Reads what a notebook shows, and stands in for the notebook."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import pytest

VOID = ("img",)  # elements without an end tag


class Cells(HTMLParser):
    """The rows of all tables, as text; raises where tags do not match."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.widths: list[str] = []
        self.images: list[dict[str, str]] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[Any]) -> None:
        if tag == "img":
            self.images.append(dict(attrs))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")
        if tag == "span":
            self.widths.append(dict(attrs)["style"].rpartition("width:")[2])

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data


def rows(thing: Any) -> dict[str, str]:
    """Heading to cell of what a notebook shows for ``thing``."""
    return dict(Cells(thing._repr_html_()).rows)


def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, str]]]:
    """Make this process look like a notebook's kernel.

    Returns:
        An entry for each output below the cell: the states that it had.
    """
    outputs: list[list[dict[str, str]]] = []

    def display(shown: dict[str, str], *, raw: bool, display_id: bool) -> SimpleNamespace:
        assert raw and display_id
        states = [shown]
        outputs.append(states)
        return SimpleNamespace(update=lambda shown, *, raw: states.append(shown))

    shell = SimpleNamespace(config={"IPKernelApp": {}})
    ipython = SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)  # type: ignore[arg-type]
    there = SimpleNamespace(display=display)
    monkeypatch.setitem(sys.modules, "IPython.display", there)  # type: ignore[arg-type]
    return outputs
