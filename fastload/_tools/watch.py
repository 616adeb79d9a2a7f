"""``watch``: show the figures of a loop while it runs: images/s, waiting, stages, errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .._loader import FastLoader
    from ..hints import Stats


def watch(
    loader: FastLoader[Any],
    *,
    every_s: float = 1.0,
    callback: Callable[[dict[str, float], int], object] | None = None,
) -> Iterator[Any]:
    """Iterate over ``loader`` and show its figures on stderr: images/s, waiting, stages.

    On a terminal and in notebooks they are shown in a tqdm bar, in pipes and batch jobs as a line
    every ten seconds. The last state stays.

    Example:
        >>> for images, labels in fastload.watch(loader): ...
        >>> board = SummaryWriter()
        >>> def scalars(figures, batch):
        ...     for name, value in figures.items():
        ...         board.add_scalar(f"data/{name}", value, batch)
        >>> for images, labels in fastload.watch(loader, callback=scalars): ...

    Args:
        loader: a FastLoader.
        every_s: seconds between two updates.
        callback: called at each update with the figures and the number of the batch in this epoch,
            for instance ``lambda figures, batch: wandb.log(figures)``. The figures are
            ``images_per_s``, ``mb_per_s``, ``wait_share``, ``cache_hit_share``, ``errors``, and for
            each stage ``share/STAGE``, its share of the work.

    Yields:
        The batches.
    """
    from .._base.progress_bar import bar

    last = time.monotonic()
    batches = 0
    with bar("epoch", unit="batches", total=_length(loader)) as shown:
        try:
            for batch in loader:
                yield batch
                batches += 1
                now = time.monotonic()
                if now - last < every_s:
                    continue
                last = now
                figures = scalars(loader.stats())
                if callback is not None:
                    callback(figures, batches)
                shown.set_postfix_str(line(figures), refresh=False)
                shown.update(batches - shown.n)
        finally:
            shown.set_postfix_str(line(scalars(loader.stats())), refresh=False)
            shown.update(batches - shown.n)


def _length(loader: FastLoader[Any]) -> int | None:
    try:
        return len(loader)
    except TypeError:  # an iterable dataset without a length
        return None


def scalars(stats: Stats) -> dict[str, float]:
    """The figures of ``FastLoader.stats`` as numbers, for plots."""
    work = sum(stats["stages_s"].values()) or 1.0
    images = stats["cache_hits"] + stats["cache_misses"]
    return {
        "images_per_s": stats["images_per_s"],
        "mb_per_s": stats["mb_per_s"],
        "wait_share": stats["wait_share"],
        "cache_hit_share": stats["cache_hits"] / images if images else 0.0,
        "errors": float(len(stats["errors"])),
        **{f"share/{name}": seconds / work for name, seconds in stats["stages_s"].items()},
    }


def line(figures: dict[str, float]) -> str:
    """The figures in one line of text."""
    parts = [f"{figures['images_per_s']:,.0f} images/s"]
    if figures["mb_per_s"]:
        parts.append(f"{figures['mb_per_s']:,.0f} MB/s")
    parts.append(f"waiting {figures['wait_share']:.0%}")
    if figures["cache_hit_share"]:
        parts.append(f"cache {figures['cache_hit_share']:.0%}")
    stages = sorted(
        ((value, name) for name, value in figures.items() if name.startswith("share/")),
        reverse=True,
    )
    parts += [f"{name.removeprefix('share/')} {value:.0%}" for value, name in stages[:3]]
    if figures["errors"]:
        parts.append(f"{figures['errors']:.0f} bad samples")
    return ", ".join(parts)
