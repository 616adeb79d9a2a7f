"""Which part of an epoch's order is a rank's.

The arithmetic is that of torch's DistributedSampler: the order is made divisible by the number of
ranks, by repeating its beginning or, with ``drop_last``, by leaving out its end; rank r gets every
world_size-th index from the r-th on. So the first k batches of all ranks together are the beginning
of the order, and an iteration can go on with another number of ranks.
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
    """One rank of several.

    Attributes:
        rank: 0 to world_size - 1.
        world_size: number of ranks.
    """

    rank: int = 0
    world_size: int = 1

    def part(self, order: np.ndarray, first: int, *, drop_last: bool) -> tuple[np.ndarray, int]:
        """This rank's indices of ``order`` (int64) from position ``first`` on.

        Returns:
            The indices, and how many of them repeat others.
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
    """The rank given, or torch.distributed's, or torchrun's.

    Raises:
        UsageError: there is none, or it is no rank of so many.
    """
    if (rank is None) != (world_size is None):
        raise UsageError(f"expected rank and world_size together, got {rank=} and {world_size=}")
    if rank is None or world_size is None:
        found = distributed() or _environment()
        if found is None:
            raise UsageError(
                "shard=True needs to know this process's rank: initialise torch.distributed before "
                "iterating, start with torchrun, or give rank and world_size"
            )
        return found
    if not 0 <= rank < world_size:
        raise UsageError(f"expected 0 <= rank < world_size, got {rank=} and {world_size=}")
    return Shard(rank, world_size)


def distributed() -> Shard | None:
    """What torch.distributed says of this process, if it is initialised."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    return Shard(torch.distributed.get_rank(), torch.distributed.get_world_size())


def warn_if_every_rank_reads_all(dataset: object) -> None:
    """Warn once where several ranks each read the whole of a map-style dataset."""
    global _warned
    found = distributed()
    if _warned or found is None or found.world_size == 1 or isinstance(dataset, IterableDataset):
        return
    _warned = True
    warnings.warn(
        f"each of {found.world_size} ranks reads every sample of the dataset: pass shard=True, or "
        "a DistributedSampler, unless this is meant",
        stacklevel=callers.stacklevel(),
    )


def order(sampler: SeededSampler | InOrder | SequentialSampler) -> np.ndarray:
    """The whole epoch's order: int64."""
    if isinstance(sampler, SeededSampler):
        return sampler.permutation()
    return np.arange(len(sampler.data_source), dtype=np.int64)


def _environment() -> Shard | None:
    try:
        return Shard(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    except (KeyError, ValueError):
        return None
