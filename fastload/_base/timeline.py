"""Timelines: what each thread did when, as a file that Perfetto and chrome://tracing open.

The format is the JSON of Chrome's trace viewer ("Trace Event Format": complete events ``X``,
counters ``C``, metadata ``M``), which torch.profiler writes too. Times are microseconds since
``baseTimeNanoseconds`` of the Unix clock, the convention of torch.profiler's files, so that both
can be shown in one picture.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..errors import DataError, UsageError
from .whole_file import whole_file

_LIMIT = 2_000_000
"""Events kept at most, about 300 MB of JSON; what comes later is counted."""

TIMES = 7
"""Fields of a sample's times, as the native core writes them (_core.pyi, submit)."""

# Where the numbers of tracks that are no threads begin: Linux numbers threads below 2**22.
_TRACKS = 1 << 30

# What a track shows from the outside in: of what begins at the same time, the longer comes first.
_Event = tuple[str, int, int, int, Mapping[str, Any] | None]  # name, thread, begin, end, args


class Timeline:
    """Events of this process's threads, kept in memory until they are written. Thread-safe.

    Args:
        path: of the file that ``write`` makes.
        limit: events kept at most.
    """

    def __init__(self, path: str | os.PathLike[str], *, limit: int = _LIMIT) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self._limit = limit
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._names: dict[int, str] = {}
        self._tracks: dict[str, int] = {}
        self._events: list[_Event] = []
        self._samples: list[np.ndarray] = []
        self._counters: list[tuple[str, int, float]] = []
        self._count = self._written = 0
        self.dropped = 0
        """Events beyond the limit, which the file lacks."""

    def __reduce__(self) -> tuple[type[Timeline], tuple[str]]:
        return Timeline, (self.path,)  # a copy in another process begins with nothing

    def span(
        self, name: str, begin_ns: int, end_ns: int, args: Mapping[str, Any] | None = None
    ) -> None:
        """The calling thread did ``name`` from ``begin_ns`` to ``end_ns`` of perf_counter_ns."""
        thread = threading.get_native_id()
        with self._lock:
            if self._room(1):
                if thread not in self._names:
                    self._names[thread] = threading.current_thread().name
                self._events.append((name, thread, begin_ns, end_ns, args))

    def worker(self, process: int, name: str, begin_ns: int, end_ns: int) -> None:
        """The process numbered ``process`` did ``name``; its main thread has the same number."""
        with self._lock:
            if self._room(1):
                if process != self._pid:
                    self._names.setdefault(process, "worker process")
                self._events.append((name, process, begin_ns, end_ns, None))

    def track(self, track: str, name: str, begin_ns: int, end_ns: int) -> None:
        """``track``, which is no thread of this system (a device's stream), did ``name``."""
        with self._lock:
            if self._room(1):
                number = self._tracks.setdefault(track, _TRACKS + len(self._tracks))
                self._names[number] = track
                self._events.append((name, number, begin_ns, end_ns, None))

    def samples(self, times: np.ndarray) -> None:
        """Samples that the native core worked on: int64 (n, TIMES), as ``submit`` writes them."""
        with self._lock:
            if self._room(5 * len(times)):
                self._samples.append(times)

    def counter(self, name: str, value: float) -> None:
        """``name`` has ``value`` from now on."""
        with self._lock:
            if self._room(1):
                self._counters.append((name, time.perf_counter_ns(), value))

    def update(self) -> None:
        """Write the file if there are events that it lacks."""
        if self._written != self._count and os.getpid() == self._pid:
            self.write()

    def _room(self, events: int) -> bool:
        if os.getpid() != self._pid:  # a forked child: its events would be shown as the parent's
            return False
        if self._count + events > self._limit:
            self.dropped += events
            return False
        self._count += events
        return True

    def write(self, profiler: str | os.PathLike[str] | None = None) -> None:
        """Write the file anew, with all events so far.

        Args:
            profiler: a file of torch.profiler (``export_chrome_trace``), whose events are added.

        Raises:
            DataError: ``profiler`` is no such file.
        """
        # Both clocks run at one rate; what lies between them is taken once.
        offset = time.time_ns() - time.perf_counter_ns()
        base = 0
        events: list[Any] = []
        if profiler is not None:
            base, events = _profiled(os.fspath(profiler))
        shift = offset - base
        with self._lock:
            self._written = self._count
            events += self._rendered(shift)
            dropped = self.dropped
        content = {
            "traceEvents": events,
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": base,
            "otherData": {"writer": "fastload", "dropped events": dropped},
        }
        with whole_file(self.path) as file:
            file.write(json.dumps(content, separators=(",", ":")).encode())

    def _rendered(self, shift: int) -> list[dict[str, Any]]:
        """All events as JSON objects, those of a thread from the outside in."""
        spans = list(self._events)
        for times in self._samples:
            spans += _of_samples(times)
        spans.sort(key=lambda event: (event[1], event[2], -event[3]))
        threads = dict.fromkeys(event[1] for event in spans)
        rendered: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": self._pid, "args": {"name": "fastload"}}
        ]
        for thread in threads:
            name = self._names.get(thread, "fastload decoder")
            rendered.append(
                {
                    "ph": "M",
                    "name": "thread_name",
                    "pid": self._pid,
                    "tid": thread,
                    "args": {"name": name},
                }
            )
        for name, thread, begin, end, args in spans:
            event: dict[str, Any] = {
                "ph": "X",
                "cat": "fastload",
                "name": name,
                "pid": self._pid,
                "tid": thread,
                "ts": (begin + shift) / 1e3,
                "dur": (end - begin) / 1e3,
            }
            if args:
                event["args"] = dict(args)
            rendered.append(event)
        for name, at, value in self._counters:
            rendered.append(
                {
                    "ph": "C",
                    "name": name,
                    "pid": self._pid,
                    "ts": (at + shift) / 1e3,
                    "args": {name: value},
                }
            )
        return rendered


def _of_samples(times: np.ndarray) -> list[_Event]:
    """The stages of each sample that was worked on."""
    events: list[_Event] = []
    for thread, begin, read, checked, resized, decoded, end in times.tolist():
        if not begin:  # cancelled before its turn
            continue
        # Rows are resized between those that are decoded: shown in one piece, behind them.
        parts = {"read": read, "check": checked, "decode": decoded - resized, "resize": decoded}
        parts["augment"] = end
        for name, until in parts.items():
            if until > begin or name == "read":
                events.append((name, thread, begin, until, None))
            begin = until
    return events


def _profiled(path: str) -> tuple[int, list[Any]]:
    """Base of the clock in nanoseconds and the events of a file of torch.profiler."""
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        return int(content["baseTimeNanoseconds"]), list(content["traceEvents"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            "expected a trace that torch.profiler's export_chrome_trace wrote (torch 2.4 or "
            f"newer), found {type(error).__name__}: {error}",
            path=path,
        ) from error


_active: Timeline | None = None
_lasting: weakref.WeakSet[Timeline] = weakref.WeakSet()


def lasting(path: str | os.PathLike[str]) -> Timeline:
    """A timeline that is written by ``update``, and at the interpreter's exit."""
    timeline = Timeline(path)
    _lasting.add(timeline)
    return timeline


def _update_all() -> None:
    for timeline in list(_lasting):
        timeline.update()


atexit.register(_update_all)


def active() -> Timeline | None:
    """The timeline of the ``trace`` that encloses this, or None."""
    return _active


@contextlib.contextmanager
def trace(
    path: str | os.PathLike[str], *, profiler: str | os.PathLike[str] | None = None
) -> Iterator[Timeline]:
    """Write down what every loader does within the ``with`` block; open the file in Perfetto.

    Example:
        >>> with fastload.trace("run.json"):
        ...     for images, labels in loader: ...

    The file has a track for each thread: ``order``, ``prepare``, ``read``, ``check``, ``decode``,
    ``resize`` (an image's rows are resized between those that are decoded; their time is shown in
    one piece), ``augment``, ``collate``; the consumer's own shows ``wait`` (for the next batch) and
    ``step`` (the training step between two batches). Counters show batches ready, batches being
    filled, slabs in use. Open it at https://ui.perfetto.dev or chrome://tracing.

    Args:
        path: of the file, JSON. It is written when the block ends, also by an error.
        profiler: a file that torch.profiler's ``export_chrome_trace`` has written by then; its
            events are shown on the same clock.

    Raises:
        UsageError: another ``trace`` is under way.
        DataError: ``profiler`` is no trace of torch.profiler.
    """
    global _active
    if _active is not None:
        raise UsageError(f"a trace is already being written to {_active.path!r}: end it first")
    timeline = _active = Timeline(path)
    try:
        yield timeline
    finally:
        _active = None
        timeline.write(profiler)
