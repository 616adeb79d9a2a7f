"""Order: which index is at each position of an epoch.

A loader has one order. Ours are samplers that know the epoch, and give the whole order as an array:
ascending, shuffled by seed, of a mix (``mix_sampler.py``), in batches of one group
(``bucket_sampler.py``). torch's SequentialSampler is known as well. Any other sampler may be the
user's code: it is iterated, and what it gives is known only then.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import RandomSampler, Sampler, SequentialSampler

from .._base import philox
from .._base.indices import repeats_within
from .._sources.augmentation_checks import epoch_number
from .._sources.kinds import is_packed, nested
from ..errors import UsageError
from .shard import Shard

if TYPE_CHECKING:
    from typing_extensions import Self

_ORDER = 0x6F72_6465  # random stream of the order; transforms have other streams


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
        return self.indices[self.before(number) : self.before(number + 1)]

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

    def before(self, number: int) -> int:
        return int(self._ends[number - 1]) if number else 0

    def after(self, batches: int) -> UnequalBatches:
        """The same without the first ``batches``."""
        start = self.before(min(batches, len(self)))
        return UnequalBatches(self.indices[start:], self._ends[batches:] - start)


class Remainder(NamedTuple):
    """What is left of an epoch for one rank.

    Attributes:
        batches: its batches.
        length: how much that is, in what the order counts: samples, or batches of one group.
        times: how often each of its samples came before, on any rank; None: this is counted.
        padding: how many of its samples repeat others.
    """

    batches: Batches
    length: int
    times: np.ndarray | None
    padding: int


class Division(NamedTuple):
    """How an order is divided: among ranks, and into batches of ``size``.

    Attributes:
        drop_last: leave out what is incomplete.
        first: positions of the order, over all ranks, that were consumed.
        spent: positions at its end that were.
    """

    shard: Shard
    size: int
    drop_last: bool
    first: int = 0
    spent: int = 0


class Order:
    """The order of a sampler of the user's, and what the others change of it.

    ``sampler`` is a sampler or a batch sampler; anything that can be iterated over.

    Attributes:
        known: it is a function of the epoch.
        batched: its positions are of batches, not of samples.
        lazy: its indices need no array: each is its position.
        blocks: it keeps to whole blocks of a store.
        repeats: an index may come several times, and then has other random numbers.
    """

    known = False
    batched = False
    lazy = False
    blocks = False
    repeats = True

    def __init__(self, sampler: object) -> None:
        # torch's own random samplers give an index once, but not with replacement, nor if they may
        # give more than there are
        self.repeats = (
            type(sampler) is not RandomSampler
            or sampler.replacement
            or sampler._num_samples is not None
        )

    # --- which epoch it is at; ``cursor.py`` asks samplers of the user's -------------------------

    keeps_epoch = False
    """Whether it is told the epoch, and may choose another one."""

    def begin(self, epoch: int) -> int:
        """Begin ``epoch``, or the epoch set since the last call; return its number."""
        return epoch

    def upcoming(self, epoch: int) -> int:
        """The epoch that ``begin(epoch)`` would begin."""
        return epoch

    def clear_choice(self) -> None:
        """Ignore the last call of ``set_epoch``."""

    def resume(self, epoch: int) -> None:
        """Ignore the last call of ``set_epoch``, because ``epoch`` comes next."""

    # --- what it gives ---------------------------------------------------------------------------

    def length(self, epoch: int) -> int | None:
        """How many positions ``epoch`` has; None: nobody knows."""
        return None

    def describe(self) -> str | None:
        """How it is made; None: by the user's sampler, or as its groups are."""
        return None

    def grouping(self) -> dict[str, Any] | None:
        """What its batches are made by, for a checkpoint; None: by their number of samples."""
        return None

    def count(self, division: Division) -> int:
        """Batches of one rank in the next epoch."""
        raise NotImplementedError("only an order that is known can be divided")

    def part(self, division: Division, records: Callable[[np.ndarray], np.ndarray]) -> Remainder:
        """What is left of the epoch that began, for one rank. ``records``: of indices."""
        raise NotImplementedError("only an order that is known can be divided")

    def following(self, epoch: int, shard: Shard) -> np.ndarray:
        """A rank's indices of ``epoch``: int64, in their order; empty if nobody knows them yet.

        This draws from no generator and changes nothing. Use it only to decide what a cache keeps:
        the user may choose another epoch.
        """
        return NOTHING

    def permutation(self, first: int = 0) -> np.ndarray:
        """The order of the epoch that began: int64. ``first``: how many were consumed already."""
        raise NotImplementedError("only an order that is known is an array")

    def explain(self) -> list[str]:
        """Lines of ``FastLoader.explain()``."""
        return []


class KnownOrder(Order):
    """An order over 0 .. n-1 that is a function of the epoch.

    Attributes:
        data_source: anything with a length.
        block: ranks take so many indices in turn, where the order is divided among them.
    """

    known = True
    repeats = False
    block = 1
    data_source: Sized

    def length(self, epoch: int) -> int | None:
        return len(self.data_source)

    def __len__(self) -> int:
        """The length of the next epoch."""
        return len(self.data_source)

    def count(self, division: Division) -> int:
        size, drop_last = division.size, division.drop_last
        samples = division.shard.count(len(self), drop_last=drop_last)
        whole, rest = divmod(samples, size)
        return whole + (rest > 0 and not drop_last)

    def part(self, division: Division, records: Callable[[np.ndarray], np.ndarray]) -> Remainder:
        order = self.permutation(division.first)
        if division.spent:
            order = order[: -division.spent]
        mine, padding = self._divided(order, division)
        times = self._times(order, division, records)
        batches = Batches(mine, division.size, division.drop_last)
        return Remainder(batches, len(mine), times, padding)

    def _divided(self, order: np.ndarray, division: Division) -> tuple[np.ndarray, int]:
        return division.shard.part(
            order, division.first, drop_last=division.drop_last, block=self.block
        )

    def _times(
        self,
        order: np.ndarray,
        division: Division,
        records: Callable[[np.ndarray], np.ndarray],
    ) -> np.ndarray | None:
        if not self.repeats:
            return None
        # The same on any number of ranks, none of which could count what others repeat.
        return self._divided(repeats_within(records(order)), division)[0]

    def following(self, epoch: int, shard: Shard) -> np.ndarray:
        return shard.part(self._in_epoch(epoch).permutation(), 0, drop_last=False)[0]

    def _in_epoch(self, epoch: int) -> Self:
        """The same order in that epoch."""
        return self


class Ascending(KnownOrder):
    """All indices in order, as torch's SequentialSampler gives them."""

    lazy = True
    blocks = True

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def length(self, epoch: int) -> int | None:
        try:
            return len(self.data_source)
        except TypeError:  # an error when it is iterated over, as in torch
            return None

    def permutation(self, first: int = 0) -> np.ndarray:
        return np.arange(len(self.data_source), dtype=np.int64)


class OwnOrder:
    """What the class of a loader says that indices are drawn from. As in torch, it is asked when an
    epoch begins, which the loader's samplers are told before.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader._index_sampler)

    def __len__(self) -> int:
        return len(self._loader._index_sampler)

    @property
    def inner(self) -> Any:
        """The sampler, or batch sampler, that the loader has."""
        loader = self._loader
        return loader.batch_sampler if loader._auto_collation else loader.sampler

    def __getattr__(self, name: str) -> Any:
        """An attribute of ``inner``, such as its epoch."""
        if name.startswith("_"):  # Python asks for some before there is a loader
            raise AttributeError(name)
        return getattr(self.inner, name)


def order_of(sampler: object) -> Order:
    """The order that ``sampler`` gives."""
    if isinstance(sampler, Order):
        return sampler
    if type(sampler) is SequentialSampler:
        return Ascending(sampler)  # whose data_source a program may change
    return Order(sampler)


def grouped(batch_sampler: object) -> EpochSampler | None:
    """The order in batches of one group that this is, or that lies in it (``batch_by=``).

    accelerate and timm wrap batch samplers.
    """
    while batch_sampler is not None:
        if isinstance(batch_sampler, EpochSampler) and batch_sampler.batched:
            return batch_sampler
        inner = getattr(batch_sampler, "sampler", None)
        batch_sampler = getattr(batch_sampler, "batch_sampler", inner)
    return None


def set_epoch_of(parts: Iterable[object], epoch: int) -> None:
    """Call ``set_epoch`` of those ``parts`` (datasets, samplers) that have it."""
    for part in parts:
        set_epoch = getattr(part, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)


class EpochSampler(KnownOrder, Sampler[int]):
    """An order that is a sampler. It keeps the epoch, and passes it on to the dataset.

    It gives each index 0 .. len-1 of ``data_source`` once.

    Attributes:
        epoch: the epoch that began last, or that was set since.
    """

    keeps_epoch = True

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source
        self.epoch = 0
        self._chosen = False
        self._begun = False

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, also of the dataset.

        The dataset's augmentation depends on the epoch, and a trainer that rebuilt the loader
        calls only the sampler's ``set_epoch``. Raises UsageError unless it is an integer below
        2**62.
        """
        self.epoch = epoch_number(epoch)
        set_epoch_of(nested(self.data_source), self.epoch)
        self._chosen = True

    def begin(self, epoch: int) -> int:
        self.epoch = self.upcoming(epoch)
        self._chosen, self._begun = False, True
        return self.epoch

    def upcoming(self, epoch: int) -> int:
        return self.epoch if self._chosen else epoch

    def clear_choice(self) -> None:
        self._chosen = False

    def resume(self, epoch: int) -> None:
        self.epoch, self._chosen, self._begun = epoch, False, False

    def _in_epoch(self, epoch: int) -> Self:
        other = copy.copy(self)
        other.epoch = epoch
        return other

    @property
    def next_epoch(self) -> int:
        """The epoch that begins next, as far as this sampler knows."""
        return self.epoch + (self._begun and not self._chosen)

    def __len__(self) -> int:
        """The length of the next epoch."""
        length = self.length(self.next_epoch)
        assert length is not None, "its data has a length"
        return length


class InOrder(Ascending, EpochSampler, SequentialSampler):
    """All indices in order: the SequentialSampler of a loader with an int ``seed``.

    The order does not depend on the epoch, but augmentation does, and some trainers call
    ``set_epoch`` of the sampler only.
    """

    def __init__(self, data_source: Sized) -> None:
        EpochSampler.__init__(self, data_source)

    def describe(self) -> str | None:
        return "ascending"


class Windows(NamedTuple):
    """A shuffle that reads whole blocks: they are permuted, and records within ``size`` of them.

    ``block``, int64 (n,), is the block of each index.
    """

    block: np.ndarray
    size: int

    def divided(self, order: np.ndarray, generator: torch.Generator) -> np.ndarray:
        """``order``, sorted by window only; ``generator`` draws the order of the blocks."""
        count = int(self.block.max(initial=-1)) + 1
        blocks = torch.randperm(count, generator=generator, device="cpu").numpy()
        window = np.empty(count, np.int64)
        window[blocks] = np.arange(count) // self.size
        by_window: np.ndarray = order[np.argsort(window[self.block[order]], kind="stable")]
        return by_window


class SeededSampler(EpochSampler):
    """A shuffle that is a pure function of (seed, epoch); with ``windows`` by blocks."""

    def __init__(self, data_source: Sized, seed: int, windows: Windows | None = None) -> None:
        super().__init__(data_source)
        self.seed = seed
        self.windows = windows
        self.blocks = windows is not None

    def describe(self) -> str | None:
        return "shuffled" if self.windows is None else f"shuffle_window={self.windows.size}"

    def permutation(self, first: int = 0) -> np.ndarray:
        # 48 random bits of Philox seed torch's generator, whose randperm is the same on every
        # machine. With seed + epoch instead, (seed 0, epoch 1) would equal (seed 1, epoch 0).
        draw = philox.uniform(self.seed, self.epoch, np.zeros(1, np.int64), _ORDER, 1)
        generator = torch.Generator()
        generator.manual_seed(int(draw[0, 0] * 2**48))
        count = len(self.data_source)
        order: np.ndarray = torch.randperm(count, generator=generator, device="cpu").numpy()
        return order if self.windows is None else self.windows.divided(order, generator)

    def __iter__(self) -> Iterator[int]:
        return iter(self.permutation().tolist())


def random_order(n: int, seed: int) -> np.ndarray:
    """0 .. n-1 in random order: int64 (n,), the same on every machine for the same ``seed``."""
    generator = torch.Generator()
    generator.manual_seed(seed)
    return torch.randperm(n, generator=generator, device="cpu").numpy()


def windowed(dataset: Any, sampler: EpochSampler | None, size: int) -> SeededSampler:
    """``sampler``, with windows of ``size`` blocks of 8 MB.

    Raises UsageError if there is no shuffle, or the dataset is no packed store.
    """
    if not isinstance(sampler, SeededSampler) or not is_packed(dataset):
        raise UsageError(
            "shuffle_window: expected shuffle=True and a packed store, got "
            f"{type(dataset).__name__}"
        )
    from ..storage.base import BLOCK_NBYTES

    dataset.store.check_window(size)
    spans = dataset.store.places(np.arange(len(dataset), dtype=np.int64))
    place = np.stack([spans.file.astype(np.int64), spans.offset // BLOCK_NBYTES], axis=1)
    block = np.unique(place, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return SeededSampler(sampler.data_source, sampler.seed, Windows(block, size))
