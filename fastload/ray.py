"""FastLoader in Ray Train: its state lies in Ray's checkpoints.

Ray Train starts the workers of a ``TorchTrainer`` and initialises torch.distributed in each of
them, so ``FastLoader(..., shard=True)`` knows its rank there. docs/distributed.md has an example.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ._base import ray_cluster
from ._base.whole_file import whole_file
from .errors import DataError, UsageError

if TYPE_CHECKING:
    from ._loader import FastLoader

__all__ = ["restore", "save"]

_FILE = "fastload-{name}.pt"


def save(loader: FastLoader, folder: str | os.PathLike[str], *, name: str = "loader") -> None:
    """Write the state of a loader into the folder that becomes a checkpoint.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     fastload.ray.save(loader, folder)
        ...     checkpoint = ray.train.Checkpoint.from_directory(folder)
        ...     ray.train.report({"loss": loss}, checkpoint=checkpoint)

    Args:
        loader: in the middle of an epoch, or between two. The states of all ranks are the same in
            what matters: save that of one.
        folder: exists.
        name: of the loader, if a checkpoint holds several.
    """
    import torch

    with whole_file(os.path.join(folder, _FILE.format(name=name))) as file:
        torch.save(loader.state_dict(), file)


def restore(loader: FastLoader, *, name: str = "loader") -> bool:
    """Resume where the checkpoint was saved that Ray Train starts this worker with.

    Call it on every rank, before the first epoch. There may be more or fewer workers than before:
    what is left of the epoch is read exactly once.

    Example:
        >>> loader = FastLoader("imgs.lmdb", 256, shuffle=True, seed=1, shard=True)
        >>> fastload.ray.restore(loader)
        False

    Args:
        loader: made with the arguments of the one that was saved.
        name: as given to ``save``.

    Returns:
        Whether there is a checkpoint; if not, the loader starts from the beginning.

    Raises:
        MissingDependencyError: Ray is not installed.
        UsageError: the checkpoint holds no loader of this name.
        DataError: its state is damaged.
    """
    import torch

    ray_cluster.load()
    import ray.train

    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return False
    with checkpoint.as_directory() as folder:
        path = os.path.join(folder, _FILE.format(name=name))
        if not os.path.exists(path):
            there = ", ".join(sorted(os.listdir(folder))) or "nothing"
            raise UsageError(
                f"expected {os.path.basename(path)!r} in the checkpoint, which fastload.ray.save "
                f"writes, found {there}"
            )
        try:
            state = torch.load(path, weights_only=True)
        except Exception as error:  # torch raises anything for a damaged file
            raise DataError(
                f"the state of the loader cannot be read: {error}", path=path
            ) from error
    loader.load_state_dict(state)
    return True
