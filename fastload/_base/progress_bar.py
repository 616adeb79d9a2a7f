"""Progress on stderr, by tqdm: a bar on a terminal and in notebooks, lines in pipes and logs."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

Progress = Callable[[int, "int | None", int], None]
"""Called with records done, records in all (None: not known) and their bytes."""

_LINE_EVERY_S = 10.0  # in a log
_LINE = "{desc}: {n_fmt} of {total_fmt}, {rate_noinv_fmt}{postfix}, {remaining} left"


def bar(what: str, *, unit: str, total: float | None, done: float = 0) -> Any:
    """A tqdm bar, a context manager, which leaves its last state on the screen.

    Args:
        what: is done, in a word.
        unit: of ``total``, in the plural.
        total: when all is done; None: not known.
        done: before it begins.
    """
    notebook = _in_notebook()
    if notebook:  # the form with widgets, where there are some
        from tqdm.auto import tqdm
    else:
        from tqdm.std import tqdm

    options: dict[str, Any] = {}
    if not notebook and sys.stderr.isatty():
        options = _size()
    elif not notebook:
        options = {"file": _Lines(), "mininterval": _LINE_EVERY_S, "bar_format": _LINE}
    # A class of our own without the thread that looks whether a bar hangs, and without a lock that
    # other processes share: it would be a semaphore of the system's.
    kind: Any = type("Bar", (tqdm,), {"monitor_interval": 0})
    kind.set_lock(threading.RLock())
    return kind(desc=what, unit=f" {unit}", total=total, initial=done, miniters=1, **options)


def wanted(progress: bool | None) -> bool:
    """Whether to show progress; None: where somebody is watching."""
    return sys.stderr.isatty() or _in_notebook() if progress is None else progress


@contextlib.contextmanager
def reporting(what: str, progress: Progress | bool | None) -> Iterator[Progress | None]:
    """What to call with each progress, for as long as the block lasts; None: nothing.

    Args:
        what: is done, in a word.
        progress: of the caller: a function of its own, or whether to show a bar (see ``wanted``).
    """
    if progress is not None and not isinstance(progress, bool):
        yield progress
    elif not wanted(progress):
        yield None
    else:
        with contextlib.ExitStack() as stack:
            shown: Any = None

            def report(done: int, total: int | None, nbytes: int) -> None:
                nonlocal shown
                if shown is None:  # what a resumed run found done says nothing about its speed
                    shown = stack.enter_context(bar(what, unit="images", total=total, done=done))
                shown.set_postfix_str(human(nbytes), refresh=False)
                shown.update(done - shown.n)

            yield report


def human(nbytes: float) -> str:
    """``nbytes`` in a unit that fits: 1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config


def _size() -> dict[str, Any]:
    """That of a terminal which does not know it, where tqdm would draw nothing."""
    with contextlib.suppress(OSError, ValueError):
        if os.get_terminal_size(sys.stderr.fileno()).columns:
            return {}
    return {"ncols": 80, "nrows": 24}


class _Lines(io.TextIOBase):
    """stderr without control characters: each state that tqdm draws over the last is a line.

    But for the first, which is drawn before there is anything to tell.
    """

    def __init__(self) -> None:
        self._first = True

    def write(self, text: str) -> int:
        """Write a state as a line."""
        line = text.strip()
        if line and not self._first:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
        self._first = self._first and not line
        return len(text)
