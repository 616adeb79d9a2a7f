"""One setting of a loader: what autotune measures, and what a tuned file keeps."""

from __future__ import annotations

import dataclasses
from typing import Any

PREFETCH = 2
"""torch's own default, where the search begins."""


@dataclasses.dataclass(frozen=True, kw_only=True, order=True)
class Point:
    """One setting. Points are ordered from the one that takes least of the machine.

    Attributes:
        num_workers: threads in fastload's engines, processes otherwise; 0 works in the loop.
        batch_size: samples a batch.
        prefetch_factor: batches ahead: in all, or for each process.
        cache: as FastLoader's argument; "" stands for none.
        pin_memory: as torch's; tried where there is CUDA.
        decode: as FastLoader's argument; "scaled" gives other pixels: tried when asked for.
    """

    num_workers: int
    batch_size: int
    prefetch_factor: int = PREFETCH
    cache: str = ""
    pin_memory: bool = False
    decode: str = "exact"

    def arguments(self) -> dict[str, Any]:
        """FastLoader's arguments."""
        arguments: dict[str, Any] = {
            "num_workers": self.num_workers,
            "batch_size": self.batch_size,
        }
        if self.num_workers:
            arguments["prefetch_factor"] = self.prefetch_factor
        if self.cache:
            arguments["cache"] = self.cache
        if self.pin_memory:
            arguments["pin_memory"] = True
        if self.decode != "exact":
            arguments["decode"] = self.decode
        return arguments

    def __str__(self) -> str:
        first = [f"num_workers={self.num_workers}", f"batch_size={self.batch_size}"]
        return ", ".join([*first, *self.others()])

    def others(self) -> list[str]:
        """What it has beside num_workers and batch_size, as one writes it."""
        return [
            f"{name}={value!r}"
            for name, value in self.arguments().items()
            if name not in ("num_workers", "batch_size")
        ]
