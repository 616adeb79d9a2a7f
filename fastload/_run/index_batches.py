"""Index batches: sample indices, divided into batches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

NOTHING = np.empty(0, np.int64)


class Batches:
    """``indices``, int64 (n,), divided into batches: views made on demand, as there may be
    millions.

    ``drop_last`` leaves out an incomplete last batch.
    """

    def __init__(self, indices: np.ndarray, size: int, drop_last: bool) -> None:
        self.indices = indices
        self._size = size
        self._drop_last = drop_last

    def __len__(self) -> int:
        whole, rest = divmod(len(self.indices), self._size)
        return whole + (rest > 0 and not self._drop_last)

    def __getitem__(self, number: int) -> np.ndarray:
        if not 0 <= number < len(self):
            raise IndexError(f"expected a batch from 0 to {len(self) - 1}, got {number}")
        return self.indices[number * self._size : (number + 1) * self._size]

    def __iter__(self) -> Iterator[np.ndarray]:
        return map(self.__getitem__, range(len(self)))

    def before(self, number: int) -> int:
        """How many indices come before batch ``number``."""
        return min(number * self._size, len(self.indices))

    def after(self, batches: int) -> Batches:
        """The same without the first ``batches``."""
        return Batches(self.indices[batches * self._size :], self._size, self._drop_last)


class UnequalBatches(Batches):
    """Batches of different sizes, those of one batch after those of the other in ``indices``.

    ``ends``, int64 (batches,), says where each batch ends.
    """

    def __init__(self, indices: np.ndarray, ends: np.ndarray) -> None:
        super().__init__(indices, 1, False)
        self._ends = ends

    @classmethod
    def gathered(
        cls, indices: np.ndarray, starts: np.ndarray, lengths: np.ndarray
    ) -> UnequalBatches:
        """Batches that begin at ``starts`` in ``indices`` and are so long; all are int64."""
        ends = np.cumsum(lengths)
        places = np.arange(lengths.sum()) + np.repeat(starts - (ends - lengths), lengths)
        return cls(indices[places], ends)

    def chosen(self, numbers: np.ndarray) -> UnequalBatches:
        """Some of the batches, by number (int64), in that order."""
        starts = np.concatenate([np.zeros(1, np.int64), self._ends])[:-1]
        return UnequalBatches.gathered(
            self.indices, starts[numbers], (self._ends - starts)[numbers]
        )

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> np.ndarray:
        if not 0 <= number < len(self):
            raise IndexError(f"expected a batch from 0 to {len(self) - 1}, got {number}")
        return self.indices[self.before(number) : int(self._ends[number])]

    def before(self, number: int) -> int:
        """How many indices come before batch ``number``."""
        return int(self._ends[number - 1]) if number else 0

    def after(self, batches: int) -> UnequalBatches:
        """The same without the first ``batches``."""
        start = self.before(min(batches, len(self)))
        return UnequalBatches(self.indices[start:], self._ends[batches:] - start)
