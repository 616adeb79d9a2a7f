"""What a loader does and why, in plain words and in figures."""

from __future__ import annotations

from typing import Any

import torch

from .._engine import chosen, entry_points
from .._sources.source import Source, begun
from .._transforms.views import Views
from ..hints import Stats
from . import decode_device, division, runs, scaled_advice
from .bottleneck import verdict
from .delivery import delivery
from .workers import run
from .workers.copy_on_write import REMEDY, held


def explain(loader: Any) -> str:
    """Which engine of ``loader``, a FastLoader, runs and why, and what would be faster."""
    source = loader._source()
    lines = _workers(loader, source) if isinstance(source, str) else _native(loader, source)
    lines += delivery.explain(loader, source)
    if loader.shard and not loader._own_order:
        lines.append("shard: not here, since the sampler that was given decides what is read")
    return "\n".join(lines)


def _native(loader: Any, source: Source) -> list[str]:
    decoding = decode_device.decoding(loader, source)
    threads = f"{loader.num_workers or 'the calling'} thread{'s' * (loader.num_workers != 1)}"
    if loader._governor is not None:
        threads += ", adjusted while the loop runs"
    rows = f"{'one' if loader.num_workers else 'the calling'} thread copies rows"
    lines = [
        f"engine: {decoding.engine} ({threads if not source.tensors else rows})",
        f"store: {source.store.format}, {len(source.store)} records",
    ]
    if decoding.why:
        lines.append(f"decode_device: {decoding.why}")
    views = source.plan.each if isinstance(source.plan, Views) else [source.plan]
    channels_last = loader.memory_format == torch.channels_last
    layout = "channels_last" if channels_last else "contiguous NCHW"
    for number, plan in enumerate(views):
        lines += [f"view {number}:"] * (len(views) > 1)
        lines.append("fused: " + " -> ".join(plan.steps))
        if not source.tensors:
            split = delivery.split(loader, source, plan)
            lines += [f"split: {split}", f"batch: {plan.dtype}, {layout}"]
        if plan.drawn_size:
            lines.append(
                "sizes: expand=True draws each image a size of its own, of which a batch of more "
                "than one cannot be made; end the transforms with a crop or a resize to a fixed "
                "(h, w)"
            )
    if loader._cache is not None:
        engine = chosen(loader.engine, source.store)
        lines.append(f"cache: {loader._cache.explain(engine, source.store)}")
    known = entry_points.in_words(source.parts)
    if known is not None:
        lines.append(f"entry points: {known}")
    divided = division.division(loader, source)
    if divided is not None:
        lines += divided.explain(source, loader.num_workers)
    lines += scaled_advice.explain(source)
    if source.store.format == "folder":
        lines.append("faster: `fastload pack` saves opening a file for every image")
    if source.store.indirect is not None:
        lines.append(f"slower: {source.store.indirect}")
    return lines


def _workers(loader: Any, reason: str) -> list[str]:
    lines = [
        f"engine: workers (torch's DataLoader machinery, {loader.num_workers} processes)",
        f"because: {reason}",
        *_split(loader),
    ]
    if loader.num_workers:
        lines.append("transport: " + _transport(loader))
        # What an engine begins in the workers it finds by arrays.
        objects = None if _split(loader) else held(loader.dataset, loader.num_workers)
        if objects is not None:
            lines.append(f"memory: {objects.words(loader.num_workers)}; {REMEDY}")
    elif loader.prefetch_thread:
        lines.append("prefetch: a thread of this process makes the next batches")
    elif loader.engine != "workers":
        lines.append("faster: num_workers > 0 makes batches in other processes meanwhile")
    if loader._cache is not None:
        lines.append(f"cache: {loader._cache.explain(None, None)}")
    return lines


def _transport(loader: Any) -> str:
    """How batches come from worker processes, in words."""
    if runs.plain(loader):
        return "torch's own, a shared file for each tensor"
    ring = loader._ring
    if ring is not None and ring.failure:
        return f"torch's own, a shared file for each tensor, since {ring.failure}"
    if ring is not None and ring.left:
        return (
            "slabs of shared memory; but some tensors are not plain or were in shared memory "
            "already, and come torch's way, in a shared file each"
        )
    return "slabs of shared memory, which workers collate into and which are reused"


def _split(loader: Any) -> list[str]:
    """What an engine does within the processes, and what stays in Python."""
    source = begun(loader.dataset) if run.halves(loader) is not None else None
    if source is None or source.halves is None:
        return []
    lines = []
    for number, part in enumerate(source.halves.each):
        lines += [f"view {number}:"] * source.halves.views
        lines += [
            f"split, in the engine ({chosen('auto', source.store)}), a batch at a time: "
            + " -> ".join(("decode", *part.plan.steps)),
            "split, in Python, sample by sample: "
            + " -> ".join(part.suffix.words if part.suffix else ("nothing",)),
        ]
    return lines


def figures(loader: Any) -> Stats:
    """``FastLoader.stats()``."""
    figures = loader._stamps.snapshot()
    elapsed = figures.elapsed_s
    rate = figures.images / elapsed if elapsed else 0.0
    found = verdict(figures, native=loader._native)
    return {
        "engine": _engine_name(loader),
        "images": figures.images,
        "batches": figures.batches,
        "images_per_s": rate,
        "mb_per_s": figures.read_nbytes / 1e6 / elapsed if elapsed else 0.0,
        "elapsed_s": elapsed,
        "wait_s": figures.wait_s,
        "wait_share": figures.wait_s / elapsed if elapsed else 0.0,
        "stages_s": dict(figures.stages_s),
        "decisions": [] if loader._governor is None else list(loader._governor.decisions),
        "padding": loader._padding,
        "errors": [
            {
                "index": entry.index,
                "file": entry.file,
                "error": entry.error,
                "action": entry.action,
            }
            for entry in loader._bad.entries
        ],
        "cache_hits": figures.cache_hits,
        "cache_misses": figures.cache_misses,
        "cache_nbytes": 0 if loader._cache is None else loader._cache.nbytes,
        "entry_points_nbytes": 0
        if loader._made is None
        else entry_points.nbytes(loader._made[0][1]),
        "bound": found.bound,
        "why": found.why,
        "headroom": loader._replayed / rate if rate and loader._replayed else None,
    }


def _engine_name(loader: Any) -> str:
    if not loader._native:
        return "workers"
    return chosen(loader.engine) if loader._made is None else str(loader._made[1].name)
