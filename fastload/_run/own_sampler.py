"""The order of a loader: its sampler, or batch sampler, where it was given none."""

from __future__ import annotations

import copy
from typing import Any

from torch.utils.data import BatchSampler, IterableDataset

from .._sources.mix import MixDataset
from .bucket_sampler import BucketSampler
from .config import LoaderConfig
from .mix_sampler import MixSampler
from .order import EpochSampler, InOrder, SeededSampler, windowed


def order_arguments(
    config: LoaderConfig, *, batch_size: int | None, shuffle: bool | None
) -> dict[str, Any]:
    """The arguments of torch's DataLoader that make the order.

    Args:
        config: of the loader, with its dataset open.
        batch_size, shuffle: as given.

    Raises:
        UsageError: the dataset cannot be shuffled in windows.
    """
    order = {
        "batch_size": batch_size,
        "shuffle": shuffle,
        "sampler": config.sampler,
        "batch_sampler": config.batch_sampler,
        "drop_last": config.drop_last,
    }
    if config.batch_sampler is not None:
        return order
    if config.batch_by is not None:
        batches = _of_groups(config, shuffle=bool(shuffle))
        # torch takes no others with it
        return {**order, "batch_sampler": batches, "batch_size": 1, "shuffle": None,
                "drop_last": False}  # fmt: skip
    if config.own_order:
        sampler, shuffle = _of_loader(config, batch_size, shuffle)
        if config.shuffle_window is not None:
            sampler = windowed(config.dataset, sampler, config.shuffle_window)
        return {**order, "sampler": sampler, "shuffle": shuffle}
    return order


def samplers_of_copy(sampler: object, batch_sampler: object) -> dict[str, Any]:
    """The attributes ``sampler`` and ``batch_sampler`` for a copy of the loader that has these.

    Ours keep the epoch, so the copy gets its own. Others are shared, as torch does.
    """
    other = copy.copy(sampler) if isinstance(sampler, EpochSampler) else sampler
    batches = batch_sampler
    if isinstance(batch_sampler, EpochSampler):
        batches = copy.copy(batch_sampler)
    elif type(batch_sampler) is BatchSampler and batch_sampler.sampler is sampler:
        batches = BatchSampler(other, batch_sampler.batch_size, batch_sampler.drop_last)  # type: ignore[arg-type]
    return {"sampler": other, "batch_sampler": batches}


def _of_loader(
    config: LoaderConfig, batch_size: int | None, shuffle: bool | None
) -> tuple[EpochSampler | None, bool | None]:
    """The ``sampler`` and ``shuffle`` for torch."""
    dataset, seed = config.dataset, config.seed
    if isinstance(dataset, MixDataset):
        # Its order is made by a seed, because each epoch takes up where the last one ended.
        size = batch_size or 1
        return MixSampler(dataset, seed or 0, shuffle=bool(shuffle), batch_size=size), None
    if shuffle and (config.shard or seed is not None):
        # All ranks need the same order: without a seed, that of seed 0, as in DistributedSampler.
        return SeededSampler(dataset, seed or 0), None
    if shuffle or seed is None or isinstance(dataset, IterableDataset):
        return None, shuffle
    return InOrder(dataset), None


def _of_groups(config: LoaderConfig, *, shuffle: bool) -> BucketSampler:
    """The ``batch_sampler`` for a loader with ``batch_by``."""
    assert config.batch_by is not None and config.batch_size is not None, "checked by the config"
    return BucketSampler(
        config.dataset,
        batch_by=config.batch_by,
        batch_size=config.batch_size,
        drop_last=config.drop_last,
        shuffle=shuffle,
        seed=config.seed or 0,  # all ranks need the same order
    )
