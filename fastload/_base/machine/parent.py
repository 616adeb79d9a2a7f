"""The process that started this one with ``multiprocessing``."""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.process import BaseProcess

_LOOK_S = 5.0


def is_fork_servers() -> bool:
    """Whether a fork server has forked this process, so that ``os.getppid`` is not its parent."""
    parent = multiprocessing.parent_process()
    return parent is not None and parent.pid != os.getppid()


def end_with_it() -> None:
    """Have this process end when its parent has ended, also where that was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "called in a process of multiprocessing"
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    forked_by = os.getppid()
    while parent.is_alive() and os.getppid() == forked_by:
        parent.join(_LOOK_S)  # returns at once when the parent ends, unless a child of it lives on
    os._exit(1)
