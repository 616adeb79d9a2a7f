"""``fastload concat``: copy several stores into one."""

from __future__ import annotations

import click

from . import pack


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
@pack.shards
@pack.shard_size
@click.option(
    "--overwrite", is_flag=True,
    help="Replace a store at DESTINATION, once the new one is complete.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress and no summary.")
def command(
    sources: tuple[str, ...],
    destination: str,
    shards: int | None,
    shard_nbytes: int | None,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Copy the records of SOURCES, in order, into the new store DESTINATION.

    The sources must have the same classes, labels and fields. Records are copied unchanged after
    their checksums are verified. To read several stores as one without copying, give FastLoader a
    list of them.
    """
    from ..converters import concat

    report = concat(
        sources,
        destination,
        shards=shards,
        shard_nbytes=shard_nbytes,
        overwrite=overwrite,
        progress=not (quiet or as_json),
    )
    pack.show(report, quiet=quiet, as_json=as_json)
