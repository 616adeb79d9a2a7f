"""The order of an epoch whose batches are made of samples of one group: ``batch_by=``.

1. The samples of the epoch come in random order, or in ascending order without ``shuffle``.
2. Each group is divided into batches in that order. Its last batch may be incomplete;
   ``drop_last`` leaves it out.
3. The batches of all groups come in random order, or in the order of their first samples.

This is a function of (seed, epoch) and the groups, not of the ranks, which take batches in turn. So
a checkpoint, which counts batches of all ranks, can be resumed on another number of ranks. The
batches that are missing for equal numbers are repeated from the beginning, or left out with
``drop_last``, as samples are elsewhere (``shard.py``).
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Literal, TypeAlias, TypeGuard

import numpy as np
import torch
from torch.utils.data import Dataset

from .._base import philox
from .._sources.augmentation_checks import is_integer
from .._sources.source import Source, image_sizes, resolve
from .._sources.unreadable import Unreadable
from .._transforms.buckets import Buckets
from .._transforms.plan import Plan, Views
from .._transforms.sample_params import output_sizes
from ..errors import UsageError
from .order import Division, EpochSampler, Remainder, UnequalBatches, random_order
from .shard import Shard

BatchBy: TypeAlias = (
    Literal["aspect"]
    | tuple[Literal["aspect"], int]
    | Buckets
    | Sequence[Any]
    | Callable[[int], Hashable]
)
"""The argument ``batch_by``. A sequence may also be an array or a tensor."""

_ASPECT = "aspect"

# Random streams of Philox: the samples of an epoch, and its batches.
_SAMPLES, _BATCHES = 0x6275_6B73, 0x6275_6B62


@dataclasses.dataclass(frozen=True)
class Groups:
    """Which samples may share a batch.

    Attributes:
        number: int64 (n,), the group of each sample.
        pixels: int64 (groups,), pixels of each sample of a group, over all views; None: unknown.
        names: of the groups, for ``explain()``.
    """

    number: np.ndarray
    pixels: np.ndarray | None
    names: tuple[str, ...]

    @property
    def counts(self) -> np.ndarray:
        """int64 (groups,), how many samples each group has."""
        return np.bincount(self.number, minlength=len(self.names))


class BucketSampler(EpochSampler):
    """Gives lists of indices; each list is a batch of one group.

    Args:
        batch_by: see FastLoader.
        batch_size: the most samples of a batch; where ``batch_by`` limits pixels, 1 sets no limit.
        drop_last: leave out incomplete batches.
        shuffle: random order, a function of ``seed`` and epoch.
    """

    batched = True

    def __init__(
        self,
        data_source: Dataset[Any],
        *,
        batch_by: BatchBy,
        batch_size: int,
        drop_last: bool,
        shuffle: bool,
        seed: int,
    ) -> None:
        super().__init__(data_source)  # type: ignore[arg-type]  # a map-style dataset has a length
        self.batch_by, self.pixels = batch_by, None
        if isinstance(batch_by, Buckets):
            self.pixels = batch_by.batch_pixels
        elif _is_aspect(batch_by) and not isinstance(batch_by, str):
            self.batch_by, self.pixels = batch_by
        self.samples = batch_size
        self.drop_last = drop_last
        self.shuffle = shuffle
        self.seed = seed
        # What the groups were found for, and the groups. Finding them may read a million headers.
        self._known_groups: tuple[int, Plan | Views | None, Groups] | None = None

    def groups(self) -> Groups:
        """The groups of the dataset as it is now. Raises UsageError if ``batch_by`` does not fit
        it.
        """
        n = len(self.data_source)
        source = _source(self.data_source) if isinstance(self.batch_by, str) else None
        plan = None if source is None else source.plan
        if self._known_groups is not None:
            length, same, groups = self._known_groups
            if length == n and (plan is same or (plan is not None and plan.same_as(same))):
                return groups
        if source is not None:
            groups = _by_output(source)
        elif isinstance(self.batch_by, Buckets):
            groups = _by_bucket(self.data_source, self.batch_by)
        else:
            groups = _by_key(self.batch_by, n)
        self._known_groups = n, plan, groups
        return groups

    def sizes(self) -> np.ndarray:
        """int64 (groups,), the number of samples in a whole batch of each group."""
        groups = self.groups()
        if self.pixels is None:
            return np.full(len(groups.names), self.samples, np.int64)
        assert groups.pixels is not None, "'aspect' and Buckets tell sizes"
        fitting: np.ndarray = np.maximum(self.pixels // np.maximum(groups.pixels, 1), 1)
        return fitting.clip(max=self.samples) if self.samples > 1 else fitting

    def length(self, epoch: int) -> int | None:
        """How many batches ``epoch`` has; all epochs have as many."""
        counts, sizes = self.groups().counts, self.sizes()
        return int((counts // sizes if self.drop_last else -(-counts // sizes)).sum())

    def count(self, division: Division) -> int:
        return division.shard.count(len(self), drop_last=self.drop_last)

    def batches(self) -> UnequalBatches:
        """The batches of this epoch."""
        groups, sizes = self.groups(), self.sizes()
        order = np.arange(len(groups.number), dtype=np.int64)
        if self.shuffle:
            order = random_order(len(order), self._drawn(_SAMPLES))
        place = np.argsort(groups.number[order], kind="stable")  # in the epoch, group by group
        starts, lengths = [], []
        begin = 0
        for count, size in zip(groups.counts.tolist(), sizes.tolist(), strict=True):
            its = np.arange(0, count - size + 1 if self.drop_last else count, size, dtype=np.int64)
            starts.append(begin + its)
            lengths.append(np.minimum(size, count - its))
            begin += count
        start, length = (np.concatenate(each) for each in (starts, lengths))
        if self.shuffle:
            turn = random_order(len(start), self._drawn(_BATCHES))
        else:
            turn = np.argsort(place[start], kind="stable")
        return UnequalBatches.gathered(order[place], start[turn], length[turn])

    def part(self, division: Division, records: Callable[[np.ndarray], np.ndarray]) -> Remainder:
        batches, padding = self._mine(division.shard, division.first)
        return Remainder(batches, len(batches), None, padding)

    def following(self, epoch: int, shard: Shard) -> np.ndarray:
        return self._in_epoch(epoch)._mine(shard, 0)[0].indices

    def _mine(self, shard: Shard, first: int) -> tuple[UnequalBatches, int]:
        """The batches of one rank after the ``first`` of all ranks, and how many samples repeat."""
        batches = self.batches()
        order = np.arange(len(batches), dtype=np.int64)
        mine, padding = shard.part(order, first, drop_last=self.drop_last)
        chosen = batches.chosen(mine)
        return chosen, len(chosen.indices) - chosen.before(len(mine) - padding)

    def grouping(self) -> dict[str, Any] | None:
        return {
            "batch_size": self.samples,
            "batch_pixels": self.pixels,
            "drop_last": self.drop_last,
            "shuffle": self.shuffle,
            "groups": zlib.crc32(self.groups().number.tobytes()),
        }

    def __iter__(self) -> Iterator[list[int]]:  # type: ignore[override]
        return map(np.ndarray.tolist, self.batches())

    def _drawn(self, stream: int) -> int:
        """A seed (63 bits), a function of the sampler's and of the epoch."""
        return philox.seeds(self.seed, self.epoch, np.zeros(1, np.int64), stream)[0]


def one_size(batch_by: BatchBy) -> bool:
    """Whether it makes batches of images of one size."""
    return isinstance(batch_by, Buckets) or _is_aspect(batch_by)


def _is_aspect(batch_by: object) -> TypeGuard[Literal["aspect"] | tuple[Literal["aspect"], int]]:
    if isinstance(batch_by, tuple) and len(batch_by) == 2 and isinstance(batch_by[0], str):
        return batch_by[0] == _ASPECT and is_integer(batch_by[1])
    return isinstance(batch_by, str) and batch_by == _ASPECT


def check(batch_by: object) -> None:
    """Raise UsageError unless ``batch_by`` is what FastLoader's argument of that name may be."""
    if _is_aspect(batch_by):
        if not isinstance(batch_by, str) and batch_by[1] < 1:
            raise UsageError(f"batch_by: expected a positive number of pixels, got {batch_by!r}")
        return
    one_of_ours = isinstance(batch_by, (Buckets, np.ndarray, torch.Tensor)) or callable(batch_by)
    sequence = isinstance(batch_by, Sequence) and not isinstance(batch_by, (str, bytes))
    if not one_of_ours and not sequence:
        raise UsageError(
            "batch_by: expected 'aspect', ('aspect', pixels), Buckets, a callable that takes an "
            f"index, or a sequence with a key for each sample, got {batch_by!r}"
        )


def _source(dataset: object) -> Source:
    """What an engine reads, which knows the sizes that come out of the transform."""
    try:
        source = resolve(dataset)
    except Unreadable as unreadable:
        raise UsageError(
            "batch_by='aspect': expected a dataset and a transform that fastload runs itself, "
            f"which tells the sizes of its results, but {unreadable.reason}; pass "
            "batch_by=Buckets([...]), or a sequence of (height, width)"
        ) from None
    if source.tensors:
        raise UsageError("batch_by='aspect': expected images, got a TensorDataset")
    return source


def _by_output(source: Source) -> Groups:
    """A group for each size that comes out of the transform."""
    images = source.store.sizes(source.lookup(np.arange(len(source), dtype=np.int64)))
    of_views = [output_sizes(plan, images) for plan in source.plan.each]
    fixed = [sizes for sizes in of_views if sizes is not None]
    if len(fixed) < len(of_views):
        raise UsageError(
            "batch_by='aspect': expected a transform whose results have a size that depends on the "
            "image alone, got a rotation with expand=True; end it with buckets.crop()"
        )
    return _of_sizes(np.concatenate([sizes[:, ::-1] for sizes in fixed], axis=1))


def _by_bucket(dataset: object, buckets: Buckets) -> Groups:
    """A group for each bucket that has images."""
    try:
        images = image_sizes(dataset)
    except Unreadable as unreadable:
        raise UsageError(
            f"batch_by=Buckets: the sizes of the images are not known: {unreadable.reason}; give "
            "the dataset a method get_height_and_width(index), or pass "
            "batch_by=[buckets.nearest(height, width) for ...]"
        ) from None
    sizes = np.zeros((len(images), 2), np.int64)
    sized = images.min(axis=1, initial=1) > 0
    sizes[sized] = np.array(buckets.sizes, np.int64)[buckets.numbers(images[sized])]
    return _of_sizes(sizes)


def _of_sizes(sizes: np.ndarray) -> Groups:
    """Groups of equal ``sizes``, (n, 2 x views): heights and widths.

    Images without a size are no images. They join the largest group, where they are errors.
    """
    sized = sizes.min(axis=1, initial=1) > 0
    each, which = np.unique(sizes[sized], axis=0, return_inverse=True)
    if not len(each):
        return Groups(np.zeros(len(sizes), np.int64), np.zeros(1, np.int64), ("unknown",))
    number = np.empty(len(sizes), np.int64)
    number[sized] = which.reshape(-1)
    number[~sized] = np.bincount(number[sized]).argmax()
    pairs = each.reshape(len(each), -1, 2)
    names = tuple(" + ".join(f"{h} x {w}" for h, w in its) for its in pairs.tolist())
    return Groups(number, pairs.prod(axis=2).sum(axis=1), names)


def _by_key(batch_by: Any, n: int) -> Groups:
    """A group for each key: what a callable gives for each index, or what a sequence holds."""
    if isinstance(batch_by, torch.Tensor):
        batch_by = batch_by.numpy(force=True)
    keys = list(map(batch_by, range(n))) if callable(batch_by) else batch_by
    if len(keys) != n:
        raise UsageError(f"batch_by: expected a key for each of {n} samples, got {len(keys)} keys")
    keys = [_key(key) for key in keys]
    if keys and all(isinstance(key, tuple) and _is_size(key) for key in keys):
        return _of_sizes(np.array(keys, np.int64))
    numbers: dict[Hashable, int] = {}
    try:
        number = [numbers.setdefault(key, len(numbers)) for key in keys]
    except TypeError as error:
        raise UsageError(f"batch_by: expected keys that can be compared: {error}") from error
    names = tuple(map(str, numbers)) or ("unknown",)
    return Groups(np.array(number, np.int64), None, names)


def _key(key: Any) -> Any:
    """A key that can be looked up in a dict: of arrays, tensors and lists their numbers."""
    if isinstance(key, (np.ndarray, np.generic, torch.Tensor)):
        key = key.tolist()
    return tuple(key) if isinstance(key, list) else key


def _is_size(key: tuple[Any, ...]) -> bool:
    return len(key) == 2 and all(type(side) is int and side > 0 for side in key)
