"""Tries FastLoader in a loader's place: what does it use, and how fast is it alone?"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..._loader import FastLoader
from .observation import FastSeen, MaterialisedSeen

_SECONDS = 2.0
_BLOCKS = 8


def trial(
    arguments: Mapping[str, Any],
    *,
    seconds: float = _SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> FastSeen:
    """FastLoader with the arguments of a DataLoader, as after a change of the import.

    If an engine is used, or images are deferred, it is measured for ``seconds``, at least two
    batches.
    """
    try:
        loader: FastLoader[Any] = FastLoader(**arguments)
        native, reason = loader.stats()["engine"] != "torch", ""
        if not native:
            because = [
                line for line in loader.explain().splitlines() if line.startswith("because: ")
            ]
            reason = because[0].removeprefix("because: ") if because else "it runs in workers"
            if not _opens_images(loader):
                return FastSeen(native=False, reason=reason)
        batches_s = _measured(loader, seconds, clock)
        materialised = _materialised(loader)
    except Exception as error:  # noqa: BLE001 - any error of the user's dataset is reported
        return FastSeen(native=False, reason=f"{type(error).__name__}: {error}")
    size = -(-len(batches_s) // _BLOCKS)
    blocks = [
        statistics.fmean(batches_s[begin : begin + size])
        for begin in range(0, len(batches_s), size)
    ]
    batch_s = statistics.fmean(batches_s)
    deviation = statistics.stdev(blocks) / math.sqrt(len(blocks)) if len(blocks) > 1 else 0.0
    return FastSeen(
        native=native,
        defers=not native,
        reason=reason,
        materialised=materialised,
        batch_s=batch_s,
        error=deviation / batch_s if batch_s else 0.0,
        ahead=loader.num_workers > 0,
    )


def _opens_images(loader: FastLoader[Any]) -> bool:
    """Whether the dataset's code opens images that are deferred, or decoded in C++ for it."""
    for _ in loader:
        break
    stats = loader.stats()
    return stats["images_opened"] + stats["images_from_arrays"] + stats["images_read"] > 0


def _materialised(loader: FastLoader[Any]) -> list[MaterialisedSeen]:
    """What asked for pixels in the last epoch."""
    stats = loader.stats()
    # As much time as there are processes in which the dataset's code runs, without the samples that
    # were not deferred.
    deferred = 1 - stats["samples_eager"] / max(1, stats["images"])
    total_s = stats["elapsed_s"] * max(1, loader.num_workers) * deferred
    return [
        MaterialisedSeen(
            function=call["function"],
            where=call["where"],
            images=call["count"] / max(1, stats["images_opened"] + stats["images_from_arrays"]),
            share=min(1.0, call["seconds"] / total_s) if total_s > 0 else 0.0,
        )
        for call in stats["materialised"]
    ]


def _measured(loader: FastLoader[Any], seconds: float, clock: Callable[[], float]) -> list[float]:
    """The time for each batch, without those that were prefetched before the clock started."""
    ahead = 1 + (loader.prefetch_factor or 0) * (loader.num_workers > 0)
    times: list[float] = []
    end = clock() + seconds
    while True:
        before = len(times)
        begin = clock()
        whole: list[float] = []
        for _ in loader:
            now = clock()
            whole.append(now - begin)
            begin = now
            if now >= end:
                break
        # In an epoch with only prefetched batches, the mean of all is representative.
        times += whole[ahead:] or [statistics.fmean(whole)] if whole else []
        if len(times) == before or (clock() >= end and len(times) > 1):
            return times
