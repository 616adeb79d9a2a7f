"""Measurements: what a loader has measured in the running epoch, or in the last one."""

from __future__ import annotations

import dataclasses

from .._base.trace import Stamps
from .bad_samples.policy import BadSamples


@dataclasses.dataclass
class Measurements:
    """Measurements of one epoch, for ``stats()``.

    Attributes:
        native: whether an engine of fastload made the batches.
        stamps: times and counts.
        bad: samples that could not be made.
        padding: how many of this rank's samples repeat others.
    """

    native: bool
    stamps: Stamps = dataclasses.field(default_factory=Stamps)
    bad: BadSamples = dataclasses.field(default_factory=lambda: BadSamples(0, None))
    padding: int = 0
