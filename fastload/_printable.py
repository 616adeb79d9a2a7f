"""Text for messages: what a terminal would execute is escaped, and credentials are left out."""

from __future__ import annotations

import re

# A password may have any character that was not escaped, a slash too: keys of S3 do.
USER = re.compile(r"(?<=://)(?:[^/\s]*|[^/\s:@\[]+:(?!\d+/)[^\s@]*)@")
_QUERY = re.compile(r"(://[^\s\"')?]*)\?[^\s\"')]*")


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


def without_credentials(text: str) -> str:
    """``text`` with the URLs in it without user names, passwords and queries.

    Example:
        >>> without_credentials("cannot read 'https://me:secret@host/a.tar?token=1': no network")
        "cannot read 'https://host/a.tar': no network"
    """
    return _QUERY.sub(r"\1", USER.sub("", text)) if "://" in text else text
