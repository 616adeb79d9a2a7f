"""Keeps the output of other code away from stdout."""

from __future__ import annotations

import contextlib
import sys
from contextlib import AbstractContextManager


def kept_for_json(as_json: bool) -> AbstractContextManager[object]:
    """Redirects what the user's modules print to stderr: stdout is for one JSON document."""
    return contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
