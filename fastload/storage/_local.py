"""Local paths and URLs."""

from __future__ import annotations

import os

from .._printable import URL
from ..errors import UsageError


def is_url(path: object) -> bool:
    return isinstance(path, str) and URL.match(path) is not None


def local_path(path: str | os.PathLike[str]) -> str:
    """``path``, absolute, with the user's folder for ``~``."""
    text = os.fspath(path)
    if is_url(text):
        raise UsageError(
            f"expected a local path, got the URL {text!r}: fetch it first "
            "(fastload pack URL NAME.lmdb); a store at a URL can be read and packed, not changed"
        )
    if not text or "\0" in text:
        raise UsageError(f"expected a path, got {text!r}")
    return os.path.abspath(os.path.expanduser(text))
