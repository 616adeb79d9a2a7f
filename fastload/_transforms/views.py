"""Several views of each image: one plan for each view, with independent random numbers.

View 0 gets the numbers that its chain would get alone. The others use Philox keys that are drawn
from Philox for (seed, view). So views differ from each other, and none depends on how many there
are.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from .._base import philox
from .plan import Plan

_KEY = 0x7669_6577  # stream of the views' keys, which no order and no transform uses


@dataclasses.dataclass(frozen=True, eq=False)
class Views:
    """The plans of all views of an image.

    Attributes:
        each: a plan for each view.
    """

    each: tuple[Plan, ...]

    @property
    def random(self) -> bool:
        """Whether any view depends on random numbers."""
        return any(plan.random for plan in self.each)

    @property
    def nbytes(self) -> int | None:
        """Bytes of all views of an image, or None if that depends on the image."""
        sizes = [plan.nbytes for plan in self.each]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def same_as(self, other: object) -> bool:
        """Whether both give the same output for any image and the same random numbers."""
        return (
            type(other) is Views
            and len(self.each) == len(other.each)
            and all(map(Plan.same_as, self.each, other.each))
        )

    def with_output(self, dtype: torch.dtype | None = None) -> Views:
        """All plans, cast to ``dtype``. Raises UsageError as ``Plan.with_output``."""
        return Views(tuple(plan.with_output(dtype) for plan in self.each))

    def with_decode(self, decode: str) -> Views:
        """All plans, for FastLoader's argument ``decode``."""
        return Views(tuple(plan.with_decode(decode) for plan in self.each))


def seed_of(seed: int, view: int) -> int:
    """The seed for the random numbers of a view."""
    if view == 0:
        return seed
    words = philox.words(seed, 0, np.array([view], np.int64), [_KEY])[:, :, 0, 0]
    return int(words[0, 0]) << 32 | int(words[0, 1])
