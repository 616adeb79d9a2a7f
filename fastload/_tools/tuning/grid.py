"""The settings that a search may try, and the neighbours of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ..._run.tuned_file import Point

BATCH_SIZE = 64
"""The batch size in use, if none is given: the middle of those tried."""

_MAX_PREFETCH = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid:
    """The settings that may be tried: those of a coarse grid for a machine, and their neighbours.

    ``batch_size`` is the one in use; ``fixed``: no other is tried. ``samples``: of the dataset.
    ``caches``: the caches to try. ``scaling``: whether decode="scaled" is tried.
    """

    cpus: int
    batch_size: int
    fixed: bool
    samples: int
    caches: tuple[str, ...]
    pinning: bool
    scaling: bool

    @property
    def workers(self) -> list[int]:
        """Of the coarse grid: a factor of two to four apart.

        More than twice as many workers as CPUs are tried too, because they help if samples wait for
        a disk or a network.
        """
        cpus = self.cpus
        return sorted({0, 1, max(1, cpus // 2), cpus, 2 * cpus, 4 * cpus})

    @property
    def batches(self) -> list[int]:
        """Batch sizes of the coarse grid, ascending."""
        sizes = {self.batch_size, *(() if self.fixed else (16, BATCH_SIZE, 256))}
        # A batch larger than the dataset says nothing about training on it.
        return sorted({min(size, max(1, self.samples)) for size in sizes})

    def coarse(self) -> list[Point]:
        """The points of the coarse grid."""
        return [Point(num_workers=w, batch_size=b) for w in self.workers for b in self.batches]

    def near(self, point: Point) -> Iterator[Point]:
        """The neighbours of ``point``, with one value changed."""
        for workers in {point.num_workers - 1, point.num_workers + 1, point.num_workers * 2}:
            if 0 <= workers <= 8 * self.cpus:
                yield dataclasses.replace(point, num_workers=workers)
        if not self.fixed:
            sizes = self.batches
            for size in {point.batch_size // 2, point.batch_size * 2}:
                if sizes[0] <= size <= min(2 * sizes[-1], max(1, self.samples)):
                    yield dataclasses.replace(point, batch_size=size)
        for prefetch in {point.prefetch_factor // 2, point.prefetch_factor * 2}:
            if point.num_workers and 1 <= prefetch <= _MAX_PREFETCH:
                yield dataclasses.replace(point, prefetch_factor=prefetch)
        for cache in ("", *self.caches) if self.caches else ():
            if cache != "decoded" or point.decode == "exact":
                yield dataclasses.replace(point, cache=cache)
        if self.pinning:
            yield dataclasses.replace(point, pin_memory=not point.pin_memory)
        if self.scaling and point.cache != "decoded":
            other = "exact" if point.decode == "scaled" else "scaled"
            yield dataclasses.replace(point, decode=other)
