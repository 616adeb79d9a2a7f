"""torch's iterators, as far as fastload uses their private attributes: all of these are here."""

from __future__ import annotations

import os
import queue
import weakref
from collections.abc import Iterator, Sequence
from multiprocessing.process import BaseProcess
from typing import Any, Protocol


class TorchIterator(Protocol):
    """``torch.utils.data.dataloader._BaseDataLoaderIter``."""

    _base_seed: int
    _num_yielded: int

    def __next__(self) -> Any: ...


class TorchLocalIterator(TorchIterator, Protocol):
    """``_SingleProcessDataLoaderIter``, of which ``LocalMaker`` is a subclass."""

    _dataset: object
    _dataset_kind: int
    _IterableDataset_len_called: int | None
    _pin_memory: bool
    _pin_memory_device: str | None
    _sampler_iter: Iterator[Any]


class TorchWorkersIterator(TorchIterator, Protocol):
    """``_MultiProcessingDataLoaderIter``. fastload writes to it only in a forked child."""

    _workers: Sequence[BaseProcess]
    _rcvd_idx: int  # number of the task whose result is returned next
    _task_info: dict[int, tuple[Any, ...]]  # (worker,), or (worker, data) if it came early
    _data_queue: queue.Queue[Any]
    _shutdown: bool

    def _try_put_index(self) -> None:
        """Give the next task to a worker."""


def processes(iterator: object) -> Sequence[BaseProcess]:
    """The worker processes of torch's ``iterator``, or of the one that it wraps."""
    return getattr(iterator, "_workers", ())


def has_result(iterator: TorchWorkersIterator) -> bool:
    """Whether ``next`` would probably not wait: its result has arrived, or another one."""
    # torch keeps a result that came before its turn as (worker, data) instead of (worker,).
    known = iterator._task_info.get(iterator._rcvd_idx, ())
    return len(known) == 2 or not iterator._data_queue.empty()


alive: weakref.WeakSet[TorchWorkersIterator] = weakref.WeakSet()
"""torch's iterators with workers that belong to this process."""


def _abandon() -> None:
    """Prevent a forked child from ending the parent's workers when it drops their iterator."""
    # Marked as shut down: shutting down would use events and queues that the parent shares. There
    # is no public way to leave workers alone.
    for iterator in list(alive):
        iterator._shutdown = True


os.register_at_fork(after_in_child=_abandon)
