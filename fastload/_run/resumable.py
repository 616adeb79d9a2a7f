"""A FastLoader's state: saved at any step, and gone on with later."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from . import accelerate, decode_device, epoch
from . import progress as _progress
from .progress import Progress
from .shard import Shard

if TYPE_CHECKING:
    import threading

    from torch.utils.data.dataloader import _BaseDataLoaderIter

    from .._base.shared_slabs import SharedRing
    from .._base.slabs import SlabRing
    from .delivery.mover import Mover
    from .workers.run import Inner


class Resumable:
    """The part of FastLoader that resumes."""

    _next_epoch = 0
    _told = False  # that epoch was chosen, by set_epoch, since an epoch last began
    _sampler_epoch: int | None = 0  # that the user's sampler had been told when an epoch last began
    _base_seed: int | None = None
    _progress: Progress | None = None
    _resume: Progress | None = None
    _inner: Inner | _BaseDataLoaderIter | None = None  # what keeps the workers that persist
    _iterator: Any = None
    _choice: decode_device.Choice | None = None  # what decode_device="auto" found
    _ring: SharedRing | None = None
    _warm: SlabRing | None = None
    _mover: tuple[int, Mover] | None = None
    _turn: tuple[int, threading.Lock] | None = None  # of which process, and its threads' lock

    if TYPE_CHECKING:

        def _shard(self) -> Shard | None: ...

    def state_dict(self) -> dict[str, Any]:
        """What resumes this loader at the sample after the newest batch; see load_state_dict.

        Small (the states of two generators, 7 KB each, a few numbers, and what datasets with a
        state of their own give), and cheap enough for every step. Beside the datasets' states, and
        a sampler's, it is made of what JSON has.

        Raises:
            UsageError: with ``in_order=False`` and worker processes, where batches have no order.
        """
        progress = self._progress
        if self._resume is not None:
            progress = self._resume
        elif progress is None or progress.ended or epoch.passed_over(self, progress):
            blank = epoch.blank(self, epoch.coming(self), self._shard())
            progress = dataclasses.replace(blank, begun=False)
        elif progress.unordered:
            raise UsageError(
                "state_dict needs in_order=True, and a dataset that is no DataPipe: expected "
                "batches that come in the order of their samples"
            )
        state = progress.state()
        if self._choice is not None:
            state["decode"] = decode_device.state_of(self._choice)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where ``state`` was taken.

        With an int ``seed`` the batches are those that would have come: with any number of
        workers, and with ``shard=True`` on any number of ranks (the state of one rank serves all
        of them, as every rank has come equally far). Without one the order is the same, drawn
        again from the states of torch's generators, and augmentation in the native engine too;
        random transforms of a dataset of the user's are not, as workers draw their own numbers.
        An IterableDataset resumes by its own ``state_dict`` and its iterator's; without either it
        is read again up to there, and what raised on the way does not stop it. A map-style dataset
        with ``state_dict`` and ``load_state_dict`` gets its state back. All of them need the same
        number of workers, each of which has its own state.

        Example:
            >>> torch.save({"loader": loader.state_dict(), ...}, "checkpoint.pt")
            >>> loader.load_state_dict(torch.load("checkpoint.pt")["loader"])

        Args:
            state: from ``state_dict`` of a loader made alike.

        Raises:
            UsageError: here or by the next ``iter``, where the loader cannot go on with it.
        """
        self._resume = _progress.read(state)
        self._next_epoch, self._told = self._resume.epoch, False
        epoch.tell(self, self._resume.sampler_epoch)
        accelerate.resume(self, self._resume.epoch)
        self._base_seed = self._resume.base_seed
        self._iterator = self._inner = None  # persistent workers stand elsewhere
        decode_device.resume(self, state.get("decode"))

    def __getstate__(self) -> dict[str, Any]:
        # Files, threads, processes, shared memory, streams: another process makes its own.
        alive = (
            "_made",
            "_division",
            "_iterator",
            "_inner",
            "_ring",
            "_warm",
            "_progress",
            "_mover",
            "_turn",
            "_base_seed",
            "_adapter",
        )
        return {**self.__dict__, **dict.fromkeys(alive)}
