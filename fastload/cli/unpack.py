"""``fastload unpack``: write the images of a store as files."""

from __future__ import annotations

import dataclasses
import json

import click

from .._base.byte_sizes import human
from . import _options


@click.command(
    epilog="""\b
Examples:
  fastload unpack imgs.lmdb ./imgs
  fastload unpack imgs.lmdb ./imgs --json
"""
)
@click.argument("path", type=click.Path())
@click.argument("folder", type=click.Path())
@_options.workers
@_options.storage_options
@_options.as_json
@_options.quiet
def command(
    path: str,
    folder: str,
    workers: int | None,
    storage_options: dict[str, str | bool] | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write the images of the store PATH as files into FOLDER, one folder per class.

    FOLDER appears when it is complete. Fields, and labels that are not classes, are written to
    records.jsonl in it. Nothing is written outside FOLDER.
    """
    from .._tools.unpack import LIST, unpack

    store = _options.opened(path, storage_options)
    report = unpack(store, folder, workers=workers, progress=_options.progress(quiet, as_json))
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report), indent=1))
    elif not quiet:
        also = f", labels and fields in {LIST}" if report.listed else ""
        click.echo(f"{report.folder}: {report.records:,} images, {human(report.nbytes)}{also}")
