"""The progress of a long command on stderr: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_LINE_EVERY_S = 5.0


class ProgressBar:
    """A context manager to call with (done, total, nbytes).

    Args:
        what: name of the work, shown before the bar.
        quiet: show nothing.
    """

    def __init__(self, what: str, *, quiet: bool = False) -> None:
        self._what = what
        self._quiet = quiet
        self._started = self._last_line = time.monotonic()
        self._first: int | None = None
        self._bar: Progress | None = None
        if sys.stderr.isatty() and not quiet:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task(what, total=None, rate="")

    def __enter__(self) -> ProgressBar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int | None, nbytes: int) -> None:
        """Show that ``done`` of ``total`` images (None: not known) are done, ``nbytes`` written."""
        if self._quiet:
            return
        now = time.monotonic()
        if self._first is None:  # what a resumed run found done is not speed
            self._first = done if done > 64 else 0
        seconds = max(now - self._started, 1e-6)
        rate = (done - self._first) / seconds
        speed = f"{rate:,.0f} images/s, {human(nbytes)}"
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, rate=speed)
        elif now - self._last_line >= _LINE_EVERY_S:
            self._last_line = now
            left = "time left unknown"
            if total is not None and rate > 0:
                left = f"{(total - done) / rate:,.0f} s left"
            shown = f"{done:,}" if total is None else f"{done:,} of {total:,}"
            sys.stderr.write(f"{self._what}: {shown}, {speed}, {left}\n")
            sys.stderr.flush()


def human(nbytes: float) -> str:
    """``nbytes`` in a unit that fits: 1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"
