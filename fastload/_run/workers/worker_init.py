"""What runs in a worker process before it makes its first batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch.utils.data import get_worker_info

from ..._base.machine import cpu


@dataclasses.dataclass(frozen=True)
class WorkerInit:
    """Runs in a worker process before anything else of the user's: torch's ``worker_init_fn``.

    Attributes:
        chosen: the user's, or None.
    """

    chosen: Callable[[int], None] | None

    def __call__(self, worker_id: int) -> None:
        info: Any = get_worker_info()
        # get_worker_info().dataset is the user's own dataset, not what wraps it.
        object.__setattr__(info, "dataset", info.dataset.dataset)
        cpu.one_thread()
        if self.chosen is not None:
            self.chosen(worker_id)
