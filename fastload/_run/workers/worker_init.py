"""WorkerInit: what a worker process runs before it makes its first batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from torch.utils.data import get_worker_info

from ..._base.machine import cpu


@dataclasses.dataclass(frozen=True)
class WorkerInit:
    """The ``worker_init_fn`` that torch is given; it calls the user's."""

    user_init: Callable[[int], None] | None

    def __call__(self, worker_id: int) -> None:
        info = get_worker_info()
        assert info is not None, "called in a worker process"
        # get_worker_info().dataset must be the user's dataset, not the TaskFetcher that wraps it.
        object.__setattr__(info, "dataset", info.dataset.dataset)  # type: ignore[attr-defined]
        cpu.one_thread()
        if self.user_init is not None:
            self.user_init(worker_id)
