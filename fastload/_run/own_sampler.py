"""The order of a loader: its sampler, or batch sampler, where it was given none."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from torch.utils.data import BatchSampler, IterableDataset

from .._base.torch_loader import has_own_order
from .._sources.kinds import is_mix_dataset
from ..errors import UsageError
from .config import LoaderConfig
from .order import EpochSampler, InOrder, OwnOrder, SeededSampler, windowed

if TYPE_CHECKING:
    from .bucket_sampler import BucketSampler


def order_arguments(
    config: LoaderConfig, *, batch_size: int | None, shuffle: bool | None
) -> dict[str, Any]:
    """The arguments of torch's DataLoader that make the order.

    ``config`` has its dataset open; ``batch_size`` and ``shuffle`` are as given. Raises
    UsageError if the dataset cannot be shuffled in windows.
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


class Ordered(Protocol):
    """A loader, as far as torch makes the order from its attributes."""

    dataset: Any
    sampler: Any
    batch_sampler: Any
    batch_size: int | None
    drop_last: bool

    @property
    def _index_sampler(self) -> Any: ...

    @property
    def _auto_collation(self) -> bool: ...

    @property
    def shard(self) -> object: ...


class MadeWith(NamedTuple):
    """The samplers that a loader was made with; ``own``: it was given neither.

    torch reads what is in their place when an epoch begins. timm and ultralytics put a batch
    sampler there that never ends; others set the batch size of torch's.
    """

    sampler: object
    batch_sampler: object
    own: bool

    def now(self, loader: Ordered) -> dict[str, Any]:
        """The fields of the config that make the order, as they are now.

        Raises UsageError if ``shard`` divided an order that was replaced.
        """
        sampler, batches = loader.sampler, loader.batch_sampler
        size, drop_last = loader.batch_size, loader.drop_last
        same = batches is self.batch_sampler
        own_order = has_own_order(loader)
        if own_order:
            drawn = OwnOrder(loader)
            sampler, batches = (None, drawn) if loader._auto_collation else (drawn, None)
            size, drop_last, same = None, False, False
        elif type(batches) is BatchSampler and size is not None:
            sampler, size = batches.sampler, batches.batch_size  # torch reads no others
            if not isinstance(loader.dataset, IterableDataset):
                drop_last = batches.drop_last
            same = sampler is self.sampler
        elif batches is None:
            same = sampler is self.sampler
        elif not same and not isinstance(loader.dataset, IterableDataset):
            sampler, size, drop_last = None, None, False  # as if it had been given
        if self.own and not same and loader.shard:
            other = (
                f"{type(loader).__name__}._index_sampler makes another"
                if own_order
                else "its sampler or batch_sampler was replaced by a "
                f"{type(batches or sampler).__name__} after it was made"
            )
            raise UsageError(
                f"shard divides the order that the loader makes, and {other}: use "
                "shard=False with a DistributedSampler"
            )
        return {
            "sampler": sampler,
            "batch_sampler": batches,
            "batch_size": size,
            "drop_last": drop_last,
            "own_order": self.own and same,
        }

    def of_copy(self, loader: Ordered) -> dict[str, Any]:
        """The attributes ``sampler``, ``batch_sampler`` and ``_made_with`` of a loader's copy.

        Our samplers keep the epoch, so the copy gets its own. Others are shared, as torch does.
        """
        sampler, batches = loader.sampler, loader.batch_sampler
        other = copy.copy(sampler) if isinstance(sampler, EpochSampler) else sampler
        others = batches
        if isinstance(batches, EpochSampler):
            others = copy.copy(batches)
        elif type(batches) is BatchSampler and batches.sampler is sampler:
            others = BatchSampler(other, batches.batch_size, batches.drop_last)
        made = MadeWith(
            other if sampler is self.sampler else self.sampler,
            others if batches is self.batch_sampler else self.batch_sampler,
            self.own,
        )
        return {"sampler": other, "batch_sampler": others, "_made_with": made}


def _of_loader(
    config: LoaderConfig, batch_size: int | None, shuffle: bool | None
) -> tuple[EpochSampler | None, bool | None]:
    """The ``sampler`` and ``shuffle`` for torch."""
    dataset, seed = config.dataset, config.seed
    if is_mix_dataset(dataset):
        from .mix_sampler import MixSampler

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
    from .bucket_sampler import BucketSampler

    assert config.batch_by is not None and config.batch_size is not None, "checked by the config"
    return BucketSampler(
        config.dataset,
        batch_by=config.batch_by,
        batch_size=config.batch_size,
        drop_last=config.drop_last,
        shuffle=shuffle,
        seed=config.seed or 0,  # all ranks need the same order
    )
