"""Arguments that FastLoader had once: an error says what to write instead."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import UsageError, type_next

_Init = TypeVar("_Init", bound=Callable[..., None])

_OF_PACKED = (
    "storage_options", "cache_dir", "column", "memory_limit", "fields", "joint", "check_crc",
)  # fmt: skip

INSTEAD = {name: f"FastLoader(PackedDataset(path, {name}=...))" for name in _OF_PACKED} | {
    "rank": "shard=(rank, world_size)",
    "world_size": "shard=(rank, world_size)",
    "batch_pixels": 'batch_by=("aspect", pixels), or Buckets(sizes, batch_pixels=pixels)',
    "decode_device": 'engine="dali"',
    "decode_on": 'engine="ray"',
    "defer": 'engine="torch"',
    "prefetch_device": "prefetch_factor=2",
    "prefetch_thread": "num_workers=1",
    "trace": 'with fastload.trace("run.json"): ...',
}
"""What to write instead, by the old name."""


def refuses_moved(init: _Init) -> _Init:
    """``init``, which raises UsageError for an argument in ``INSTEAD``."""

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **arguments: Any) -> None:
        for name in INSTEAD.keys() & arguments.keys():
            raise UsageError(
                f"{name} is no argument of FastLoader any more" + type_next(INSTEAD[name])
            )
        init(self, *args, **arguments)

    return checked  # type: ignore[return-value]
