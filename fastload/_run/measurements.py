"""Measurements: what a loader has measured in the running epoch, or in the last one."""

from __future__ import annotations

import dataclasses

from .._base.trace import Stamps
from .bad_samples.policy import BadSamples
from .image_counts import ImageCounts


@dataclasses.dataclass
class Measurements:
    """Measurements of one epoch, for ``stats()``.

    Attributes:
        native: whether an engine of fastload made the batches.
        stamps: times and counts.
        bad: samples that could not be made.
        images: what became of the images that a user's Dataset opened.
        padding: how many of this rank's samples repeat others.
    """

    native: bool
    stamps: Stamps = dataclasses.field(default_factory=Stamps)
    bad: BadSamples = dataclasses.field(default_factory=lambda: BadSamples(0, None))
    images: ImageCounts = dataclasses.field(default_factory=ImageCounts)
    padding: int = 0
