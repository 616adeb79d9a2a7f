"""``fastload concat``: copy several stores into one."""

from __future__ import annotations

from typing import Any

import click

from . import _options, pack


@click.command(
    epilog="""\b
Examples:
  fastload concat a.lmdb b.lmdb both.lmdb
  fastload concat 2024.tfrecord 2025.lmdb all.tfrecord --shards 16
  fastload concat a.lmdb b.lmdb c.lmdb both.lmdb --overwrite
"""
)
@click.argument("sources", type=click.Path(), nargs=-1, required=True)
@click.argument("destination", type=click.Path())
@_options.shards
@_options.shard_size
@_options.overwrite
@_options.as_json
@_options.quiet
def command(
    sources: tuple[str, ...], destination: str, as_json: bool, quiet: bool, **options: Any
) -> None:
    """Copy the records of SOURCES, in order, into the new store DESTINATION.

    The sources must have the same classes, labels and fields. Records are copied unchanged after
    their checksums are verified. To read several stores as one without copying, give FastLoader a
    list of them.
    """
    from ..converters import concat

    report = concat(sources, destination, progress=_options.progress(quiet, as_json), **options)
    pack.show(report, quiet=quiet, as_json=as_json)
