"""``fastload pack``."""

from __future__ import annotations

import click

from ._progress import ProgressBar, human

_SHOWN = 10  # skipped files, and reasons, that are listed


@click.command(
    epilog="""\b
Examples:
  fastload pack ./imgs imgs.lmdb
  fastload pack ./imgs imgs.lmdb --encode dct
  fastload pack ./imgs imgs.lmdb --split val=0.1
  fastload pack ./imgs small.lmdb --resize 256 --quality 90
  fastload pack ./imgs pixels.h5 --resize crop:224 --encode raw
"""
)
@click.argument("source", type=click.Path())
@click.argument("destination", type=click.Path())
@click.option(
    "--encode",
    type=click.Choice(["keep", "dct", "jpeg", "png", "bmp", "raw"]),
    help="What a record holds: the file's own bytes (keep), JPEGs without Huffman coding (dct: the "
    "same pixels, 1.3 times the size, decoded several times faster), or the image encoded anew. "
    "[default: keep; jpeg with --resize]",
)
@click.option(
    "--resize",
    metavar="SIZE",
    help="256: the shorter side becomes 256 pixels, as torchvision's Resize(256) does it. "
    "longest:256: the longer side becomes 256 where it is longer. crop:224: as 224, then the "
    "square in the middle. 320x240: width and height, whatever the shape of the image.",
)
@click.option(
    "--quality", type=click.IntRange(1, 100), default=95, show_default=True, help="Of JPEG."
)
@click.option("--workers", type=click.IntRange(1), help="Threads. [default: one per CPU]")
@click.option(
    "--split",
    metavar="NAME=SHARE",
    help="val=0.1 puts a tenth into DESTINATION-val, chosen by the names of the images.",
)
@click.option(
    "--on-error",
    type=click.Choice(["raise", "skip"]),
    default="raise",
    show_default=True,
    help="What to do with a file that is no image: stop and name it, or leave it out and list it.",
)
@click.option("--exif", is_flag=True, help="Turn images as their EXIF orientation says.")
@click.option(
    "--compression",
    type=click.Choice(["gzip", "lzf"]),
    help="Of an .h5 store: smaller, and several times slower to load.",
)
@click.option("-q", "--quiet", is_flag=True, help="No progress and no summary.")
def command(
    source: str,
    destination: str,
    encode: str | None,
    resize: str | None,
    quality: int,
    workers: int | None,
    split: str | None,
    on_error: str,
    exif: bool,
    compression: str | None,
    quiet: bool,
) -> None:
    """Pack the folder SOURCE of images into the store DESTINATION.

    SOURCE has one folder per class, as for torchvision's ImageFolder, or images and no folders. The
    suffix of DESTINATION names the format: .lmdb, .h5, and for raw pixels .pth, .n5, .zarr.

    DESTINATION appears when it is complete. After Ctrl-C, a crash or a full disk the work so far
    lies in DESTINATION.partial, and the same command goes on from there.
    """
    from fastload.converters import pack

    with ProgressBar("packing", quiet=quiet) as bar:
        report = pack(
            source,
            destination,
            encode=encode,
            resize=resize,
            quality=quality,
            workers=workers,
            split=split,
            on_error=on_error,
            exif=exif,
            compression=compression,
            progress=bar,
        )
    for skipped in report.skipped[:_SHOWN]:
        click.echo(f"skipped {skipped.path}: {skipped.reason}", err=True)
    if len(report.skipped) > _SHOWN:
        click.echo(f"skipped {len(report.skipped) - _SHOWN:,} more", err=True)
    if quiet:
        return
    for part in report.parts:
        resumed = f", {part.resumed:,} of them by an earlier run" if part.resumed else ""
        click.echo(f"{part.path}: {part.records:,} records, {human(part.nbytes)}{resumed}")
    for reason, count in list(report.kept.items())[:_SHOWN]:
        click.echo(f"kept as they are: {count:,}, {reason}")
    others = sum(list(report.kept.values())[_SHOWN:])
    if others:
        click.echo(f"kept as they are: {others:,}, for other reasons")
    new = report.records - sum(part.resumed for part in report.parts)
    click.echo(f"{report.seconds:.1f} s, {new / max(report.seconds, 1e-6):,.0f} images/s")
