"""``watch``: show the figures of a loop while it runs: images/s, waiting, stages, errors."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..errors import UsageError

if TYPE_CHECKING:
    from .._loader import FastLoader
    from ..hints import Stats


def watch(
    loader: FastLoader[Any],
    *,
    every_s: float = 1.0,
    callback: Callable[[dict[str, float], int], object] | None = None,
) -> Iterator[Any]:
    """Iterate over ``loader`` and show its figures: images/s, waiting, stages.

    A notebook shows a table with bars, which changes while the loop runs. Elsewhere the figures go
    to stderr: on a terminal in a tqdm bar, in pipes and batch jobs as a line every ten seconds. The
    last state stays.

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

    Raises:
        UsageError: not a FastLoader.
    """
    if not hasattr(loader, "stats"):
        raise UsageError(
            f"watch: expected a FastLoader, got {type(loader).__name__}: make one with the same "
            "arguments if that is a DataLoader (from fastload import FastLoader)"
        )
    last = time.monotonic()
    batches = 0
    with _board(_length(loader)) as show:
        try:
            for batch in loader:
                yield batch
                batches += 1
                now = time.monotonic()
                if now - last < every_s:
                    continue
                last = now
                stats = loader.stats()
                if callback is not None:
                    callback(scalars(stats), batches)
                show(batches, stats)
        finally:
            show(batches, loader.stats())


@contextlib.contextmanager
def _board(total: int | None) -> Iterator[Callable[[int, Stats], None]]:
    """Shows the figures after so many batches of an epoch of ``total``; None: unknown."""
    from .._base.notebook import in_notebook
    from .._base.progress_bar import bar, room

    if in_notebook():
        yield _table(total)
        return
    with bar("epoch", unit="batches", total=total) as shown:

        def show(batches: int, stats: Stats) -> None:
            shown.set_postfix_str(line(scalars(stats), room(shown)), refresh=False)
            shown.update(batches - shown.n)

        yield show


def _table(total: int | None) -> Callable[[int, Stats | None], None]:
    """A notebook's table: how far the epoch is, and what a notebook shows of ``stats()``."""
    from .._base.notebook import Output, bar, table
    from .._run.notebook import figure_rows

    begin, output = time.monotonic(), Output()

    def show(batches: int, stats: Stats | None) -> None:
        done = _progress(batches, total, time.monotonic() - begin)
        share = batches / total if total else 0.0
        rows = [("epoch", bar(share, done)), *(figure_rows(stats) if stats is not None else ())]
        figures = "" if stats is None else f", {line(scalars(stats))}"
        output.show(table(rows), f"epoch: {done}{figures}")

    show(0, None)  # the first batch may take long
    return show


def _progress(batches: int, total: int | None, passed_s: float) -> str:
    from tqdm.std import tqdm

    if total is None:
        return f"{batches:,} batches in {tqdm.format_interval(passed_s)}"
    words = f"{batches:,} of {total:,} batches in {tqdm.format_interval(passed_s)}"
    if not 0 < batches < total:
        return words
    left_s = passed_s * (total - batches) / batches
    return f"{words}, {tqdm.format_interval(left_s)} left"


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


def line(figures: dict[str, float], columns: int | None = None) -> str:
    """The figures in one line of text, the first ones that fit into ``columns``."""
    parts = [f"{figures['images_per_s']:,.0f} images/s", f"waiting {figures['wait_share']:.0%}"]
    if figures["errors"]:
        parts.append(f"{figures['errors']:.0f} bad samples")
    if figures["cache_hit_share"]:
        parts.append(f"cache {figures['cache_hit_share']:.0%}")
    stages = sorted(
        ((value, name) for name, value in figures.items() if name.startswith("share/")),
        reverse=True,
    )
    parts += [f"{name.removeprefix('share/')} {value:.0%}" for value, name in stages[:3]]
    if figures["mb_per_s"]:
        parts.append(f"{figures['mb_per_s']:,.0f} MB/s")
    if columns is not None:
        while len(parts) > 1 and len(", ".join(parts)) > columns:
            parts.pop()
    return ", ".join(parts)
