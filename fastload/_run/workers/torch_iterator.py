"""torch's iterator over worker processes, as far as fastload uses its private attributes."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from typing import Any, Protocol, TypeGuard


class TorchWorkersIterator(Protocol):
    """``torch.utils.data.dataloader._MultiProcessingDataLoaderIter``, or a wrapper around it."""

    _workers: Sequence[BaseProcess]
    _num_workers: int
    _prefetch_factor: int
    _send_idx: int  # number of the next task
    _rcvd_idx: int  # number of the task whose result is returned next
    _task_info: dict[int, tuple[Any, ...]]  # (worker,), or (worker, data) if it came early
    _data_queue: queue.Queue[Any]
    _index_queues: Sequence[queue.Queue[Any]]
    _tasks_outstanding: int
    _workers_num_tasks: list[int]  # from torch 2.6 on
    _pin_memory: bool
    _shutdown: bool

    def _try_put_index(self) -> None:
        """Give the next task to a worker."""

    def _try_get_data(self, timeout: float) -> tuple[bool, Any]:
        """Whether a result is there, and (number of its task, result). Raises for dead workers."""


def has_workers(iterator: object) -> TypeGuard[TorchWorkersIterator]:
    """Whether ``iterator`` is torch's over worker processes, or wraps it."""
    return hasattr(iterator, "_workers")


def has_result(iterator: TorchWorkersIterator) -> bool:
    """Whether ``next`` would probably not wait: its result has arrived, or another one."""
    # torch keeps a result that came before its turn as (worker, data) instead of (worker,).
    known = iterator._task_info.get(iterator._rcvd_idx, ())
    return len(known) == 2 or not iterator._data_queue.empty()
