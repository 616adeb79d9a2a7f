"""Measurements: what a loader has measured in the running epoch, or in the last one.

Of images that a user's Dataset opened, each batch brings a ``Report``, and ``ImageCounts`` adds
them up.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from .._base.derived import derived
from .._base.trace import Stamps
from .._base.value_class import value_class
from ..hints import RemoteStats
from .bad_samples.policy import BadSamples

if TYPE_CHECKING:
    from .._sources.deferred.batch import Counts
    from .._sources.deferred.thread_state import Cause
    from ..storage.base import Store


class Spent(NamedTuple):
    """What the samples of one batch took, by the way in which they were made.

    Attributes:
        deferred, eager: how many samples; those that were not measured are left out.
        deferred_ns, eager_ns: CPU time in the process that made them.
        own_ns: of ``deferred_ns``, what the samples' own code took, if that is known.
        lost_ns: what the batch took beyond eager samples, where these are known to be cheaper.
    """

    deferred: int = 0
    deferred_ns: int = 0
    eager: int = 0
    eager_ns: int = 0
    own_ns: int = 0
    lost_ns: int = 0


NOTHING: Final = Spent()


class Report(NamedTuple):
    """What became of the images of one batch.

    Attributes:
        run: whether its dataset was run over deferred images.
        opened: how many were opened.
        given: how many were given to ``Image.fromarray`` instead.
        deferred: how many of its tensors were recorded to the end.
        read: how many were decoded in C++ for another library, such as OpenCV.
        causes: what materialised others.
        hits, misses: of the cache, where an image was materialised.
        again: how often the batch was made again without deferring.
        replayed: why tensors that the batch's worker filled were left to Pillow and torch, in
            words, and how many.
        spent: what was measured.
        seen: whether it was seen to open images, while nothing is deferred.
    """

    run: bool = False
    opened: int = 0
    given: int = 0
    deferred: int = 0
    read: int = 0
    causes: tuple[Cause, ...] = ()
    again: int = 0
    hits: int = 0
    misses: int = 0
    replayed: tuple[tuple[str, int], ...] = ()
    spent: Spent = NOTHING
    seen: bool = False

    @property
    def images(self) -> int:
        """How many images there were that may be deferred, or that the core has read."""
        return self.opened + self.given + self.read


class ImageCounts:
    """The images of one epoch, counted as in ``Report``.

    Attributes:
        again: batches that were made again without deferring, because an image is damaged.
        eager: samples that were made without deferring, to compare or because it is cheaper.
        causes: what materialised others: function, file and line -> how many, and nanoseconds.
    """

    def __init__(self) -> None:
        self.opened = self.given = self.deferred = self.read = self.again = 0
        self.eager = 0
        self.causes: dict[tuple[str, str, int], tuple[int, int]] = {}
        self._hits = self._misses = 0
        self._made: Counts | None = None

    @property
    def made(self) -> Counts:
        """How deferred tensors were made in this process."""
        if self._made is None:
            from .._sources.deferred.batch import Counts

            self._made = Counts()
        return self._made

    def add(self, report: Report) -> None:
        """Count a batch."""
        self.eager += report.spent.eager
        if not (report.run or report.again):
            return
        self.opened += report.opened
        self.given += report.given
        self.deferred += report.deferred
        self.read += report.read
        self.again += report.again
        self._hits += report.hits
        self._misses += report.misses
        for reason, count in report.replayed:
            reasons = self.made.reasons
            reasons[reason] = reasons.get(reason, 0) + count
        for cause in report.causes:
            key = cause.function, cause.file, cause.line
            count, ns = self.causes.get(key, (0, 0))
            self.causes[key] = count + cause.count, ns + cause.ns

    @property
    def hits(self) -> int:
        """Images that were in the cache."""
        return self._hits + (0 if self._made is None else self._made.hits)

    @property
    def misses(self) -> int:
        """Images that were not."""
        return self._misses + (0 if self._made is None else self._made.misses)

    def replayed(self) -> dict[str, int]:
        """Deferred tensors that Pillow and torch made, by the reason."""
        return {} if self._made is None else self._made.reasons

    def __reduce__(self) -> tuple[type[ImageCounts], tuple[()]]:
        return ImageCounts, ()  # a copy in another process starts empty


@value_class(frozen=False)
class Measurements:
    """Measurements of one epoch, for ``stats()``. Whoever makes its batches adds to them.

    Attributes:
        native: whether an engine of fastload made the batches.
        remote: what the stores at URLs had fetched when the epoch began, with these stores.
        padding: how many of this rank's samples repeat others.
    """

    native: bool
    stamps: Stamps = dataclasses.field(default_factory=Stamps)
    bad: BadSamples = dataclasses.field(default_factory=lambda: BadSamples(0, None))
    remote: Sequence[tuple[Store, Mapping[str, float]]] = ()
    padding: int = 0

    @derived
    def images(self) -> ImageCounts:
        """Of those that a user's Dataset opens."""
        return ImageCounts()

    def fetched(self) -> RemoteStats | None:
        """What the epoch has fetched from remote stores; None if there are none."""
        if not self.remote:
            return None
        total: collections.Counter[str] = collections.Counter()
        for store, before in self.remote:
            now = store.fetched() or {}
            total.update({name: value - before.get(name, 0) for name, value in now.items()})
        return {
            "nbytes": int(total["nbytes"]),
            "requests": int(total["requests"]),
            "retries": int(total["retries"]),
            "hedged": int(total["hedged"]),
            "hit_nbytes": int(max(0, total["asked_nbytes"] - total["missed_nbytes"])),
            "damaged": int(total["damaged"]),
            "wait_s": float(total["wait_s"]),
        }
