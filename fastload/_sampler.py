"""Step A, order: which sample indices make which batch.

Indices travel as int64 arrays, one a batch. Torch's own samplers give Python lists of ints; for the
two that DataLoader makes by itself the same numbers are drawn as arrays. Any other sampler is the
user's code and is iterated as it is, on the thread of the training loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler, SequentialSampler

from . import _philox

_ORDER = 0x6F72_6465  # position of the order's random numbers, apart from every transform's


class SeededSampler(Sampler[int]):
    """A shuffle that is a pure function of (seed, epoch).

    Args:
        data_source: anything with a length; its indices 0 .. len-1 are shuffled.
        seed: any int.
    """

    def __init__(self, data_source: Sized, seed: int) -> None:
        self.data_source = data_source
        self.seed = seed
        self.epoch = 0
        self._chosen = False

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration is of."""
        self.epoch = epoch
        self._chosen = True

    def begin(self, epoch: int) -> int:
        """Begin ``epoch``, or what ``set_epoch`` chose since the last call; return which."""
        if not self._chosen:
            self.epoch = epoch
        self._chosen = False
        return self.epoch

    def permutation(self) -> np.ndarray:
        """The order of this epoch: int64 (len,)."""
        # 48 random bits of Philox seed torch's generator, whose randperm is the same on every
        # machine: two epochs or two seeds share nothing, which seed + epoch would not give.
        draw = _philox.uniform(self.seed, self.epoch, np.zeros(1, np.int64), _ORDER, 1)
        generator = torch.Generator()
        generator.manual_seed(int(draw[0, 0] * 2**48))
        return torch.randperm(len(self.data_source), generator=generator).numpy()

    def __iter__(self) -> Iterator[int]:
        return iter(self.permutation().tolist())

    def __len__(self) -> int:
        return len(self.data_source)


def _order(sampler: Any) -> Iterator[np.ndarray] | None:
    """The whole epoch's order in pieces of int64, or None where the sampler is the user's own."""
    if type(sampler) is SequentialSampler:
        return iter([np.arange(len(sampler.data_source), dtype=np.int64)])
    if type(sampler) is SeededSampler:
        return iter([sampler.permutation()])
    if type(sampler) is RandomSampler and not sampler.replacement:
        n = len(sampler.data_source)
        if sampler.num_samples == n:
            return _random_order(sampler.generator, n)
    return None


def _random_order(generator: torch.Generator | None, n: int) -> Iterator[np.ndarray]:
    """What torch's RandomSampler draws, in the same order from the same generator."""
    own = generator is None
    if generator is None:
        generator = torch.Generator()
        generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
    # Drawn now, on the caller's thread, although this is an iterator: a generator function would
    # run only at its first next.
    first = torch.randperm(n, generator=generator).numpy()

    def pieces() -> Iterator[np.ndarray]:
        yield first
        if not own:
            # RandomSampler draws once more when it is exhausted; the user's generator must end in
            # the same state, or the next epoch's order would differ from DataLoader's.
            torch.randperm(n, generator=generator)

    return pieces()


def index_batches(batch_sampler: Any) -> Iterator[np.ndarray]:
    """The batches of one epoch, each an int64 array of indices, in ``batch_sampler``'s order.

    Random numbers are drawn on the calling thread: for torch's own samplers at this call, for any
    other while iterating.
    """
    if type(batch_sampler) is BatchSampler:
        order = _order(batch_sampler.sampler)
        if order is not None:
            return _chunks(order, batch_sampler.batch_size, batch_sampler.drop_last)
    return (np.asarray(batch, dtype=np.int64) for batch in batch_sampler)


def _chunks(order: Iterator[np.ndarray], size: int, drop_last: bool) -> Iterator[np.ndarray]:
    for piece in order:
        stop = len(piece) // size * size if drop_last else len(piece)
        for start in range(0, stop, size):
            yield piece[start : start + size]
