"""``silence``: ignore warnings for a while; Python still knows which ones it has given."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator
from typing import Any, cast


@contextlib.contextmanager
def silence(message: str = "", category: type[Warning] = Warning) -> Iterator[None]:
    """Ignore warnings of ``category`` whose text begins with ``message``, a regular expression.

    Unlike ``warnings.catch_warnings``, which makes Python forget what it has given: a loop would
    give each of its own warnings once more. Threads may do this at the same time; what others warn
    of meanwhile is ignored, too.
    """
    entry = ("ignore", re.compile(message, re.IGNORECASE), category, None, 0)  # as nobody else's
    filters = cast(list[Any], warnings.filters)
    filters.insert(0, entry)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # somebody has reset them
            filters.remove(entry)
