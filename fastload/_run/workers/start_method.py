"""How worker processes start, and what new ones have from another process when they do."""

from __future__ import annotations

import multiprocessing
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from typing import Final

_PRELOADED: Final = f"{__package__}.preloaded"


def is_prepared(wanted: str | BaseContext | None) -> bool:
    """Whether new workers have what defers images: from this process, or from a fork server.

    A fork server that does not run yet is told to import ``preloaded.py``.

    Args:
        wanted: as DataLoader's ``multiprocessing_context``.
    """
    base = wanted if isinstance(wanted, BaseContext) else multiprocessing.get_context(wanted)
    method = base.get_start_method()
    return method == "fork" or (method == "forkserver" and _is_server_prepared())


def _is_server_prepared() -> bool:
    # There is no public way to see what the program wants to have imported, nor whether it runs.
    server = getattr(forkserver, "_forkserver", None)
    modules = getattr(server, "_preload_modules", None)
    if not isinstance(modules, list):
        return False
    if _PRELOADED not in modules:
        if getattr(server, "_forkserver_pid", 0) is not None:
            return False
        multiprocessing.set_forkserver_preload([*modules, _PRELOADED])
    return True
