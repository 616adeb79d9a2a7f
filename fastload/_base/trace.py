"""Stamps: the time a loader spent in each stage since its epoch began."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch

from .timeline import Timeline, active


class Snapshot(NamedTuple):
    """The figures measured so far.

    Attributes:
        images, batches: handed to the consumer.
        elapsed_s: wall time from the start of the epoch to the last batch.
        wait_s: time the consumer spent waiting for the next batch.
        stages_s: seconds of work per stage, summed over threads.
        cache_hits, cache_misses: images read from a cache, and images that were not in it.
        read_nbytes: size of the records that were read.
        workers_s: time from the first task of each worker process to its last, summed; 0 without
            workers.
    """

    images: int
    batches: int
    elapsed_s: float
    wait_s: float
    stages_s: Mapping[str, float]
    cache_hits: int
    cache_misses: int
    read_nbytes: int
    workers_s: float


class Clock(NamedTuple):
    """When a batch was made from a user's Dataset, on the system's clock (perf_counter_ns).

    Attributes:
        process: id of the process that made it.
        begin_ns, fetched_ns, end_ns: when fetching its samples began, when they were fetched, and
            when they were collated.
        blocked_ns: time until ``fetched_ns`` that was neither computing nor waiting for a CPU.
    """

    process: int
    begin_ns: int
    fetched_ns: int
    end_ns: int
    blocked_ns: int


class Stamps:
    """Sums the stages of one epoch.

    Each stage is written by one thread at a time and read by any, so no lock is needed. A lock
    would cost several times 0.1 % of a batch of small images. A ``timeline`` records when each
    stage ran, too.
    """

    def __init__(self, timeline: Timeline | None = None) -> None:
        self.timeline = timeline
        self._stages_ns: dict[str, int] = {}
        self._images = self._batches = self._wait_ns = 0
        self._hits = self._misses = self._read_nbytes = 0
        self._workers: dict[int, tuple[int, int]] = {}  # process: begin of its first task, end
        self._begin = self._end = time.perf_counter_ns()

    def __reduce__(self) -> tuple[type[Stamps], tuple[()]]:
        return Stamps, ()  # a copy in another process starts empty

    def stage(self, name: str, begin_ns: int) -> None:
        """The calling thread did ``name`` from ``begin_ns`` until now."""
        end_ns = time.perf_counter_ns()
        stages = self._stages_ns
        stages[name] = stages.get(name, 0) + end_ns - begin_ns
        if self.timeline is not None:
            self.timeline.span(name, begin_ns, end_ns)

    def spent_ns(self, name: str) -> int:
        """Nanoseconds in stage ``name`` so far."""
        return self._stages_ns.get(name, 0)

    def work(
        self, stages_ns: Mapping[str, int], times: np.ndarray | None = None, nbytes: int = 0
    ) -> None:
        """Add work per stage, in nanoseconds, on records of ``nbytes`` in all.

        ``times`` of the samples go to the timeline.
        """
        self._read_nbytes += nbytes
        stages = self._stages_ns
        for name, nanoseconds in stages_ns.items():
            stages[name] = stages.get(name, 0) + nanoseconds
        if self.timeline is not None and times is not None:
            self.timeline.samples(times)

    def worker(self, clock: Clock) -> None:
        """A batch was made from a user's Dataset, in a worker process or in this one."""
        fetch_ns, collate_ns = clock.fetched_ns - clock.begin_ns, clock.end_ns - clock.fetched_ns
        self.work({"fetch": fetch_ns, "blocked": clock.blocked_ns, "collate": collate_ns})
        begin_ns, _ = self._workers.get(clock.process, (clock.begin_ns, 0))
        self._workers[clock.process] = begin_ns, clock.end_ns
        if self.timeline is not None:
            self.timeline.worker(clock.process, "fetch", clock.begin_ns, clock.fetched_ns)
            self.timeline.worker(clock.process, "collate", clock.fetched_ns, clock.end_ns)

    def batch(self, images: int, begin_ns: int) -> None:
        """A batch of ``images`` is handed over; the consumer asked for it at ``begin_ns``."""
        end_ns = time.perf_counter_ns()
        if self.timeline is not None:
            self._mark(self.timeline, begin_ns, end_ns, images)
        self._images += images
        self._batches += 1
        self._wait_ns += end_ns - begin_ns
        self._end = end_ns

    def ended(self, begin_ns: int) -> None:
        """The consumer asked for one more batch at ``begin_ns``, and there was none."""
        if self.timeline is not None:
            self._mark(self.timeline, begin_ns, time.perf_counter_ns(), 0)
            if self.timeline is not active():
                self.timeline.update()

    def _mark(self, timeline: Timeline, begin_ns: int, end_ns: int, images: int) -> None:
        timeline.span("step" if self._batches else "start", self._end, begin_ns)
        timeline.span("wait", begin_ns, end_ns, {"images": images})

    def count(self, **values: float) -> None:
        """Set counters of the timeline to these values."""
        if self.timeline is not None:
            for name, value in values.items():
                self.timeline.counter(name.replace("_", " "), value)

    def cache(self, hits: int, misses: int) -> None:
        """A batch was made from ``hits`` cached records and ``misses`` others."""
        self._hits += hits
        self._misses += misses

    def snapshot(self) -> Snapshot:
        """The figures as they stand."""
        return Snapshot(
            images=self._images,
            batches=self._batches,
            elapsed_s=(self._end - self._begin) / 1e9,
            wait_s=self._wait_ns / 1e9,
            stages_s={name: ns / 1e9 for name, ns in self._stages_ns.copy().items()},
            cache_hits=self._hits,
            cache_misses=self._misses,
            read_nbytes=self._read_nbytes,
            workers_s=sum(end - begin for begin, end in self._workers.copy().values()) / 1e9,
        )


def batch_length(batch: object) -> int:
    """Number of samples in a collated batch: the first dimension of its first tensor, else 1."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 1
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)) and batch:
        return batch_length(batch[0])
    return 1
