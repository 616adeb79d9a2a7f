"""Progress on stderr by tqdm: a bar on a terminal and in notebooks, lines in pipes and logs."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from .byte_sizes import human
from .notebook import in_notebook

Progress = Callable[[int, "int | None", int], None]
"""Called with the number of records done, their total (None: unknown), and the bytes done."""

_LINE_EVERY_S = 10.0  # in a log
_LINE = "{desc}: {n_fmt} of {total_fmt}, {rate_noinv_fmt}{postfix}, {remaining} left"
# Seconds are their own rate, and the time that is left.
_SECONDS_LINE = "{desc}: {n:.0f} of {total_fmt} s"
# Figures behind this bar say how fast it is.
_FIGURES_BAR = (
    "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
)
_SECONDS_BAR = "{desc}: {percentage:3.0f}%|{bar}| {n:.0f} of {total_fmt} s"


class Bar(Protocol):
    """The part of a tqdm bar that is used here; tqdm publishes no types."""

    n: float
    total: float | None
    format_dict: dict[str, Any]
    format_meter: Callable[..., str]

    def __enter__(self) -> Bar: ...

    def __exit__(self, *raised: object) -> None: ...

    def update(self, n: float) -> object:
        """Advance by ``n`` units."""

    def set_description_str(self, desc: str, refresh: bool = True) -> None:
        """Show ``desc`` before the bar."""

    def set_postfix_str(self, s: str, refresh: bool = True) -> None:
        """Show ``s`` after the figures."""


def bar(label: str, *, unit: str, total: float | None, done: float = 0) -> Bar:
    """A tqdm bar with a label, a context manager. Its last state stays on the screen.

    ``unit`` of ``total`` and ``done`` is in the plural; "s": the bar shows the time that is spent.
    """
    notebook = in_notebook()
    if notebook:  # draws widgets if they are installed
        from tqdm.auto import tqdm
    else:
        from tqdm.std import tqdm

    seconds = unit == "s"
    options: dict[str, object] = {"bar_format": _SECONDS_BAR} if seconds else {}
    if unit == "batches" and total is not None and not notebook:
        options["bar_format"] = _FIGURES_BAR
    if not notebook and sys.stderr.isatty():
        options.update(_size())
    elif not notebook:
        line = _SECONDS_LINE if seconds else _LINE
        options = {"file": _Lines(), "mininterval": _LINE_EVERY_S, "bar_format": line}
    # A subclass, so that tqdm itself keeps its settings: without the thread that monitors stalled
    # bars, and with a thread lock instead of the default one, which takes a system semaphore.
    kind = type("Bar", (tqdm,), {"monitor_interval": 0})
    kind.set_lock(threading.RLock())  # type: ignore[attr-defined]
    tqdm_bar: Bar = kind(
        desc=label, unit=f" {unit}", total=total, initial=done, miniters=1, **options
    )
    return tqdm_bar


def room(shown: Bar) -> int | None:
    """Columns of the terminal that are left for a postfix; None: there is no limit."""
    ncols = getattr(shown, "ncols", None)  # a notebook's widget has none
    if not ncols:
        return None
    line = shown.format_meter(**{**shown.format_dict, "ncols": None, "postfix": ""})
    return max(0, int(ncols) - len(line) - len(", "))


def wanted(progress: bool | None) -> bool:
    """Whether to show progress; None: only on a terminal or in a notebook."""
    return sys.stderr.isatty() or in_notebook() if progress is None else progress


@contextlib.contextmanager
def reporting(label: str, progress: Progress | bool | None) -> Iterator[Progress | None]:
    """A context with the function to call after each step, or None if nothing is shown.

    ``progress`` is the caller's own function, or whether to show a bar with ``label``: see
    ``wanted``.
    """
    if progress is not None and not isinstance(progress, bool):
        yield progress
    elif not wanted(progress):
        yield None
    else:
        with contextlib.ExitStack() as stack:
            shown: Bar | None = None

            def report(done: int, total: int | None, nbytes: int) -> None:
                nonlocal shown
                if shown is None:  # records done before a resume must not count towards the speed
                    shown = stack.enter_context(bar(label, unit="images", total=total, done=done))
                shown.set_postfix_str(human(nbytes), refresh=False)
                shown.update(done - shown.n)

            yield report


def _size() -> dict[str, int]:
    """A size to assume if the terminal reports none: tqdm would draw nothing."""
    with contextlib.suppress(OSError, ValueError):
        if os.get_terminal_size(sys.stderr.fileno()).columns:
            return {}
    return {"ncols": 80, "nrows": 24}


class _Lines(io.TextIOBase):
    """stderr for logs: each state that tqdm would draw over the previous one becomes a line.

    The first state is left out: tqdm draws it before anything is done.
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
