"""Measurements: what a loader has measured in the running epoch, or in the last one."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence

from .._base.trace import Stamps
from ..hints import RemoteStats
from ..storage.base import Store
from .bad_samples.policy import BadSamples
from .image_counts import ImageCounts


@dataclasses.dataclass
class Measurements:
    """Measurements of one epoch, for ``stats()``.

    Attributes:
        native: whether an engine of fastload made the batches.
        remote: what the stores at URLs had fetched when the epoch began, with these stores.
        padding: how many of this rank's samples repeat others.
    """

    native: bool
    stamps: Stamps = dataclasses.field(default_factory=Stamps)
    bad: BadSamples = dataclasses.field(default_factory=lambda: BadSamples(0, None))
    images: ImageCounts = dataclasses.field(default_factory=ImageCounts)
    remote: Sequence[tuple[Store, Mapping[str, float]]] = ()
    padding: int = 0

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
