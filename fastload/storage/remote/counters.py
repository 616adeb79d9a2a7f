"""What remote reading has cost so far."""

from __future__ import annotations

import dataclasses
import threading


@dataclasses.dataclass
class RemoteCounters:
    """Sums since the store was opened in this process; safe to add to from any thread.

    Attributes:
        nbytes: bytes received.
        requests: requests sent, repeated and hedged ones included.
        retries: requests that were repeated because one failed.
        hedged: requests that were sent again because the first one took unusually long.
        asked_nbytes: bytes that records, columns and headers took, in whole pieces of the cache.
        missed_nbytes: bytes that were not in the cache when they were asked for, or ahead of that.
        damaged: pieces of the cache whose checksum did not match; they were fetched again.
        wait_s: seconds in which somebody waited for bytes.
    """

    nbytes: int = 0
    requests: int = 0
    retries: int = 0
    hedged: int = 0
    asked_nbytes: int = 0
    missed_nbytes: int = 0
    damaged: int = 0
    wait_s: float = 0.0

    def __post_init__(self) -> None:
        self._lock = threading.RLock()

    def add(self, **sums: float) -> None:
        with self._lock:
            for name, value in sums.items():
                setattr(self, name, getattr(self, name) + value)

    def snapshot(self) -> dict[str, float]:
        with self._lock:
            return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
