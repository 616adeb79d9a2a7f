"""``fastload pack``: pack images into a store."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING, get_args

import click

from .._base import byte_sizes
from .._base.byte_sizes import human
from .._base.machine.load import BUSY
from .._printable import printable
from ..hints import Compression, Encoding, OnPackError
from ._stdout import kept_for_json
from ._storage_options import storage_options
from ._text import wrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..converters import Estimate, PackReport

_SHOWN = 10  # number of skipped files, and of reasons, that are listed


def size_of(
    ctx: click.Context | None, param: click.Parameter | None, value: str | None
) -> int | None:
    """The bytes of an option such as 256MB or 1.5GiB."""
    if value is None:
        return None
    nbytes = byte_sizes.parse(value)
    if nbytes is None:
        raise click.BadParameter(f"expected a size such as 256MB, got {value!r}", ctx, param)
    return nbytes


# Options that ``append`` and ``concat`` have too.
quality = click.option(
    "--quality",
    type=click.IntRange(1, 100),
    help="Of JPEGs that are encoded: --encode jpeg, --resize. [default: 95]",
)
on_error = click.option(
    "--on-error",
    type=click.Choice(get_args(OnPackError)),
    default="raise",
    show_default=True,
    help="For a file that is truncated or not an image: stop with an error, or skip and list it.",
)
shards = click.option(
    "--shards", type=click.IntRange(1), help="Write this many files of equal counts."
)
shard_size = click.option(
    "--shard-size", "shard_nbytes", callback=size_of, metavar="SIZE",
    help="Write several files, of at most this size: 256MB.",
)  # fmt: skip


# What a source has beside its images, for ``append``, too.
_BESIDE = (
    click.option(
        "--image-column", metavar="NAME",
        help="For a list: the column of paths. [default: path, filename, image ...]",
    ),
    click.option(
        "--label-column", metavar="NAME",
        help="For a list, a dataset, the fields of a store, or the JSON beside images: the label. "
        "[default: label, class, target ...] 'cat,dog' or 'is_*': several columns of 0 and 1.",
    ),
    click.option(
        "--file-column", "file_columns", metavar="NAME", multiple=True,
        help="For a list: a column of paths whose files become a field, such as mask.",
    ),
    click.option(
        "--masks", type=click.Path(), metavar="PATH",
        help="For a folder of images: the folder of their masks, of the same names; or the path of "
        "--annotations, whose polygons are drawn.",
    ),
    click.option(
        "--annotations", type=click.Path(), metavar="PATH",
        help="For a folder of images: their boxes and classes: COCO's .json, a folder of VOC's "
        ".xml or YOLO's .txt, or a .txt of VOC's ImageSets.",
    ),
)  # fmt: skip


def beside(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command`` the options about what lies beside the images."""
    for option in reversed(_BESIDE):
        command = option(command)
    return command


@click.command(
    epilog="""\b
Examples:
  fastload pack ./imgs imgs.lmdb
  fastload pack ./images seg.lmdb --masks ./masks
  fastload pack ./train2017 coco.lmdb --annotations instances_train2017.json
  fastload pack VOC2012/JPEGImages voc.lmdb --annotations VOC2012/Annotations
  fastload pack yolo/images yolo.lmdb --annotations yolo/labels --split train
  fastload pack a.csv pairs.lmdb --file-column mask --label-column 'cat,dog'
  fastload pack ./imgs imgs.lmdb --encode dct
  fastload pack ./imgs imgs.lmdb --overwrite
  fastload pack ./imgs imgs.lmdb --dry-run
  fastload pack ./imgs imgs.lmdb --split val=0.1
  fastload pack ./imagenet train.lmdb --split train
  fastload pack list.csv imgs.lmdb --label-column species
  fastload pack ./imgs small.lmdb --resize 256 --quality 90
  fastload pack ./imgs pixels.h5 --resize crop:224 --encode raw
  fastload pack list.csv imgs.tfrecord --shard-size 256MB
  fastload pack /shared/imgs /shared/imgs.tar --shards 64 --ray auto
  fastload pack a.lmdb b.h5
  fastload pack cifar-10-python.tar.gz cifar.lmdb
  fastload pack mymodule:MyDataset mine.lmdb
"""
)
@click.argument("source", type=click.Path())
@click.argument("destination", type=click.Path())
@click.option(
    "--encode",
    type=click.Choice(get_args(Encoding)),
    help="What a record holds: the file's bytes (keep), JPEGs without Huffman coding (dct: the "
    "same pixels, 1.3 times the size, decoded several times faster), or the image in another "
    "encoding. [default: keep; jpeg with --resize]",
)
@click.option(
    "--resize",
    metavar="SIZE",
    help="256: scale the shorter side to 256 pixels, as torchvision's Resize(256). "
    "longest:256: scale the longer side down to 256. 224x160: width and height. "
    "crop:224: scale the shorter side to 224 and crop the central square.",
)
@quality
@click.option(
    "--workers",
    type=click.IntRange(1),
    help="Threads; with --ray, of each task. [default: one per CPU; with --ray 1]",
)
@click.option(
    "--split",
    metavar="NAME[=SHARE]",
    help="val=0.1: write a tenth to DESTINATION-val, chosen by the names of the images. "
    "train: pack the folder train of a SOURCE with one folder per split.",
)
@beside
@on_error
@click.option(
    "--check", is_flag=True,
    help="Decode every image before it is stored, to find damage after an intact header.",
)  # fmt: skip
@shards
@shard_size
@storage_options
@click.option(
    "--ray", metavar="ADDRESS",
    help="Have tasks on a Ray cluster write the shards: auto joins the cluster of this machine, "
    "local starts one here. Needs --shards.",
)  # fmt: skip
@click.option(
    "--dry-run", is_flag=True,
    help="Write nothing; estimate for each encoding, from a sample, the size, the time to pack, "
    "and the loading speed.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--exif", is_flag=True, help="Rotate images by their EXIF orientation.")
@click.option(
    "--compression",
    type=click.Choice(get_args(Compression)),
    help="For an .h5 store: smaller, but several times slower to load.",
)
@click.option(
    "--overwrite", is_flag=True,
    help="Replace the store DESTINATION once the new one is complete.",
)  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="No progress and no summary.")
def command(
    source: str,
    destination: str,
    encode: Encoding | None,
    resize: str | None,
    quality: int | None,
    workers: int | None,
    split: str | None,
    image_column: str | None,
    label_column: str | None,
    file_columns: tuple[str, ...],
    masks: str | None,
    annotations: str | None,
    on_error: OnPackError,
    check: bool,
    shards: int | None,
    shard_nbytes: int | None,
    storage_options: dict[str, str | bool] | None,
    ray: str | None,
    dry_run: bool,
    as_json: bool,
    exif: bool,
    compression: Compression | None,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Pack the images of SOURCE into the store DESTINATION.

    SOURCE is a folder with one folder per class, as for torchvision's ImageFolder, or a folder of
    images; a CSV, TSV or JSONL list with a column of paths, and optionally of labels and others; a
    folder with Hugging Face's metadata.jsonl or .csv; a store of any format, a tar also compressed;
    a URL of one of these, such as s3://...; MNIST's or CIFAR's downloaded files; or a Dataset as
    MODULE:OBJECT. The suffix of DESTINATION, a path or a URL, determines the
    format: .lmdb, .h5, .tfrecord ...

    DESTINATION appears when it is complete. After Ctrl-C, a crash or a full disk the finished part
    is in DESTINATION.partial; run the same command again to resume. (A single .h5 or .pth file,
    .n5, .zarr, and the records of an iterable Dataset start from the beginning.)
    """
    from ..converters import estimate, pack

    if dry_run:
        if storage_options is not None:
            raise click.UsageError("--storage-option cannot be used with --dry-run")
        with kept_for_json(as_json):
            estimates = estimate(
                source,
                destination,
                encode=encode,
                resize=resize,
                quality=quality,
                workers=workers,
                split=split,
                image_column=image_column,
                label_column=label_column,
                file_columns=file_columns,
                masks=masks,
                annotations=annotations,
            )
        _show_estimates(estimates, as_json=as_json)
        return
    with kept_for_json(as_json):
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
            check=check,
            shards=shards,
            shard_nbytes=shard_nbytes,
            compression=compression,
            overwrite=overwrite,
            image_column=image_column,
            label_column=label_column,
            file_columns=file_columns,
            masks=masks,
            annotations=annotations,
            storage_options=storage_options,
            ray=ray,
            progress=not (quiet or as_json),
        )
    show(report, quiet=quiet, as_json=as_json)


def _show_estimates(estimates: Sequence[Estimate], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(one) for one in estimates], indent=1))
        return
    click.echo(f"{'encoding':<10}{'size':>12}{'time to pack':>15}{'loads, images/s':>18}")
    for one in estimates:
        click.echo(
            f"{one.encode:<10}{human(one.nbytes):>12}{one.pack_seconds:>13,.1f} s"
            f"{one.load_images_per_s:>18,.0f}"
        )
    first = estimates[0]
    click.echo(f"on {first.sampled} images, in turn; {first.encode} would load fastest")
    if first.others > BUSY:
        text = (
            f"other programs took {first.others:.0%} of the CPUs: figures are too low, and another "
            "encoding may be the fastest; measure again when the machine is idle"
        )
        click.echo(wrapped(text, sys.stdout))


def show(report: PackReport, *, quiet: bool, as_json: bool) -> None:
    """Print what was written and what was skipped."""
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report), indent=1))
        return
    for skipped in report.skipped[:_SHOWN]:
        where = f"{skipped.path} (record {skipped.record})"
        click.echo(printable(f"skipped {where}: {skipped.reason}"), err=True)
    if len(report.skipped) > _SHOWN:
        click.echo(f"skipped {len(report.skipped) - _SHOWN:,} more", err=True)
    if quiet:
        return
    from ..converters._report import contents, pace  # here, because --help does not need it

    for part in report.parts:
        click.echo(f"{printable(part.path)}: {contents(part)}")
    if report.joint:
        moving = ", ".join(f"{name} ({kind})" for name, kind in report.joint.items())
        click.echo(printable(f"fields: {moving}; PackedDataset(path, joint=True) moves them"))
    for reason, count in list(report.kept.items())[:_SHOWN]:
        click.echo(printable(f"kept unchanged: {count:,}, {reason}"))
    others = sum(list(report.kept.values())[_SHOWN:])
    if others:
        click.echo(f"kept unchanged: {others:,}, for other reasons")
    for one in report.left_out[:_SHOWN]:
        click.echo(printable(f"left out: {one}"))
    if len(report.left_out) > _SHOWN:
        more = sum(one.files for one in report.left_out[_SHOWN:])
        click.echo(f"left out: {more:,} more, for other reasons")
    if report.left_out:
        click.echo("those of them that are images can be converted, or packed from a list (CSV)")
    click.echo(pace(report))
