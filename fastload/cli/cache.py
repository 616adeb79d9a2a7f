"""``fastload cache``: show or delete what was fetched from URLs."""

from __future__ import annotations

import json

import click

from .._base.byte_sizes import human
from .._printable import printable
from ..storage.remote.content import clear as clear_cache
from ..storage.remote.content import contents
from ..storage.remote.options import RemoteOptions
from . import _options


@click.group(
    epilog="""\b
Examples:
  fastload cache info
  fastload cache clear --cache-dir /nvme/fastload
"""
)
def command() -> None:
    """Show or delete what was fetched from stores at URLs."""


_FOLDER = click.option(
    "--cache-dir",
    type=click.Path(file_okay=False),
    help="The folder. [default: fastload in the user's cache folder]",
)


@command.command()
@_FOLDER
@_options.as_json
def info(cache_dir: str | None, as_json: bool) -> None:
    """Show which objects are cached, and how much of each."""
    folder = RemoteOptions(cache_dir=cache_dir).folder
    found = contents(folder)
    if as_json:
        listed = [
            {"url": one.url, "nbytes": one.nbytes, "cached_nbytes": one.cached_nbytes}
            for one in found
        ]
        click.echo(json.dumps({"cache_dir": folder, "objects": listed}, indent=1))
        return
    total = human(sum(one.cached_nbytes for one in found))
    click.echo(f"{printable(folder)}: {total} on the disk, of {len(found)} objects")
    for one in found:
        sizes = f"{human(one.cached_nbytes)}, object {human(one.nbytes)}"
        click.echo(f"  {sizes:<30} {printable(one.url)}")


@command.command()
@_FOLDER
@_options.as_json
def clear(cache_dir: str | None, as_json: bool) -> None:
    """Delete all objects that no running process uses."""
    folder = RemoteOptions(cache_dir=cache_dir).folder
    deleted, kept = clear_cache(folder)
    if as_json:
        found = {"cache_dir": folder, "deleted": deleted, "kept": kept}
        click.echo(json.dumps(found, indent=1))
        return
    click.echo(f"{printable(folder)}: {deleted} objects deleted")
    if kept:
        click.echo(f"{kept} objects are in use and were kept")
