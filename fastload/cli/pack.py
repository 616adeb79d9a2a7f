"""``fastload pack``: pack images into a store."""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from typing import TYPE_CHECKING, Any, get_args

import click

from .._base.byte_sizes import human
from .._base.machine.load import BUSY
from .._printable import printable
from ..hints import Compression
from . import _options
from ._text import wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..converters import Estimate, PackReport

_SHOWN = 10  # number of skipped files, and of reasons, that are listed


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
@_options.of_images
@click.option(
    "--workers",
    type=_options.COUNT,
    help="Threads; with --ray, of each task. [default: one per CPU; with --ray 1]",
)
@click.option(
    "--split",
    metavar="NAME[=SHARE]",
    help="val=0.1: write a tenth to DESTINATION-val, chosen by the names of the images. "
    "train: pack the folder train of a SOURCE with one folder per split.",
)
@_options.shards
@_options.shard_size
@_options.storage_options
@click.option(
    "--ray",
    metavar="ADDRESS",
    help="Have tasks on a Ray cluster write the shards: auto joins the cluster of this machine, "
    "local starts one here. Needs --shards.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Write nothing; estimate for each encoding, from a sample, the size, the time to pack, "
    "and the loading speed.",
)
@click.option(
    "--compression",
    type=click.Choice(get_args(Compression)),
    help="For an .h5 store: smaller, but several times slower to load.",
)
@_options.overwrite
@_options.as_json
@_options.quiet
def command(
    source: str, destination: str, dry_run: bool, as_json: bool, quiet: bool, **options: Any
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
        if options["storage_options"] is not None:
            raise click.UsageError("--storage-option cannot be used with --dry-run")
        asked = inspect.signature(estimate).parameters
        given = {name: value for name, value in options.items() if name in asked}
        with _options.kept_for_json(as_json):
            estimates = estimate(source, destination, **given)
        _show_estimates(estimates, as_json=as_json)
        return
    with _options.kept_for_json(as_json):
        report = pack(source, destination, progress=_options.progress(quiet, as_json), **options)
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
