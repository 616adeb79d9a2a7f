"""``fastload autotune``: find the fastest settings on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from .._base.import_object import import_object
from .._base.progress_bar import Bar, bar, wanted
from .._base.whole_file import check_writable
from ..errors import FastloadError
from ..storage._local import is_url
from . import _options
from ._text import wrapped

if TYPE_CHECKING:
    from .._tools.tuning import Tuning


@click.command(
    epilog="""\b
Examples:
  fastload autotune imgs.lmdb
  fastload autotune ./imgs --transform train:transform --fix-batch-size 256
  fastload autotune train:dataset --step train:step --budget 120
  fastload autotune imgs.lmdb --html tune.html
"""
)
@click.argument("source")
@click.option(
    "--transform", metavar="MODULE:OBJECT",
    help="Transform, if SOURCE is a path. [default: random crop of 224 pixels, flip, normalise; no "
    "crop for small images]",
)  # fmt: skip
@click.option(
    "--step", metavar="MODULE:FUNCTION",
    help="Called with each batch: measures the training loop instead of the loader alone.",
)  # fmt: skip
@click.option(
    "--budget", "budget_s", type=click.FloatRange(min=1), default=60, show_default=True,
    help="Seconds that the search may take.",
)  # fmt: skip
@click.option(
    "--batch-size", type=click.IntRange(min=1), metavar="N",
    help="The batch size you train with; others are tried too.  [default: the loader's, else 64]",
)  # fmt: skip
@click.option(
    "--fix-batch-size", type=click.IntRange(min=1), metavar="N",
    help="Tune only for this batch size.",
)  # fmt: skip
@click.option(
    "--memory", "memory_limit", callback=_options.size_of, metavar="SIZE",
    help="Memory a setting may use at most, for example 4GB.",
)  # fmt: skip
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False), default="fastload.tune.json",
    show_default=True, help="The tuning file, for FastLoader(tuned=...).",
)  # fmt: skip
@click.option(
    "--approximate", is_flag=True,
    help="Also try decode='scaled', whose pixels differ slightly.",
)  # fmt: skip
@click.option("--html", type=click.Path(dir_okay=False), help="Write a page with a heat map.")
@click.option(
    "--force", is_flag=True,
    help="Write the file even if other programs kept the machine busy.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the tuning file's content.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def command(
    source: str,
    transform: str | None,
    step: str | None,
    output: str,
    html: str | None,
    force: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Find the fastest workers, batch size and prefetch for SOURCE on this machine.

    SOURCE is a store, its URL, a folder of images, or MODULE:OBJECT: a Dataset, a DataLoader,
    or a function that returns one. Importing MODULE, also from the current folder, runs it: a
    script needs `if __name__ == "__main__":` before its training.
    """
    from .._tools.tuning import autotune, page

    for file in (output, html):
        if file is not None:
            check_writable(file)
    with _options.kept_for_json(as_json):
        path = os.path.exists(source) or is_url(source) or ":" not in source
        found = source if path else import_object(source)
        with _spent(_options.progress(quiet, as_json)) as progress:
            tuning = autotune(
                found,
                transform=import_object(transform) if transform else None,
                step=import_object(step) if step else None,
                progress=progress,
                **options,
            )
    if tuning.busy and not force:
        if not as_json:
            _show(tuning, concluded=False)
        raise FastloadError(
            f"other programs took {tuning.others:.0%} of the CPUs, also when it was measured "
            "again: which setting is best cannot be told, and the defaults stay. Run it again when "
            "the machine is idle, or with --force"
        )
    tuning.save(output)
    if html is not None:
        page.write_html(tuning, html)
    if as_json:
        click.echo(json.dumps(tuning.as_json(), indent=1))
        return
    _show(tuning)
    click.echo(f"written: {', '.join(name for name in (output, html) if name)}")
    click.echo(f'use it: FastLoader(..., batch_size={tuning.batch_size}, tuned="{output}")')


def _show(tuning: Tuning, *, concluded: bool = True) -> None:
    from .._tools.tuning import page

    click.echo(wrapped(f"{tuning.source}: images/s, {page.EPOCH}", sys.stdout))
    table = Table()
    for heading in ("num_workers", "batch_size", "with", "images/s", "±"):
        table.add_column(heading, justify="left" if heading == "with" else "right")
    for tried in page.places(tuning):
        point = tried.point
        table.add_row(
            str(point.num_workers),
            f"{point.batch_size}{' *' if point.batch_size == tuning.batch_size else '  '}",
            ", ".join(point.others()),
            f"{tried.images_per_s:,.0f}",
            "" if tried.error is None else f"{tried.error:.1%}",
            style="bold green" if point == tuning.best else "",
        )
    Console(highlight=False).print(table)
    click.echo("* the batch size in use; ±: standard error")
    for name, words in page.summary(tuning) if concluded else ():
        text = wrapped(f"{name}: {words}", sys.stdout)
        click.echo(text.replace(name, click.style(name, bold=True), 1))


@contextlib.contextmanager
def _spent(progress: bool | None) -> Iterator[Callable[[float, float, str], None] | None]:
    """A progress bar of the seconds spent; ``progress``: see ``wanted``."""
    if not wanted(progress):
        yield None
        return
    with contextlib.ExitStack() as stack:
        shown: Bar | None = None

        def report(spent: float, budget: float, what: str) -> None:
            nonlocal shown
            if shown is None:
                shown = stack.enter_context(bar(what, unit="s", total=round(budget)))
            shown.set_description_str(what, refresh=False)
            shown.update(min(spent, round(budget)) - shown.n)  # beyond it, tqdm forgets the total

        yield report
