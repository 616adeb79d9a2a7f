"""Loaders over which a Dataset iterates while it makes a sample for another loader.

Few-shot learning does that: ``next(iter(loader))`` for each class. What such a loader's images
become is best left to the outer loader, which fills its batch as a whole, and makes it again as a
whole if an image is damaged. Then the Dataset makes an inner iterator anew. One that it keeps for
other batches would go on instead, so the inner loader sees to the images of those itself; as it
does where it has a seed, an order of the user's or bad samples to skip.

Nobody knows of an iterator whether it will be kept. So those of a Dataset are watched first, also
while the outer loader does not defer.
"""

from __future__ import annotations

import weakref
from typing import Final

from .thread_state import THREAD, running

# So many iterators have to end within the batch in which they began.
_LEAST: Final = 2


class Iterations:
    """What is known of the iterators that a Dataset makes within its samples.

    ``ended``: how many ended within their batch. ``kept``: whether one did not.
    """

    def __init__(self) -> None:
        self.ended = 0
        self.kept = False


class Making:
    """A batch of the outermost loader that is made. ``known``: of the iterators of its Dataset."""

    def __init__(self, known: Iterations) -> None:
        self.known = known
        self._begun: list[weakref.ref[Iteration]] = []

    def begin(self, *, stateless: bool) -> Iteration:
        """An iterator begins; ``stateless``: which gives the same if the batch is made again."""
        known = self.known
        begun = Iteration(leaves=stateless and not known.kept and known.ended >= _LEAST)
        self._begun.append(weakref.ref(begun))
        return begun

    def end(self) -> None:
        """The batch is made."""
        for begun in self._begun:
            if begun() is None:
                self.known.ended += 1
            else:
                self.known.kept = True


class Iteration:
    """An iterator, and its life: it has the same.

    ``leaves``: whether it leaves its images to the outer loader, if that defers.
    """

    def __init__(self, *, leaves: bool) -> None:
        self._making = THREAD.making
        self._left_to = running() if leaves else None

    def leaves_images(self) -> bool:
        """Whether its next batch leaves its images to the outer loader."""
        left_to = self._left_to
        return left_to is not None and left_to is running() and self._making is THREAD.making
