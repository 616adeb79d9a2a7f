"""``Tuning``, the outcome of a search, and its file."""

from __future__ import annotations

import dataclasses
import os
import statistics
from collections.abc import Mapping

from ..._base.machine.load import BUSY
from ..._run.tuned_file import FORMAT, VERSION, Point, write

TIED = 0.03
"""Settings within this share of the best count as equally fast."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tried:
    """One setting that was measured, or the reason why not.

    Attributes:
        point: the setting.
        images_per_s: median; 0 if it was not measured. With a cache: once it is full.
        filling_images_per_s: rate of the epoch that fills the cache; None without one.
        error: standard error relative to the median; None with too few blocks.
        reason: why it was not measured, or how it failed; else "".
    """

    point: Point
    images_per_s: float
    error: float | None
    filling_images_per_s: float | None = None
    reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuning:
    """The result of autotune. Rates are in images/s.

    Attributes:
        source: name of the dataset.
        batch_size: the batch size in use, which ``best``, ``smallest``, ``chosen`` and ``uncached``
            have.
        best: the fastest setting.
        fastest: the fastest setting of all batch sizes.
        fastest_images_per_s: rate of ``fastest``.
        smallest: the setting with the fewest resources within 3 % of the best.
        chosen: the setting that ``FastLoader(tuned=)`` applies: ``smallest`` if the loop waits for
            the step, else ``best``.
        images_per_s: rate of ``best``.
        uncached: the fastest setting that is comparable with DataLoader: exact pixels, no cache.
        uncached_images_per_s: rate of ``uncached``.
        torch_images_per_s: rate of torch's DataLoader with its defaults, at the same batch size, or
            of a few samples if there was no time to compare.
        ratios: ``uncached`` against torch, one ratio for each time both were measured in turn; none
            if there was no time for that.
        step_images_per_s: rate of the training step alone, on one batch; None without a step.
        loader_images_per_s: rate of the loader alone; None without a step.
        bound: what limits the loop: "compute" (the step), "decoding", "reading" or "python" (the
            dataset's own code).
        why: the figures behind ``bound``.
        tried: every setting that was measured or left out.
        machine, dataset: fingerprints.
        others: share of the CPUs that other programs took during the search.
        seconds: duration of the search.
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
    machine: Mapping[str, object]
    dataset: Mapping[str, object]
    others: float
    seconds: float

    @property
    def gain(self) -> float:
        """How many times faster ``uncached`` is than torch's defaults."""
        known = self.ratios or (self.uncached_images_per_s / self.torch_images_per_s,)
        return statistics.median(known)

    @property
    def busy(self) -> bool:
        """Whether other programs took so much CPU time that the figures are unreliable."""
        return self.others > BUSY

    def as_json(self) -> dict[str, object]:
        """The content of the file."""
        content = dataclasses.asdict(self)
        return {"format": FORMAT, "version": VERSION, **content, "gain": self.gain}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, completely or not at all."""
        write(path, self.as_json())
