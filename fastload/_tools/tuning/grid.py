"""The settings that a search may try, and the neighbours of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ..._run.tuned_file import Point

BATCH_SIZE = 64
"""The batch size in use, if none is given: the middle of those tried."""

_MAX_PREFETCH = 8
_CACHES = (None, "dct", "decoded")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid:
    """The settings that may be tried.

    ``workers`` and ``batches`` are values of the coarse grid, ascending; ``most_workers`` and
    ``most_batch`` limit refinement. ``scaling``: whether decode="scaled" is tried.
    """

    workers: tuple[int, ...]
    batches: tuple[int, ...]
    most_workers: int
    most_batch: int
    fixed_batch: bool
    caches: bool
    pinning: bool
    scaling: bool

    @classmethod
    def of(
        cls,
        *,
        cpus: int,
        batch_size: int,
        fixed: bool,
        samples: int,
        caches: bool,
        pinning: bool,
        scaling: bool,
    ) -> Grid:
        """The coarse grid for a machine: few values, a factor of two to four apart.

        More than twice as many workers as CPUs are tried too, because they help if samples wait for
        a disk or a network.
        """
        workers = sorted({0, 1, max(1, cpus // 2), cpus, 2 * cpus, 4 * cpus})
        sizes = {batch_size} if fixed else {batch_size, 16, BATCH_SIZE, 256}
        # A batch larger than the dataset says nothing about training on it.
        fitting = {min(size, max(1, samples)) for size in sizes}
        most_batch = min(2 * max(fitting), max(1, samples))
        return cls(
            workers=tuple(workers),
            batches=tuple(sorted(fitting)),
            most_workers=8 * cpus,
            most_batch=most_batch,
            fixed_batch=fixed,
            caches=caches,
            pinning=pinning,
            scaling=scaling,
        )

    def coarse(self) -> list[Point]:
        """The points of the coarse grid."""
        return [Point(num_workers=w, batch_size=b) for w in self.workers for b in self.batches]

    def near(self, point: Point) -> Iterator[Point]:
        """The neighbours of ``point``, with one value changed."""
        for workers in {point.num_workers - 1, point.num_workers + 1, point.num_workers * 2}:
            if 0 <= workers <= self.most_workers:
                yield dataclasses.replace(point, num_workers=workers)
        if not self.fixed_batch:
            for size in {point.batch_size // 2, point.batch_size * 2}:
                if self.batches[0] <= size <= self.most_batch:
                    yield dataclasses.replace(point, batch_size=size)
        for prefetch in {point.prefetch_factor // 2, point.prefetch_factor * 2}:
            if point.num_workers and 1 <= prefetch <= _MAX_PREFETCH:
                yield dataclasses.replace(point, prefetch_factor=prefetch)
        for cache in _CACHES if self.caches else ():
            if cache != "decoded" or point.decode == "exact":
                yield dataclasses.replace(point, cache=cache or "")
        if self.pinning:
            yield dataclasses.replace(point, pin_memory=not point.pin_memory)
        if self.scaling and point.cache != "decoded":
            other = "exact" if point.decode == "scaled" else "scaled"
            yield dataclasses.replace(point, decode=other)
