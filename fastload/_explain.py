"""What a loader does and why, in plain words."""

from __future__ import annotations

from typing import Any

import torch

from . import _runs
from ._engine import chosen
from ._source import Source


def explain(loader: Any, source: Source | str) -> str:
    """Which engine of ``loader``, a FastLoader, runs and why, and what would be faster."""
    lines = _workers(loader, source) if isinstance(source, str) else _native(loader, source)
    if loader.shard and not loader._own_order:
        lines.append("shard: not here, since the sampler that was given decides what is read")
    return "\n".join(lines)


def _native(loader: Any, source: Source) -> list[str]:
    lines = [
        f"engine: {chosen(loader.engine, source.store)} ({loader.num_workers or 'the calling'} "
        f"thread{'s' if loader.num_workers != 1 else ''})",
        f"store: {source.store.format}, {len(source.store)} records",
        "fused: " + " -> ".join(source.plan.steps),
        f"batch: {source.plan.dtype}, "
        + ("channels_last" if loader.memory_format == torch.channels_last else "contiguous NCHW"),
    ]
    if loader._cache is not None:
        lines.append(f"cache: {loader._cache.explain(chosen(loader.engine, source.store))}")
    if source.store.format == "folder":
        lines.append("faster: `fastload pack` saves opening a file for every image")
    if source.store.indirect is not None:
        lines.append(f"slower: {source.store.indirect}")
    return lines


def _workers(loader: Any, reason: str) -> list[str]:
    lines = [
        f"engine: workers (torch's DataLoader machinery, {loader.num_workers} processes)",
        f"because: {reason}",
    ]
    if loader.num_workers:
        lines.append("transport: " + _runs.transport(loader))
    elif loader.engine != "workers":
        lines.append("faster: num_workers > 0 would decode in parallel processes")
    if loader._cache is not None:
        lines.append(f"cache: {loader._cache.explain(None)}")
    return lines
