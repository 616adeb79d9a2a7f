"""The order of a Mix: which component and which of its samples is at each place of an epoch.

1. Each component is spread evenly over the epoch: its i-th sample is due at (i + phase) / weight,
   and samples come in the order in which they are due. So every stretch of n places has n x weight
   samples of a component, exactly if that is a whole number and both ends are multiples of n. This
   depends neither on the batch size nor on the number of ranks, so a checkpoint can be resumed with
   others.
2. The samples of a component are read in one random order after another. An epoch continues where
   the one before ended.
3. The places of each batch are shuffled, because transforms such as MixUp pair neighbours.

Ranks take whole batches in turn (``block``); of other orders they take single samples. So all ranks
together have the batches of one rank.
"""

from __future__ import annotations

import numpy as np

from .._base import philox
from .._sources.mix import Mix, MixDataset
from .order import NOTHING, SeededSampler, random_order
from .shard import Shard

# Random streams of Philox: orders of the components, places in a batch, places in an epoch.
_STREAM = 0x6D69_7873
_PLACES = 0x6D69_7870
_EPOCH = 0x6D69_7865

# Phases are multiples of it, modulo 1. However many there are, they are far from each other, so
# rare components of equal weight do not come all at once.
_GOLDEN = (5**0.5 - 1) / 2


class MixSampler(SeededSampler):
    """The order of a mix, a pure function of (seed, epoch, weights).

    Without ``shuffle`` each component is in its own order, and evenly spread. The places of
    ``batch_size`` samples, a batch of one rank, are shuffled.
    """

    repeats = True

    def __init__(
        self, data_source: MixDataset, seed: int, *, shuffle: bool, batch_size: int
    ) -> None:
        super().__init__(data_source, seed)
        self.mix: Mix = data_source.mix
        self.shuffle = shuffle
        self.block = batch_size
        self._sizes = [len(component) for component in data_source.datasets]  # type: ignore[arg-type]

    def begin(self, epoch: int) -> int:
        begun = super().begin(epoch)
        self.mix.begin(begun)
        return begun

    def length(self, epoch: int) -> int | None:
        return sum(self.mix.counts(epoch))

    def following(self, epoch: int, shard: Shard) -> np.ndarray:
        return NOTHING

    def explain(self) -> list[str]:
        epoch = self.next_epoch
        parts = zip(self.mix.names, self.mix.counts(epoch), self.mix.shares(epoch))
        told = (f"{count} samples of {name} ({float(share):.1%})" for name, count, share in parts)
        return [f"mix: in the next epoch {', '.join(told)}"]

    def describe(self) -> str | None:
        return "a mix, shuffled" if self.shuffle else "a mix, not shuffled"

    def permutation(self, first: int = 0) -> np.ndarray:
        # Places are shuffled in blocks from where a resumed epoch begins. With the batch size of
        # the checkpoint, that makes no difference.
        components = self._components()
        order = np.empty(len(components), np.int64)
        start = 0
        for component, size in enumerate(self._sizes):
            mine = np.flatnonzero(components == component)
            order[mine] = start + self._samples(component, len(mine))
            start += size
        if self.shuffle and self.mix.batching == "stratified":
            order = order[self._shuffled_places(len(order), first % self.block)]
        return order

    def _components(self) -> np.ndarray:
        """The number of the component at each place of the epoch: int64 (length,)."""
        numbers, due = [], []
        shares = self.mix.shares(self.epoch)
        for component, count in enumerate(self.mix.counts(self.epoch)):
            if count:
                phase = (component + 1) * _GOLDEN % 1
                due.append((np.arange(count) + phase) / float(shares[component]))
                numbers.append(np.full(count, component))
        order = np.concatenate(numbers)[np.argsort(np.concatenate(due), kind="stable")]
        if self.mix.batching == "random":
            order = order[random_order(len(order), self._drawn(self.epoch, _EPOCH))]
        return order

    def _samples(self, component: int, count: int) -> np.ndarray:
        """The next ``count`` samples of ``component`` in this epoch: int64 (count,)."""
        size, begin = self._sizes[component], self.mix.before(self.epoch)[component]
        rounds = []
        for number in range(begin // size, -(-(begin + count) // size)):
            if self.shuffle:
                rounds.append(random_order(size, self._drawn(number, _STREAM, component)))
            else:
                rounds.append(np.arange(size, dtype=np.int64))
        skip = begin % size
        return np.concatenate([np.empty(0, np.int64), *rounds])[skip : skip + count]

    def _shuffled_places(self, length: int, first: int) -> np.ndarray:
        """The places of the epoch, shuffled within blocks, of which one begins at ``first``."""
        quarters = np.arange(-(-length // 4), dtype=np.int64)
        words = philox.words(self.seed, self.epoch, quarters, [_PLACES])
        keys = words.reshape(4, -1).T.astype(np.uint32).ravel()[:length]
        places = np.arange(length, dtype=np.int64)
        whole = first + (length - first) // self.block * self.block if length > first else length
        blocks = [slice(0, first), slice(whole, length)]
        for block in blocks:
            places[block] = places[block][np.argsort(keys[block], kind="stable")]
        middle = slice(first, whole)
        rows = np.argsort(keys[middle].reshape(-1, self.block), axis=1, kind="stable")
        rows += np.arange(first, whole, self.block)[:, None]
        places[middle] = rows.ravel()
        return places

    def _drawn(self, number: int, stream: int, component: int = 0) -> int:
        """A seed (63 bits), a function of the sampler's and of the arguments."""
        return philox.seeds(self.seed, number, np.array([component], np.int64), stream)[0]
