"""Escapes text from files, so that a terminal shows it and does not execute it."""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    """``text`` with control characters, other invisible characters and invalid Unicode escaped.

    Example:
        >>> printable("cat\\x1b[2J")
        'cat\\\\x1b[2J'

    Args:
        text: a name, or a message that may contain names.
        keep: characters that are not escaped.
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in keep else one.encode("unicode_escape").decode()
        for one in text
    )
