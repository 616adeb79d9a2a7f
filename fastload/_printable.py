"""Text out of files, as it may be shown: nothing in it is carried out by a terminal."""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    """``text`` with control and other invisible characters, and what is no Unicode, as escapes.

    Example:
        >>> printable("cat\\x1b[2J")
        'cat\\\\x1b[2J'

    Args:
        text: a name, or a message that may hold names.
        keep: characters that stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in keep else one.encode("unicode_escape").decode()
        for one in text
    )
