"""``fastload append``: add images to a store."""

from __future__ import annotations

from typing import Any

import click

from . import _options, pack


@click.command(
    epilog="""\b
Examples:
  fastload append imgs.lmdb ./more
  fastload append imgs.lmdb ./more --encode dct
  fastload append imgs.lmdb ./more --on-error skip
  fastload append seg.lmdb ./more --masks ./more-masks
"""
)
@click.argument("path", type=click.Path())
@click.argument("source", type=click.Path())
@_options.of_images
@_options.workers
@_options.as_json
@_options.quiet
def command(path: str, source: str, as_json: bool, quiet: bool, **options: Any) -> None:
    """Add the images of SOURCE after the records of the store PATH, a single file.

    A new store is written next to the old one and then replaces it. This takes the time and the
    disk space of a copy; running loaders continue to read the old one. SOURCE is as for pack.
    """
    from ..converters import append

    with _options.kept_for_json(as_json):
        report = append(path, source, progress=_options.progress(quiet, as_json), **options)
    pack.show(report, quiet=quiet, as_json=as_json)
