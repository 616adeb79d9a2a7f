"""Habits: what a dataset's code has done with its images so far."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Habits:
    """What is known of one dataset, from epoch to epoch.

    Attributes:
        batches: how many of its batches were made over deferred images.
        opened: whether it has opened an image, which it may have kept for a later batch.
        read: whether the core has decoded an image for another library that it calls.
        small: whether its last batch asked for the pixels of small images only, which Pillow
            decodes as fast.
    """

    batches: int = 0
    opened: bool = False
    read: bool = False
    small: bool = False
