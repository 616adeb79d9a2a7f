"""Drawing an epoch's index batches from a sampler.

Each batch of indices is an int64 array. torch's samplers give Python lists; for the two samplers
that DataLoader makes by itself, the same numbers are drawn as arrays. Any other sampler is the
user's code and is iterated as it is, on the thread of the training loop.
"""

from __future__ import annotations

import collections
import itertools
import weakref
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, RandomSampler
from typing_extensions import override

from .._base.indices import as_indices, repeats_within
from ..errors import UsageError
from .order import NOTHING, Batches, order_of

ENDED: Any = object()
"""What ``next`` gives at the end of an order: a sampler may give anything."""


class IndexBatches(Iterator[np.ndarray]):
    """The index batches of one epoch: int64 arrays, drawn on demand.

    Attributes:
        known: all batches, as soon as torch's or our sampler has drawn them. Empty for a user's
            sampler, which is never iterated ahead.
        skipped: how many batches of the epoch were skipped.
    """

    def __init__(self, batches: Iterator[np.ndarray], known: Batches | None = None) -> None:
        self._batches = batches
        self.known = Batches(NOTHING, 1, False) if known is None else known
        self.skipped = 0

    def __next__(self) -> np.ndarray:
        return next(self._batches)

    def asked(self, count: int) -> None:
        """Note that torch would have asked its sampler for so many batches by now.

        Engines may be further ahead. What torch's sampler draws at its end depends on when it is
        asked, so it is drawn then: after a loop that was left early, and between two iterators,
        the next order is torch's.
        """

    def prepend(self, drawn: list[np.ndarray]) -> None:
        """Put back batches that were drawn."""
        self._batches = itertools.chain(drawn, self._batches)


def index_batches(batch_sampler: Iterable[Any], *, whole: bool = False) -> IndexBatches:
    """The batches of one epoch, each an int64 array of indices, in ``batch_sampler``'s order.

    Random numbers are drawn on the thread that iterates, at the same moments as in torch; with
    ``whole`` all indices with the first batch, also from a user's sampler.
    """
    if type(batch_sampler) is BatchSampler:
        sampler: Any = batch_sampler.sampler  # its type is checked before any attribute is used
        size = batch_sampler.batch_size
        drop_last = batch_sampler.drop_last
        order = order_of(sampler)
        if order.known:
            known = Batches(order.permutation(), size, drop_last)
            return IndexBatches(iter(known), known)
        if type(sampler) is RandomSampler and not sampler.replacement:
            if sampler.num_samples == len(sampler.data_source):
                return _Shuffle(sampler, size, drop_last)
        if whole:
            known = Batches(NOTHING, size, drop_last)
            return IndexBatches(_all_batches(sampler, known), known)
    return IndexBatches(map(as_indices, batch_sampler))


def index_lists(sampler: Iterable[Any]) -> Iterator[Any]:
    """The items of ``iter(sampler)``; for torch's own samplers they are made from one array.

    As in torch, nothing is drawn, and no length is asked for, before the first item.
    """
    if type(sampler) is BatchSampler:
        inner = sampler.sampler
        if type(inner) is RandomSampler:
            # None: the length of the dataset, which may change
            if not inner.replacement and inner._num_samples is None:
                return _shuffled_lists(inner, sampler.batch_size, sampler.drop_last)
        elif order_of(inner).lazy:
            return _sequential_lists(sampler)
    return iter(sampler)


def skip_counted(order: Iterator[Any], batches: int, repeats: IndexCounter | None) -> None:
    """Skip the first ``batches`` of ``order``, and count them in ``repeats``."""
    for _ in range(batches):
        # not islice, which calls iter(order): a user's iterator may start again then
        indices = next(order, ENDED)
        if indices is ENDED:
            return  # a damaged state may have any number
        if repeats is not None:
            repeats.count(indices)


def skip_batches(order: IndexBatches, batches: int) -> np.ndarray:
    """Skip the first ``batches`` of ``order`` and draw the next one; return the skipped indices."""
    skipped = list(itertools.islice(order, batches))
    following = list(itertools.islice(order, 1))
    order.prepend(following)
    order.skipped = len(skipped)
    if order.known:
        order.known = order.known.after(len(skipped))
    return np.concatenate(skipped) if skipped else NOTHING


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

    A sampler may repeat a sample (WeightedRandomSampler, repeated augmentation). As in torch,
    each repetition is augmented anew. If it is ``known`` how often each sample of the order came
    before, int64 in the order of the calls of ``count``, nothing is counted.
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
    """Counts how often each index occurs in an epoch, unless that is ``known``: see ``Repeats``."""

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


def _shuffled_lists(sampler: RandomSampler, size: int, drop_last: bool) -> Iterator[list[int]]:
    """The batches, drawn when torch draws them: see ``_Shuffle``."""
    n, generator = len(sampler.data_source), sampler.generator
    order = _permutation(n, generator)
    whole = n - n % size
    for begin in range(0, whole, size):
        yield order[begin : begin + size].tolist()
    if generator is not None:
        torch.randperm(n, generator=generator, device=generator.device)
    if whole < n and not drop_last:
        yield order[whole:].tolist()


def _permutation(n: int, generator: torch.Generator | None) -> np.ndarray:
    """The order that torch's RandomSampler draws; without a generator it seeds one."""
    if generator is None:
        generator = torch.Generator()
        generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
    drawn = torch.randperm(n, generator=generator, device=generator.device)
    order: np.ndarray = drawn.cpu().numpy()
    return order


class _Shuffle(IndexBatches):
    """The batches that torch's RandomSampler and BatchSampler draw from the same generator.

    Source: ``torch.utils.data.sampler``. RandomSampler draws once more when it is exhausted.
    BatchSampler notices that before it yields an incomplete last batch. The generator ends in the
    same state here, or the order of the next epoch would differ from DataLoader's.

    The indices of ``known`` are drawn with the first batch.
    """

    def __init__(self, sampler: RandomSampler, size: int, drop_last: bool) -> None:
        # The generator does not keep this, or only the garbage collector would free the order.
        super().__init__(_Shuffle._drawn(weakref.ref(self)), Batches(NOTHING, size, drop_last))
        self._sampler = sampler
        self._size = size
        self._n = 0
        self._ends: torch.Generator | None = None  # draws once more at the end

    @staticmethod
    def _drawn(shuffle: weakref.ref[_Shuffle]) -> Iterator[np.ndarray]:
        """The batches; the end is drawn by ``asked``."""
        self = shuffle()
        assert self is not None, "it asks for them"
        self._n = len(self._sampler.data_source)
        self._ends = self._sampler.generator
        known = self.known
        known.indices = _permutation(self._n, self._ends)
        del self
        yield from known

    @override
    def asked(self, count: int) -> None:
        """Draw what is drawn at the end, if the sampler was asked for so many batches."""
        if self._ends is not None and self.skipped + count > self._n // self._size:
            torch.randperm(self._n, generator=self._ends, device=self._ends.device)
            self._ends = None
