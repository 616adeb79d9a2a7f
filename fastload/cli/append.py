"""``fastload append``: add images to a store."""

from __future__ import annotations

from typing import get_args

import click

from ..hints import Encoding, OnPackError
from . import pack
from ._stdout import kept_for_json


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
@click.option(
    "--encode",
    type=click.Choice(get_args(Encoding)),
    help="As for pack, for the new images.",
)
@click.option("--resize", metavar="SIZE", help="As for pack, for the new images.")
@pack.quality
@pack.on_error
@pack.beside
@click.option("--check", is_flag=True, help="Decode every new image before it is stored.")
@click.option("--exif", is_flag=True, help="Rotate new images by their EXIF orientation.")
@click.option("--workers", type=click.IntRange(1), help="Threads. [default: one per CPU]")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress and no summary.")
def command(
    path: str,
    source: str,
    encode: Encoding | None,
    resize: str | None,
    quality: int | None,
    on_error: OnPackError,
    image_column: str | None,
    label_column: str | None,
    file_columns: tuple[str, ...],
    masks: str | None,
    annotations: str | None,
    check: bool,
    exif: bool,
    workers: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Add the images of SOURCE after the records of the store PATH, a single file.

    A new store is written next to the old one and then replaces it. This takes the time and the
    disk space of a copy; running loaders continue to read the old one. SOURCE is as for pack.
    """
    from ..converters import append

    with kept_for_json(as_json):
        report = append(
            path,
            source,
            encode=encode,
            resize=resize,
            quality=quality,
            on_error=on_error,
            image_column=image_column,
            label_column=label_column,
            file_columns=file_columns,
            masks=masks,
            annotations=annotations,
            check=check,
            exif=exif,
            workers=workers,
            progress=not (quiet or as_json),
        )
    pack.show(report, quiet=quiet, as_json=as_json)
