"""Several views of each image: one plan for each, drawn from random numbers of its own.

View 0 is what its chain gives by itself. The numbers of the others come from other keys of Philox,
which are themselves numbers of Philox for (seed, view): so views differ from each other, and none
depends on how many there are.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from .._base import philox
from .plan import Plan

_KEY = 0x7669_6577  # stream of the views' keys, apart from the order's and every transform's


@dataclasses.dataclass(frozen=True, eq=False)
class Views:
    """What to make of each image, several times.

    Attributes:
        each: a plan for every view.
    """

    each: tuple[Plan, ...]

    @property
    def random(self) -> bool:
        """Whether any depends on random numbers."""
        return any(plan.random for plan in self.each)

    @property
    def nbytes(self) -> int | None:
        """Bytes of all views of an image, or None where that depends on the image."""
        sizes = [plan.nbytes for plan in self.each]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def same_as(self, other: Any) -> bool:
        """Whether both make the same of any image, with the same random numbers."""
        return (
            type(other) is Views
            and len(self.each) == len(other.each)
            and all(map(Plan.same_as, self.each, other.each))
        )

    def with_output(self, dtype: torch.dtype | None = None) -> Views:
        """All of them cast. Raises UsageError as ``Plan.with_output``."""
        return Views(tuple(plan.with_output(dtype) for plan in self.each))

    def with_decode(self, decode: str) -> Views:
        """All of them, with FastLoader's argument of this name."""
        return Views(tuple(plan.with_decode(decode) for plan in self.each))


def seed_of(seed: int, view: int) -> int:
    """The seed that a view's random numbers are drawn with."""
    if view == 0:
        return seed
    words = philox.words(seed, 0, np.array([view], np.int64), [_KEY])[:, :, 0, 0]
    return int(words[0, 0]) << 32 | int(words[0, 1])
