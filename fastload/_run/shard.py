"""Shard: which part of an epoch's order belongs to a rank.

The arithmetic is that of torch's DistributedSampler. The order is made divisible by the number of
ranks by repeating its beginning or, with ``drop_last``, by leaving out its end. Rank r gets every
world_size-th index, starting at r. So the first k batches of all ranks together are the first part
of the order, and a checkpoint can be resumed on another number of ranks.
"""

from __future__ import annotations

import dataclasses
import os
import warnings

import numpy as np
import torch
from torch.utils.data import IterableDataset, SequentialSampler

from .._base import callers
from ..errors import UsageError
from .order import InOrder, SeededSampler

_warned = False


@dataclasses.dataclass(frozen=True)
class Shard:
    """One of several ranks.

    Attributes:
        rank: 0 to world_size - 1.
        world_size: number of ranks.
    """

    rank: int = 0
    world_size: int = 1

    def part(self, order: np.ndarray, first: int, *, drop_last: bool) -> tuple[np.ndarray, int]:
        """This rank's indices of ``order`` (int64) from position ``first`` on.

        Returns:
            The indices, and how many of them are padding (repetitions of others).
        """
        left = order[first:]
        n, world = len(left), self.world_size
        if drop_last:
            return left[: n - n % world][self.rank :: world], 0
        padding = -n % world if n else 0
        if padding:
            left = np.concatenate([left, np.resize(order, padding)])
        mine = np.arange(self.rank, len(left), world)
        return left[mine], int(np.count_nonzero(mine >= n))

    def count(self, n: int, *, drop_last: bool) -> int:
        """How many of ``n`` indices are this rank's."""
        return n // self.world_size if drop_last else -(-n // self.world_size)


def resolve(rank: int | None, world_size: int | None) -> Shard:
    """The rank given, else torch.distributed's, else torchrun's.

    Raises:
        UsageError: no rank is known, or it is not below ``world_size``.
    """
    if (rank is None) != (world_size is None):
        raise UsageError(f"expected rank and world_size together, got {rank=} and {world_size=}")
    if rank is None or world_size is None:
        found = distributed() or _environment()
        if found is None:
            raise UsageError(
                "shard=True needs to know this process's rank: initialise torch.distributed before "
                "iterating, start with torchrun, or pass rank and world_size"
            )
        return found
    if not 0 <= rank < world_size:
        raise UsageError(f"expected 0 <= rank < world_size, got {rank=} and {world_size=}")
    return Shard(rank, world_size)


def distributed() -> Shard | None:
    """This process's rank in torch.distributed; None if that is not initialised."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    return Shard(torch.distributed.get_rank(), torch.distributed.get_world_size())


def warn_if_every_rank_reads_all(dataset: object) -> None:
    """Warn, once per process, if several ranks each read a whole map-style dataset."""
    global _warned
    found = distributed()
    if _warned or found is None or found.world_size == 1 or isinstance(dataset, IterableDataset):
        return
    _warned = True
    warnings.warn(
        f"each of {found.world_size} ranks reads every sample of the dataset: pass shard=True, or "
        "a DistributedSampler, unless this is intended",
        stacklevel=callers.stacklevel(),
    )


def order(sampler: SeededSampler | InOrder | SequentialSampler) -> np.ndarray:
    """The order of the whole epoch, over all ranks: int64."""
    if isinstance(sampler, SeededSampler):
        return sampler.permutation()
    return np.arange(len(sampler.data_source), dtype=np.int64)


def _environment() -> Shard | None:
    try:
        return Shard(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    except (KeyError, ValueError):
        return None
