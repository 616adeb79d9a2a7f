"""The outcome of a search, and the file it is kept in."""

from __future__ import annotations

import dataclasses
import os
import statistics
from collections.abc import Mapping
from typing import Any

from ..._run.point import Point
from ..._run.tuned_file import FORMAT, VERSION, write

TIED = 0.03
"""Within this share of the best, another setting does as well."""

_BUSY = 0.15  # of the CPUs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tried:
    """One setting that was measured, or why it was not.

    Attributes:
        point: the setting.
        images_per_s: median; 0 where it was not measured. With a cache, once that is full.
        filling_images_per_s: of the epoch that fills the cache; None without one.
        error: standard error relative to it; None where there were too few blocks.
        reason: why it was not measured, or how it failed; else "".
    """

    point: Point
    images_per_s: float
    error: float | None
    filling_images_per_s: float | None = None
    reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuning:
    """What autotune found.

    Attributes:
        source: name of what was tuned.
        batch_size: the one in use, which the file keeps: ``best``, ``smallest``, ``chosen`` and
            ``uncached`` have it.
        best: the fastest setting, and ``images_per_s`` with it.
        fastest: the fastest setting of all batch sizes, and ``fastest_images_per_s`` with it.
        smallest: the setting that takes least of the machine within 3 % of the best.
        chosen: what ``FastLoader(tuned=)`` applies: ``smallest`` where the step is what the loop
            waits for, else ``best``.
        images_per_s: of ``best``.
        uncached: the fastest setting with DataLoader's pixels and without a cache, which it has
            not either, and ``uncached_images_per_s`` with it, beside
        torch_images_per_s: of torch's DataLoader with its defaults, at the same batch size.
        ratios: of these two, one for each time that they were measured one after the other.
        step_images_per_s: of the training step on a batch that is already there; None without step.
        loader_images_per_s: of the loader without the step; None without step.
        bound: "compute" (the step), "decoding", "reading" or "python" (the dataset's own code).
        why: the figures behind ``bound``, in words.
        tried: every setting that was measured or left out.
        machine, dataset: fingerprints.
        others: share of the CPUs that other programs took meanwhile.
        seconds: how long the search took.
    """

    source: str
    batch_size: int
    best: Point
    fastest: Point
    fastest_images_per_s: float
    smallest: Point
    chosen: Point
    images_per_s: float
    uncached: Point
    uncached_images_per_s: float
    torch_images_per_s: float
    ratios: tuple[float, ...]
    step_images_per_s: float | None
    loader_images_per_s: float | None
    bound: str
    why: str
    tried: tuple[Tried, ...]
    machine: Mapping[str, Any]
    dataset: Mapping[str, Any]
    others: float
    seconds: float

    @property
    def gain(self) -> float:
        """How many times faster than torch's defaults, both without a cache."""
        return statistics.median(self.ratios)

    @property
    def busy(self) -> bool:
        """Whether other programs took so much of the machine that the figures are theirs too."""
        return self.others > _BUSY

    def as_json(self) -> dict[str, Any]:
        """What the file holds."""
        content = dataclasses.asdict(self)
        return {"format": FORMAT, "version": VERSION, **content, "gain": self.gain}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, whole or not at all."""
        write(path, self.as_json())
