"""Ahead: pixels that a dataset will probably ask for, decoded while its own code runs.

A dataset that computes on pixels (NumPy, OpenCV, Albumentations) asks for them image by image, and
while it computes the core's threads have nothing to do. Which samples a batch has is known before
the first of them is made, and most datasets ask for the same of an index in every epoch. So what
each one asked for is remembered, and the core makes it for the samples that follow in the batch.

Note [A guess]
    What is made ahead is used only where a sample asks for just that: the same operations on the
    same file, which has the same stamp when the user's code opens it and when the core reads it. A
    wrong guess costs work and nothing else. Where too few of them are right, as with random crops,
    nothing more is made ahead.

How it ends
    ``watching`` cancels what nobody has asked for: afterwards no thread writes to it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from . import single
from .recording import Recording
from .thread_state import THREAD

# Indices of which it is remembered what they asked for: half a kilobyte each.
_REMEMBERED: Final = 1 << 16

# Images of one index. Of more, as in a video, the first ones.
_MOST_EACH: Final = 4

# Samples that are made ahead at most, and bytes of their pixels, of which one may be larger.
_MOST_AHEAD: Final = 8
_MOST_NBYTES: Final = 64 << 20

# So many guesses are judged together. Decoding for nothing uses a CPU that others may need.
_JUDGED: Final = 32
_LEAST_RIGHT: Final = 24


class Ahead:
    """What the samples of one dataset ask for, and what of it is being made.

    Args:
        threads: that decode; samples ahead are one more, so that none of them waits for the next.
    """

    def __init__(self, threads: int) -> None:
        self._window = min(threads + 1, _MOST_AHEAD)
        self._known: dict[int, tuple[Recording, ...]] = {}
        self._begun: dict[Recording, single.Begun] = {}
        self._nbytes = 0  # of what was begun
        self._requested: list[Recording] = []  # by the current sample
        self._right = self._wrong = 0
        self._useless = False
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def watching(self, indices: Sequence[Any]) -> Iterator[Sequence[Any] | Iterator[Any]]:
        """A context that gives ``indices``, to be made in this order by this thread."""
        if self._useless or THREAD.ahead is not None or not self._lock.acquire(blocking=False):
            yield indices
            return
        THREAD.ahead = self
        try:
            yield self._announced(indices)
        finally:
            THREAD.ahead = None
            self._drop(list(self._begun))
            self._requested.clear()
            self._lock.release()

    def _announced(self, indices: Sequence[Any]) -> Iterator[Any]:
        guesses: dict[int, list[Recording]] = {}  # by position in the batch
        following = 1
        for position, index in enumerate(indices):
            following = max(following, position + 1)
            last = min(position + self._window, len(indices) - 1) if self._known else position
            while following <= last:
                if self._begun and self._nbytes >= _MOST_NBYTES:
                    break
                guesses[following] = self._begin(indices[following])
                following += 1
            self._requested.clear()
            yield index
            if self._requested:
                self._remember(index)
            if position in guesses:
                self._judge(guesses.pop(position))

    def _begin(self, index: Any) -> list[Recording]:
        """Begin what ``index`` will probably ask for."""
        begun = []
        for recording in self._known.get(index, ()) if type(index) is int else ():
            if recording not in self._begun:
                started = single.begin(recording)
                if started is not None:
                    self._begun[recording] = started
                    self._nbytes += started.nbytes
                    begun.append(recording)
        return begun

    def _remember(self, index: Any) -> None:
        if type(index) is not int or (index not in self._known and self._full()):
            return
        requested = tuple(self._requested)
        if self._known.get(index) != requested:
            self._known[index] = requested

    def _full(self) -> bool:
        return len(self._known) >= _REMEMBERED

    def _judge(self, guesses: list[Recording]) -> None:
        """Count which guesses about a sample were wrong, now that it is made."""
        self._wrong += self._drop(guesses)
        if self._right + self._wrong >= _JUDGED:
            if self._right < _LEAST_RIGHT:
                self._useless = True
                self._known.clear()
            self._right = self._wrong = 0

    def _drop(self, guesses: list[Recording]) -> int:
        """Cancel those that nobody has asked for; how many that were."""
        dropped = 0
        for guess in guesses:
            begun = self._begun.pop(guess, None)
            if begun is not None:
                self._nbytes -= begun.nbytes
                begun.cancel()
                dropped += 1
        return dropped

    def take(self, recording: Recording) -> np.ndarray | None:
        """The memory of the pixels of ``recording``, which a sample asks for; None: not made."""
        if not self._begun or recording.opened.path is None:
            return None
        begun = self._begun.pop(recording, None)
        if begun is None:
            return None
        self._nbytes -= begun.nbytes
        self._right += 1
        return begun.result()

    def note_asked(self, recording: Recording) -> None:
        """Note that the current sample has asked for these pixels, and the core has made them."""
        opened = recording.opened
        if opened.path is not None and opened.data is None and len(self._requested) < _MOST_EACH:
            self._requested.append(recording)
