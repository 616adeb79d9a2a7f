"""The sampler of a loader that was given none."""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterableDataset

from .._sources.mix import MixDataset
from .bucket_sampler import BucketSampler
from .config import LoaderConfig
from .mix_sampler import MixSampler
from .order import EpochSampler, InOrder, SeededSampler


def of_loader(
    dataset: Any, shuffle: bool | None, seed: int | None, batch_size: int | None, *, shard: bool
) -> tuple[EpochSampler | None, bool | None]:
    """The ``sampler`` and ``shuffle`` to pass to torch for a loader that was given no sampler."""
    if isinstance(dataset, MixDataset):
        # Its order is made by a seed, because each epoch takes up where the last one ended.
        size = batch_size or 1
        return MixSampler(dataset, seed or 0, shuffle=bool(shuffle), batch_size=size), None
    if shuffle and (shard or seed is not None):
        # All ranks need the same order: without a seed, that of seed 0, as in DistributedSampler.
        return SeededSampler(dataset, seed or 0), None
    if shuffle or seed is None or isinstance(dataset, IterableDataset):
        return None, shuffle
    return InOrder(dataset), None


def of_groups(dataset: Any, config: LoaderConfig, *, shuffle: bool) -> BucketSampler:
    """The ``batch_sampler`` to pass to torch for a loader with ``batch_by``."""
    assert config.batch_by is not None and config.batch_size is not None, "checked by the config"
    return BucketSampler(
        dataset,
        batch_by=config.batch_by,
        batch_size=config.batch_size,
        batch_pixels=config.batch_pixels,
        drop_last=config.drop_last,
        shuffle=shuffle,
        seed=config.seed or 0,  # all ranks need the same order
    )
