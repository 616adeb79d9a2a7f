"""Text for messages: what a terminal would execute is escaped, and credentials are left out."""

from __future__ import annotations

import itertools
import re

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")  # what a URL begins with
_CONTAINERS = ("abfs", "abfss")  # before "@" stands where the data are, not who reads them
_WITHOUT_PORTS = ("s3", "s3a", "gs", "memory")
# Only the web has queries: elsewhere "?" is a part of a name or a pattern. That what follows the
# scheme always matches makes it fast.
_QUERY = re.compile(r"(https?://[^\s\"')?#]*)([?#][^\s\"')]+)?", re.IGNORECASE)


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
    """``text`` with the URLs in it without user names and passwords, and the web's without queries.

    It takes time in proportion to the text, whatever that is: some of it comes from the data.

    Example:
        >>> without_credentials("cannot read 'https://me:secret@host/a.tar?token=1': no network")
        "cannot read 'https://host/a.tar': no network"
    """
    if "://" not in text:
        return text
    pieces = text.split("://")
    shown = pieces[:1]
    for before, behind in itertools.pairwise(pieces):
        shown.append(behind[len(user_of(before, behind)) :])
    return _QUERY.sub(r"\1", "://".join(shown))


def user_of(before: str, behind: str) -> str:
    """User name and password with their "@", of a URL with ``before`` and ``behind`` its "://".

    A password may have any character that was not escaped, a slash too: keys of S3 do.
    """
    authority, slash, path = re.split(r"\s", behind, maxsplit=1)[0].partition("/")
    scheme = re.split("[^a-z0-9+.-]", before[-9:].lower())[-1]  # longer ones are none of those
    user, at, _ = authority.rpartition("@")
    if at:
        return "" if scheme in _CONTAINERS and ":" not in user else user + at
    host, colon, port = authority.partition(":")
    has_port = scheme not in _WITHOUT_PORTS and port.isdecimal()
    if slash and colon and not has_port and not host.startswith("["):
        rest, at, _ = path.partition("@")
        return f"{authority}/{rest}@" if at else ""
    return ""
