"""The order of an epoch: which sample indices make which batch.

Each batch of indices is an int64 array. torch's samplers give Python lists; for the two samplers
that DataLoader makes by itself, the same numbers are drawn as arrays. Any other sampler is the
user's code and is iterated as it is, on the thread of the training loop.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Hashable, Iterable, Iterator, Sized
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
)

from .._base import philox
from .._base.indices import as_indices, repeats_within
from .._sources.augmentation_checks import epoch_number
from .._sources.packed import PackedDataset
from .._sources.source import nested
from ..errors import UsageError
from ..storage.base import BLOCK_NBYTES

_NOTHING = np.empty(0, np.int64)

_ORDER = 0x6F72_6465  # random stream of the order; transforms have other streams


def set_epoch_of(parts: Iterable[object], epoch: int) -> None:
    """Call ``set_epoch`` of those ``parts`` (datasets, samplers) that have it."""
    for part in parts:
        set_epoch = getattr(part, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)


class EpochSampler(Sampler[int]):
    """A sampler that keeps the epoch and passes it on to the dataset.

    Args:
        data_source: anything with a length; the sampler gives each of its indices 0 .. len-1 once.

    Attributes:
        epoch: the epoch that began last, or that was set since.
        block: ranks take so many indices in turn, where the order is divided among them.
    """

    block = 1

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source
        self.epoch = 0
        self._chosen = False
        self._begun = False

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, also of the dataset.

        The dataset's augmentation depends on the epoch, and a trainer that rebuilt the loader calls
        only the sampler's ``set_epoch``.

        Raises:
            UsageError: ``epoch`` is not an integer below 2**62.
        """
        self.epoch = epoch_number(epoch)
        set_epoch_of(nested(self.data_source), self.epoch)
        self._chosen = True

    def begin(self, epoch: int) -> int:
        """Begin ``epoch``, or the epoch set since the last call; return its number."""
        self.epoch = self.upcoming(epoch)
        self._chosen, self._begun = False, True
        return self.epoch

    def upcoming(self, epoch: int) -> int:
        """The epoch that ``begin(epoch)`` would begin."""
        return self.epoch if self._chosen else epoch

    def clear_choice(self) -> None:
        """Ignore the last call of ``set_epoch``."""
        self._chosen = False

    def resume(self, epoch: int) -> None:
        """Ignore the last call of ``set_epoch``, because ``epoch`` comes next."""
        self.epoch, self._chosen, self._begun = epoch, False, False

    def length(self, epoch: int) -> int:
        """How many indices ``epoch`` has."""
        return len(self.data_source)

    def words(self) -> str:
        """How the order is made."""
        return "ascending"

    @property
    def next_epoch(self) -> int:
        """The epoch that begins next, as far as this sampler knows."""
        return self.epoch + (self._begun and not self._chosen)

    def __len__(self) -> int:
        """The length of the next epoch."""
        return self.length(self.next_epoch)


class InOrder(EpochSampler, SequentialSampler):
    """All indices in order: the SequentialSampler of a loader with an int ``seed``.

    The order does not depend on the epoch, but augmentation does, and some trainers call
    ``set_epoch`` of the sampler only.
    """


@dataclasses.dataclass(frozen=True)
class Windows:
    """A shuffle that reads whole blocks: they are permuted, and records within some of them.

    Attributes:
        block: int64 (n,), the block of each index.
        size: how many blocks a window has.
    """

    block: np.ndarray
    size: int

    @property
    def count(self) -> int:
        """The number of blocks."""
        return int(self.block.max(initial=-1)) + 1

    def divided(self, order: np.ndarray, blocks: np.ndarray) -> np.ndarray:
        """``order``, sorted by window only; ``blocks`` is the order of the blocks."""
        window = np.empty(len(blocks), np.int64)
        window[blocks] = np.arange(len(blocks)) // self.size
        found: np.ndarray = order[np.argsort(window[self.block[order]], kind="stable")]
        return found


class SeededSampler(EpochSampler):
    """A shuffle that is a pure function of (seed, epoch).

    Args:
        data_source: as for ``EpochSampler``.
        seed: any int.
        windows: shuffle by blocks; None: anything may follow anything.
    """

    def __init__(self, data_source: Sized, seed: int, windows: Windows | None = None) -> None:
        super().__init__(data_source)
        self.seed = seed
        self.windows = windows

    def words(self) -> str:
        """As in ``EpochSampler``."""
        return "shuffled" if self.windows is None else f"shuffle_window={self.windows.size}"

    def permutation(self, first: int = 0) -> np.ndarray:
        """The order of this epoch: int64 (len,).

        ``first``: how many of these were consumed already; here it makes no difference.
        """
        # 48 random bits of Philox seed torch's generator, whose randperm is the same on every
        # machine. With seed + epoch instead, (seed 0, epoch 1) would equal (seed 1, epoch 0).
        draw = philox.uniform(self.seed, self.epoch, np.zeros(1, np.int64), _ORDER, 1)
        count, seed = len(self.data_source), int(draw[0, 0] * 2**48)
        if self.windows is None:
            return random_order(count, seed)
        generator = torch.Generator()
        generator.manual_seed(seed)
        order: np.ndarray = torch.randperm(count, generator=generator, device="cpu").numpy()
        blocks = torch.randperm(self.windows.count, generator=generator, device="cpu").numpy()
        return self.windows.divided(order, blocks)

    def __iter__(self) -> Iterator[int]:
        return iter(self.permutation().tolist())


def random_order(n: int, seed: int) -> np.ndarray:
    """0 .. n-1 in random order: int64 (n,), the same on every machine for the same ``seed``."""
    generator = torch.Generator()
    generator.manual_seed(seed)
    return torch.randperm(n, generator=generator, device="cpu").numpy()


def windowed(dataset: Any, sampler: EpochSampler | None, size: int) -> SeededSampler:
    """``sampler``, with windows of ``size`` blocks of 8 MB.

    Raises:
        UsageError: there is no shuffle, or the dataset is no packed store.
    """
    if not isinstance(sampler, SeededSampler) or not isinstance(dataset, PackedDataset):
        raise UsageError(
            "shuffle_window: expected shuffle=True and a packed store, got "
            f"{type(dataset).__name__}"
        )
    dataset.store.check_window(size)
    spans = dataset.store.places(np.arange(len(dataset), dtype=np.int64))
    place = np.stack([spans.file.astype(np.int64), spans.offset // BLOCK_NBYTES], axis=1)
    block = np.unique(place, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return SeededSampler(sampler.data_source, sampler.seed, Windows(block, size))


SEQUENTIAL = (SequentialSampler, InOrder)
"""Types of samplers that give all indices in ascending order."""


class Batches:
    """Indices divided into batches, which are views made on demand: an epoch may have millions.

    Args:
        indices: int64 (n,).
        size: batch size.
        drop_last: leave out an incomplete last batch.
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
    """Batches of different sizes.

    Args:
        indices: int64 (n,), those of one batch after those of the other.
        ends: int64 (batches,), where each batch ends in ``indices``.
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


class Order(Iterator[np.ndarray]):
    """The index batches of one epoch: int64 arrays, drawn on demand.

    Attributes:
        known: all batches, as soon as torch's or our sampler has drawn them. Empty for a user's
            sampler, which is never iterated ahead.
        skipped: how many batches of the epoch were skipped.
    """

    def __init__(
        self,
        batches: Iterator[np.ndarray],
        known: Batches | None = None,
        shuffle: _Shuffle | None = None,
    ) -> None:
        self._batches = batches
        self._shuffle = shuffle
        self.known = Batches(_NOTHING, 1, False) if known is None else known
        self.skipped = 0

    def __next__(self) -> np.ndarray:
        return next(self._batches)

    def asked(self, count: int) -> None:
        """Note that torch would have asked its sampler for so many batches by now.

        Engines may be further ahead. What torch's sampler draws at its end depends on when it is
        asked, so it is drawn then: after a loop that was left early, and between two iterators,
        the next order is torch's.
        """
        if self._shuffle is not None:
            self._shuffle.asked(self.skipped + count)

    def prepend(self, drawn: list[np.ndarray]) -> None:
        """Put back batches that were drawn."""
        self._batches = itertools.chain(drawn, self._batches)


def index_batches(batch_sampler: Iterable[Any], *, whole: bool = False) -> Order:
    """The batches of one epoch, each an int64 array of indices, in ``batch_sampler``'s order.

    Random numbers are drawn on the thread that iterates, at the same moments as in torch.

    Args:
        batch_sampler: gives lists of indices.
        whole: draw all indices with the first batch, also from a user's sampler.
    """
    if type(batch_sampler) is BatchSampler:
        sampler: Any = batch_sampler.sampler  # its type is checked before any attribute is used
        size = batch_sampler.batch_size
        drop_last = batch_sampler.drop_last
        if type(sampler) in SEQUENTIAL:
            order = np.arange(len(sampler.data_source), dtype=np.int64)
            known = Batches(order, size, drop_last)
            return Order(iter(known), known)
        if isinstance(sampler, SeededSampler):
            known = Batches(sampler.permutation(), size, drop_last)
            return Order(iter(known), known)
        if type(sampler) is RandomSampler and not sampler.replacement:
            if sampler.num_samples == len(sampler.data_source):
                shuffle = _Shuffle(sampler, size, drop_last)
                return Order(shuffle.batches(), shuffle.known, shuffle)
        if whole:
            known = Batches(_NOTHING, size, drop_last)
            return Order(_all_batches(sampler, known), known)
    return Order(map(as_indices, batch_sampler))


def index_lists(sampler: Iterable[Any]) -> Iterator[Any]:
    """The items of ``iter(sampler)``; for torch's own samplers they are made from one array.

    As in torch, nothing is drawn, and no length is asked for, before the first item.
    """
    if type(sampler) is BatchSampler:
        inner = sampler.sampler
        if type(inner) in SEQUENTIAL:
            return _sequential_lists(sampler)
        if type(inner) is RandomSampler and not inner.replacement:
            if inner._num_samples is None:  # the length of the dataset, which may change
                shuffle = _Shuffle(inner, sampler.batch_size, sampler.drop_last)
                return map(np.ndarray.tolist, shuffle.batches_asked_for())
    return iter(sampler)


def skip_batches(order: Order, batches: int) -> np.ndarray:
    """Skip the first ``batches`` of ``order`` and draw the next one; return the skipped indices."""
    skipped = list(itertools.islice(order, batches))
    following = list(itertools.islice(order, 1))
    order.prepend(following)
    order.skipped = len(skipped)
    if order.known:
        order.known = order.known.after(len(skipped))
    return np.concatenate(skipped) if skipped else _NOTHING


def all_indices(sampler: Iterable[Any]) -> list[Any]:
    """All items of ``sampler``. Raises UsageError if it has no length: it may be endless."""
    if not hasattr(sampler, "__len__"):
        raise UsageError(
            "on_error='refill' takes further samples from the end of the order: expected a sampler "
            f"with a length, got {type(sampler).__name__}; use on_error='replace'"
        )
    return list(sampler)


class Repeats:
    """Counts how often each record was drawn in an epoch.

    A sampler may repeat a sample (WeightedRandomSampler, repeated augmentation). As in torch, each
    repetition is augmented anew.

    Args:
        records: the number of records of the store.
        known: how often each sample of the order came before, if that is known: int64, in the
            order of the calls of ``count``. Else None.
    """

    def __init__(self, records: int, known: np.ndarray | None = None) -> None:
        self._times = np.zeros(records if known is None else 0, np.int32)
        self._known = known
        self._counted = 0

    def count(self, records: np.ndarray) -> np.ndarray:
        """How often each of the batch ``records`` was drawn before: int64 (n,)."""
        if self._known is not None:
            self._counted += len(records)
            return self._known[self._counted - len(records) : self._counted]
        within = repeats_within(records)
        before: np.ndarray = self._times[records] + within
        # If a record occurs several times, the last assignment wins, and it has the full count.
        self._times[records] = before + 1
        return before


class IndexCounter:
    """Counts how often each index occurs in an epoch.

    Args:
        known: how often each came before, if that is known, in the order of the calls of ``count``.
    """

    def __init__(self, known: np.ndarray | None = None) -> None:
        self._times: collections.Counter[Hashable] = collections.Counter()
        self._known = None if known is None else iter(known.tolist())

    def count(self, indices: Any) -> list[int] | None:
        """Count ``indices`` (a list or one); how often each occurred before, None if none did."""
        before = []
        if self._known is not None:
            before = list(itertools.islice(self._known, len(_as_list(indices))))
            return before if any(before) else None
        for index in _as_list(indices):
            key = index if isinstance(index, Hashable) else repr(index)
            before.append(self._times[key])
            self._times[key] += 1
        return before if any(before) else None


def _as_list(indices: Any) -> list[Any]:
    """The indices of a task: a list, or one index where there are no batches."""
    return indices if isinstance(indices, list) else [indices]


def _all_batches(sampler: Iterable[Any], known: Batches) -> Iterator[np.ndarray]:
    """The batches of ``known``, which gets all indices of ``sampler`` with the first one."""
    known.indices = as_indices(all_indices(sampler))
    yield from known


def _sequential_lists(sampler: BatchSampler) -> Iterator[list[int]]:
    indices, size = range(len(sampler.sampler)), sampler.batch_size  # type: ignore[arg-type]
    end = len(indices) - len(indices) % size if sampler.drop_last else len(indices)
    for begin in range(0, end, size):
        yield list(indices[begin : begin + size])


class _Shuffle:
    """The batches that torch's RandomSampler and BatchSampler draw from the same generator.

    Source: ``torch.utils.data.sampler``. RandomSampler draws once more when it is exhausted.
    BatchSampler notices that before it yields an incomplete last batch. The generator ends in the
    same state here, or the order of the next epoch would differ from DataLoader's.

    Attributes:
        known: the batches; its indices are drawn with the first one.
    """

    def __init__(self, sampler: RandomSampler, size: int, drop_last: bool) -> None:
        self._sampler = sampler
        self._size = size
        self._n = 0
        self._ends: torch.Generator | None = None  # draws once more at the end
        self.known = Batches(_NOTHING, size, drop_last)

    def batches(self) -> Iterator[np.ndarray]:
        """The batches; the end is drawn by ``asked``."""
        self._n = len(self._sampler.data_source)
        self._ends = generator = self._sampler.generator
        if generator is None:
            generator = torch.Generator()
            generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
        order = torch.randperm(self._n, generator=generator, device=generator.device)
        self.known.indices = order.cpu().numpy()
        yield from self.known

    def batches_asked_for(self) -> Iterator[np.ndarray]:
        """The batches, each drawn when torch asks for it."""
        for number, batch in enumerate(self.batches(), 1):
            self.asked(number)
            yield batch
        self.asked(len(self.known) + 1)

    def asked(self, count: int) -> None:
        """Draw what is drawn at the end, if the sampler was asked for so many batches."""
        if self._ends is not None and count > self._n // self._size:
            torch.randperm(self._n, generator=self._ends, device=self._ends.device)
            self._ends = None
