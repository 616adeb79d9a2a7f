"""Point: one setting of a loader, which autotune measures and a tuning file stores."""

from __future__ import annotations

import dataclasses
from typing import Any

PREFETCH = 2
"""Batches ahead by default, as in torch for each worker; where a search starts."""


@dataclasses.dataclass(frozen=True, kw_only=True, order=True)
class Point:
    """One setting. Points are ordered by the resources that they use, the cheapest first.

    Attributes:
        num_workers: threads of fastload's engines, else processes; 0: the loop makes batches.
        prefetch_factor: batches ahead: in total for an engine, else per process.
        cache: as FastLoader's argument; "" means none.
        pin_memory: as torch's argument; tried only with CUDA.
        decode: as FastLoader's argument; "scaled" changes pixels, so it is tried only if asked for.
    """

    num_workers: int
    batch_size: int
    prefetch_factor: int = PREFETCH
    cache: str = ""
    pin_memory: bool = False
    decode: str = "exact"

    def arguments(self) -> dict[str, Any]:
        """The setting as arguments of FastLoader."""
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
        """Its arguments besides num_workers and batch_size, as they are written in code."""
        return [
            f"{name}={value!r}"
            for name, value in self.arguments().items()
            if name not in ("num_workers", "batch_size")
        ]
