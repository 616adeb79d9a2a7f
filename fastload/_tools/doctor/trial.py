"""Tries FastLoader in the place of a loader: is it native there, and how fast is it alone?"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..._loader import FastLoader
from .observation import FastSeen

_SECONDS = 2.0
_BLOCKS = 8


def trial(
    arguments: Mapping[str, Any],
    *,
    seconds: float = _SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> FastSeen:
    """FastLoader with the arguments of a DataLoader, as it is after a change of the import.

    Args:
        arguments: that were given.
        seconds: how long batches are made, if it is native; at least two of them, one after the
            other epoch.
        clock: seconds.
    """
    try:
        loader: FastLoader[Any] = FastLoader(**arguments)
        if loader.stats()["engine"] == "workers":
            because = [
                line for line in loader.explain().splitlines() if line.startswith("because: ")
            ]
            reason = because[0].removeprefix("because: ") if because else "it runs in workers"
            return FastSeen(native=False, reason=reason)
        batches_s = _measured(loader, seconds, clock)
    except Exception as error:  # noqa: BLE001 - the user's dataset may do anything; said
        return FastSeen(native=False, reason=f"{type(error).__name__}: {error}")
    size = -(-len(batches_s) // _BLOCKS)
    blocks = [
        statistics.fmean(batches_s[begin : begin + size])
        for begin in range(0, len(batches_s), size)
    ]
    batch_s = statistics.fmean(batches_s)
    deviation = statistics.stdev(blocks) / math.sqrt(len(blocks)) if len(blocks) > 1 else 0.0
    return FastSeen(
        native=True,
        batch_s=batch_s,
        error=deviation / batch_s if batch_s else 0.0,
        ahead=loader.num_workers > 0,
    )


def _measured(loader: FastLoader[Any], seconds: float, clock: Callable[[], float]) -> list[float]:
    """How long each batch took; those that were made ahead, while nobody looked, left out."""
    ahead = 1 + (loader.prefetch_factor or 0) * (loader.num_workers > 0)
    found: list[float] = []
    end = clock() + seconds
    while True:
        before = len(found)
        begin = clock()
        whole: list[float] = []
        for _ in loader:
            now = clock()
            whole.append(now - begin)
            begin = now
            if now >= end:
                break
        # An epoch's first batches wait for nothing but each other: together, they are in line.
        found += whole[ahead:] or [statistics.fmean(whole)] if whole else []
        if len(found) == before or (clock() >= end and len(found) > 1):
            return found
