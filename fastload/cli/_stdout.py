"""What is printed by others while a command works."""

from __future__ import annotations

import contextlib
import sys
from contextlib import AbstractContextManager


def kept_for_json(as_json: bool) -> AbstractContextManager[object]:
    """Sends to stderr what the user's modules print meanwhile: stdout is for one JSON document."""
    return contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
