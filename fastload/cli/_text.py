"""Text as wide as the terminal."""

from __future__ import annotations

import shutil
import textwrap
from typing import TextIO


def wrapped(text: str, stream: TextIO, heading: str = "") -> str:
    """``text`` in lines that the terminal ``stream`` breaks no word of; in a pipe as it is.

    A terminal breaks a long line wherever its edge is. Each line is a paragraph. What is to be
    copied stays whole: long paths, the line to type next, and lines that begin with spaces, such as
    a traceback's. ``heading``: before the first line; the others are indented as far.
    """
    if not stream.isatty():
        return heading + text
    columns = shutil.get_terminal_size().columns
    lines = []
    for line in text.split("\n"):
        if line.startswith((" ", "type next: ")):
            lines.append(line)
            continue
        indent = heading if not lines else " " * len(heading)
        lines += textwrap.wrap(
            line,
            columns,
            initial_indent=indent,
            subsequent_indent=" " * len(heading),
            break_long_words=False,
            break_on_hyphens=False,
        ) or [indent]
    return "\n".join(lines)
