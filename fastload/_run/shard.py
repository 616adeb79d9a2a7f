"""Shard: which part of an epoch's order belongs to a rank.

The arithmetic is that of torch's DistributedSampler. The order is made divisible by the number of
ranks by repeating its beginning or, with ``drop_last``, by leaving out its end. Rank r gets every
world_size-th index, starting at r. So the first k batches of all ranks together are the first part
of the order, and a checkpoint can be resumed on another number of ranks. Where whole batches belong
together, ranks take blocks of indices in turn, and single ones of the rest.

With a DeviceMesh, the ranks are its positions. Processes that differ only in other dimensions, such
as those of tensor parallelism, have one position and read the same samples.
"""

from __future__ import annotations

import math
import operator
import os
import warnings
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import IterableDataset

from .._base import callers
from .._base.value_class import value_class
from .._sources.augmentation_checks import is_integer
from ..errors import UsageError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_warned = False


@value_class()
class Shard:
    """One of ``world_size`` ranks."""

    rank: int = 0
    world_size: int = 1

    def part(
        self, order: np.ndarray, first: int, *, drop_last: bool, block: int = 1
    ) -> tuple[np.ndarray, int]:
        """This rank's indices of ``order`` (int64) from ``first`` on, and how many of them are
        padding.

        ``order`` is that of all ranks. ``drop_last`` leaves out the end rather than repeat the
        beginning. Ranks take ``block`` indices in turn.
        """
        rest = order[first:]
        n, world = len(rest), self.world_size
        padding = -n % world if n and not drop_last else 0
        if padding:
            rest = np.concatenate([rest, np.resize(order, padding)])
        whole = len(rest) - len(rest) % (world * block)
        places = np.arange(len(rest) - len(rest) % world)
        blocks = places[:whole].reshape(-1, world, block)[:, self.rank].ravel()
        mine = np.concatenate([blocks, places[whole:][self.rank :: world]])
        return rest[mine], int(np.count_nonzero(mine >= n))

    def count(self, n: int, *, drop_last: bool) -> int:
        """How many of ``n`` indices are this rank's."""
        return n // self.world_size if drop_last else -(-n // self.world_size)


ShardBy: TypeAlias = "bool | tuple[int, int] | DeviceMesh"
"""The argument ``shard``."""


def check(shard: ShardBy) -> None:
    """Raise UsageError unless ``shard`` is what FastLoader's argument of that name may be."""
    if isinstance(shard, bool):
        return
    if isinstance(shard, tuple):
        _given(shard)
        return
    from torch.distributed.device_mesh import DeviceMesh

    if not isinstance(shard, DeviceMesh):
        raise UsageError(
            f"shard: expected True, False, (rank, world_size) or a DeviceMesh, got {shard!r}"
        )


def resolve(shard: ShardBy) -> Shard:
    """The position in the mesh, or the rank given, else torch.distributed's, else torchrun's.

    Raises UsageError if no rank is known, or it is not below ``world_size``, or this process is
    not in the mesh.
    """
    if isinstance(shard, tuple):
        return _given(shard)
    if not isinstance(shard, bool):
        return _position(shard)
    rank = distributed() or _environment()
    if rank is None:
        raise UsageError(
            "shard=True needs to know this process's rank: initialise torch.distributed before "
            "iterating, start with torchrun, or pass shard=(rank, world_size)"
        )
    return rank


def _given(shard: tuple[Any, ...]) -> Shard:
    """Raises UsageError unless it is a rank and a number of ranks."""
    if len(shard) == 2 and all(map(is_integer, shard)):
        rank, world_size = map(operator.index, shard)
        if 0 <= rank < world_size:
            return Shard(rank, world_size)
    raise UsageError(
        f"shard: expected integers (rank, world_size), 0 <= rank < world_size, got {shard!r}"
    )


def distributed() -> Shard | None:
    """This process's rank in torch.distributed; None if that is not initialised."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    return Shard(torch.distributed.get_rank(), torch.distributed.get_world_size())


def warn_if_every_rank_reads_all(dataset: object) -> None:
    """Warn, once per process, if several ranks each read a whole map-style dataset."""
    global _warned
    rank = distributed()
    if _warned or rank is None or rank.world_size == 1 or isinstance(dataset, IterableDataset):
        return
    _warned = True
    warnings.warn(
        f"each of {rank.world_size} ranks reads every sample of the dataset: pass shard=True, or "
        "a DistributedSampler, unless this is intended",
        stacklevel=callers.stacklevel(),
    )


def _position(mesh: DeviceMesh) -> Shard:
    """This process's position in a mesh; of several dimensions the last one varies fastest."""
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise UsageError(
            f"shard: this process (rank {torch.distributed.get_rank()}) is not in {mesh}: make the "
            "loader only in the processes that are"
        )
    shape = mesh.shape
    position = sum(c * math.prod(shape[i + 1 :]) for i, c in enumerate(coordinate))
    return Shard(position, math.prod(shape))


def _environment() -> Shard | None:
    try:
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return None
    return _given((rank, world_size))
