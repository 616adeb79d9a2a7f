"""Timelines: what each thread did and when, as a file for Perfetto, or as a picture.

The file's format is the JSON of Chrome's trace viewer ("Trace Event Format": complete events ``X``,
counters ``C``, metadata ``M``), which torch.profiler writes too. Times are microseconds since
``baseTimeNanoseconds`` of the Unix clock, as in torch.profiler's files, so that both can be merged.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping

import numpy as np

from ..errors import DataError, UsageError
from .fork_lock import ForkLock
from .whole_file import check_writable, whole_file

_LIMIT = 2_000_000
"""Maximum number of events, about 300 MB of JSON; later ones are only counted."""

TIMES = 7
"""Number of time stamps of a sample, as the native core writes them (_core.pyi, submit)."""

# First number of a track that is not a thread: Linux thread ids are below 2**22.
_TRACKS = 1 << 30

_Event = dict[str, object]  # an event as a JSON object

Span = tuple[str, int, int, int, Mapping[str, object] | None]
"""Name, thread, begin and end in nanoseconds, and further figures."""


class Timeline:
    """Events of this process's threads, kept in memory until they are written. Thread-safe.

    ``path`` is the file that ``write`` writes.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self._pid = os.getpid()
        self._lock = ForkLock()
        self._names: dict[int, str] = {}
        self._tracks: dict[str, int] = {}
        self._spans: list[Span] = []
        self._samples: list[np.ndarray] = []
        self._counters: list[tuple[str, int, float]] = []
        self._count = self._written = 0
        self.dropped = 0
        """Events beyond the limit, which are missing from the file."""

    def __reduce__(self) -> tuple[type[Timeline], tuple[str]]:
        return Timeline, (self.path,)  # a copy in another process starts empty

    def span(
        self, name: str, begin_ns: int, end_ns: int, args: Mapping[str, object] | None = None
    ) -> None:
        """The calling thread did ``name`` from ``begin_ns`` to ``end_ns`` of perf_counter_ns."""
        thread = threading.get_native_id()
        with self._lock:
            if self._room(1):
                if thread not in self._names:
                    self._names[thread] = threading.current_thread().name
                self._spans.append((name, thread, begin_ns, end_ns, args))

    def worker(self, process: int, name: str, begin_ns: int, end_ns: int) -> None:
        """The process with id ``process`` did ``name``; its main thread has the same id."""
        with self._lock:
            if self._room(1):
                if process != self._pid:
                    self._names.setdefault(process, "worker process")
                self._spans.append((name, process, begin_ns, end_ns, None))

    def track(self, track: str, name: str, begin_ns: int, end_ns: int) -> None:
        """``track``, which is not a thread (for instance a device's stream), did ``name``."""
        with self._lock:
            if self._room(1):
                number = self._tracks.setdefault(track, _TRACKS + len(self._tracks))
                self._names[number] = track
                self._spans.append((name, number, begin_ns, end_ns, None))

    def samples(self, times: np.ndarray) -> None:
        """Times of samples from the native core: int64 (n, TIMES), as ``submit`` writes them."""
        with self._lock:
            if self._room(5 * len(times)):
                self._samples.append(times)

    def counter(self, name: str, value: float) -> None:
        """The counter ``name`` has ``value`` from now on."""
        with self._lock:
            if self._room(1):
                self._counters.append((name, time.perf_counter_ns(), value))

    def update(self) -> None:
        """Write the file if events were added since the last time."""
        if self._written != self._count and os.getpid() == self._pid:
            self.write()

    def _room(self, events: int) -> bool:
        if os.getpid() != self._pid:  # a forked child's events would show up as the parent's
            return False
        if self._count + events > _LIMIT:
            self.dropped += events
            return False
        self._count += events
        return True

    def write(self, profiler: str | os.PathLike[str] | None = None) -> None:
        """Write the file with all events so far, replacing an earlier one.

        Events of ``profiler``, a file of torch.profiler (``export_chrome_trace``), are added.
        Raises DataError if it is not such a file.
        """
        # Both clocks run at the same rate, so one measurement of their difference is enough.
        offset = time.time_ns() - time.perf_counter_ns()
        base = 0
        events: list[_Event] = []
        if profiler is not None:
            base, events = _profiled(os.fspath(profiler))
        shift = offset - base
        with self._lock:
            self._written = self._count
            if _is_picture(self.path):
                from .timeline_picture import picture  # most runs draw none

                drawn = picture(self._in_order(), self._name_of)
            else:
                events += self._rendered(shift)
            dropped = self.dropped
        if _is_picture(self.path):
            with whole_file(self.path) as file:
                file.write(drawn.encode())
            return
        content = {
            "traceEvents": events,
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": base,
            "otherData": {"writer": "fastload", "dropped events": dropped},
        }
        with whole_file(self.path) as file:
            file.write(json.dumps(content, separators=(",", ":")).encode())

    def _in_order(self) -> list[Span]:
        """All spans by thread and time, an enclosing one before those it encloses."""
        spans = list(self._spans)
        for times in self._samples:
            spans += _of_samples(times)
        # The viewers nest events by order: of two that begin at the same time, the longer is first.
        return sorted(spans, key=lambda span: (span[1], span[2], -span[3]))

    def _name_of(self, thread: int) -> str:
        return self._names.get(thread, "fastload decoder")

    def _rendered(self, shift: int) -> list[_Event]:
        spans = self._in_order()

        def event(kind: str, name: str, **more: object) -> _Event:
            return {"ph": kind, "name": name, "pid": self._pid, **more}

        rendered = [event("M", "process_name", args={"name": "fastload"})]
        for thread in dict.fromkeys(span[1] for span in spans):
            name = {"name": self._name_of(thread)}
            rendered.append(event("M", "thread_name", tid=thread, args=name))
        for label, thread, begin_ns, end_ns, args in spans:
            begin, took = (begin_ns + shift) / 1e3, (end_ns - begin_ns) / 1e3
            more = {"args": dict(args)} if args else {}
            rendered.append(
                event("X", label, cat="fastload", tid=thread, ts=begin, dur=took, **more)
            )
        for label, at_ns, value in self._counters:
            rendered.append(event("C", label, ts=(at_ns + shift) / 1e3, args={label: value}))
        return rendered


def _is_picture(path: str) -> bool:
    return path.lower().endswith(".svg")


def _of_samples(times: np.ndarray) -> list[Span]:
    """The stages of each sample, as spans of the thread that ran them."""
    spans: list[Span] = []
    for thread, begin, read, checked, resized, decoded, end in times.tolist():
        if not begin:  # cancelled before it started
            continue
        # Decoding and resizing alternate row by row; the resize is shown as one span at the end.
        ends = {"read": read, "check": checked, "decode": decoded - resized, "resize": decoded}
        ends["augment"] = end
        for name, until in ends.items():
            if until > begin or name == "read":
                spans.append((name, thread, begin, until, None))
            begin = until
    return spans


def _profiled(path: str) -> tuple[int, list[_Event]]:
    """The clock's base in nanoseconds and the events of a torch.profiler file."""
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        return int(content["baseTimeNanoseconds"]), list(content["traceEvents"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            "expected a trace written by torch.profiler's export_chrome_trace (torch 2.4 or "
            f"newer), got {type(error).__name__}: {error}",
            path=path,
        ) from error


_active: Timeline | None = None


def active() -> Timeline | None:
    """The timeline of the enclosing ``trace``, or None."""
    return _active


def gauge(name: str, value: float) -> None:
    """The counter ``name``, of the whole process, has ``value`` in all that is recorded now."""
    if _active is not None:
        _active.counter(name, value)


@contextlib.contextmanager
def trace(
    path: str | os.PathLike[str], *, profiler: str | os.PathLike[str] | None = None
) -> Iterator[Timeline]:
    """Record what every loader does within the ``with`` block, as a file for Perfetto or a picture.

    Example:
        >>> with fastload.trace("run.json"):  # or run.svg
        ...     for images, labels in loader: ...

    The file has a track for each thread, with ``order``, ``prepare``, ``read``, ``check``,
    ``decode``, ``resize`` (decoding and resizing alternate row by row; the resize is shown as one
    span), ``augment`` and ``collate``. The consumer's track shows ``wait`` (for the next batch) and
    ``step`` (the training step between two batches). For a remote store there are ``network`` (the
    producer waits for bytes), requests in flight and bytes fetched. Other counters show batches
    ready, batches being filled, and slabs in use. Open the file at https://ui.perfetto.dev or
    chrome://tracing. A picture, SVG, has the same tracks, without the counters.

    Args:
        path: of the JSON file, or of the picture if it ends in .svg. It is written when the block
            ends, also if it ends by an error.
        profiler: a file that torch.profiler's ``export_chrome_trace`` has written before the block
            ends; its events are added, on the same clock.

    Raises:
        UsageError: another ``trace`` is active; ``profiler`` is given for a picture.
        OSError: no file can be written there.
        DataError: ``profiler`` is not a trace of torch.profiler.
    """
    global _active
    if _active is not None:
        raise UsageError(f"a trace to {_active.path!r} is already active: end it first")
    if profiler is not None and _is_picture(os.fspath(path)):
        raise UsageError(
            f"profiler: a picture does not show it; expected a .json file, got {path!r}"
        )
    check_writable(path)  # before a long run, not after it
    timeline = _active = Timeline(path)
    try:
        yield timeline
    finally:
        _active = None
        timeline.write(profiler)
