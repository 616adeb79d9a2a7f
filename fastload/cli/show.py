"""``fastload show``: draw images before and after the transform."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, get_args

import click

from .._base.import_object import import_object
from ..hints import Decode
from ._options import kept_for_json


def _kinds(
    context: click.Context, option: click.Parameter, given: tuple[str, ...]
) -> dict[str, str]:
    kinds = dict(one.partition("=")[::2] for one in given)
    if not all(kinds.values()):
        raise click.BadParameter(f"expected NAME=KIND, such as mask=mask, got {', '.join(given)}")
    return kinds


@click.command(
    epilog="""\b
Examples:
  fastload show imgs.lmdb --transform train:transform --out grid.png
  fastload show imgs --transform train:transform --index 3 --index 7 --views 6
  fastload show imgs.lmdb --transform train:transform --decode scaled --json
"""
)
@click.argument("path", type=click.Path())
@click.option(
    "--transform", metavar="MODULE:OBJECT",
    help="The transform. [default: none, images unchanged]",
)  # fmt: skip
@click.option(
    "--joint", "joint", multiple=True, metavar="NAME=KIND", callback=_kinds,
    help="Draw this field, too: mask=mask, boxes=xyxy, xywh or cxcywh, eyes=points. Repeatable. "
    "[default: the masks and boxes that pack found]",
)  # fmt: skip
@click.option(
    "-o", "--out", type=click.Path(dir_okay=False), default="grid.png", show_default=True,
    help="The picture, in the format of its suffix: .png, .jpg, .webp ...",
)  # fmt: skip
@click.option(
    "--samples", type=click.IntRange(1), default=8, show_default=True, metavar="N",
    help="How many samples, spread evenly.",
)  # fmt: skip
@click.option(
    "--index", "indices", type=int, multiple=True,
    help="Show this sample instead; may be repeated.",
)  # fmt: skip
@click.option(
    "--views", type=click.IntRange(1), default=3, show_default=True, metavar="N",
    help="How often each sample is augmented.",
)  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="As for FastLoader.")
@click.option(
    "--epoch", type=click.IntRange(0), default=0, show_default=True,
    help="The epoch of the first view; the others show the following ones.",
)  # fmt: skip
@click.option(
    "--decode", type=click.Choice(get_args(Decode)), default="exact", show_default=True,
    help="As for FastLoader: scaled decodes large JPEGs at a fraction of their size.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the place of each picture as JSON.")
def command(
    path: str,
    transform: str | None,
    joint: dict[str, Any],
    samples: int,
    indices: tuple[int, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Draw the images of PATH, a store or a folder of images, as the network will see them.

    A row is a sample: the stored image, then the results of the transform; below it index, class
    and file. The same seed gives the same picture. Importing MODULE, also from the current folder,
    runs it: a script needs `if __name__ == "__main__":` before its training.
    """
    from .._sources.packed import PackedDataset
    from .._tools.show import show
    from ..storage import open_store

    store = open_store(path)
    moving = joint or store.joint

    with kept_for_json(as_json):
        shown = show(
            PackedDataset(store, joint=moving) if moving else path,
            import_object(transform) if transform else None,
            samples=list(indices) or samples,
            **options,
        )
    out = options["out"]
    if as_json:
        found = {
            "out": out,
            "width": shown.image.width,
            "height": shown.image.height,
            "engine": shown.engine,
            "levels": shown.levels,
            "tiles": [dataclasses.asdict(tile) for tile in shown.tiles],
        }
        click.echo(json.dumps(found, indent=1))
        return
    count = len({tile.index for tile in shown.tiles})
    click.echo(
        f"{out}: {count} sample{'s' * (count != 1)}, each before and after, "
        f"{shown.image.width}x{shown.image.height} pixels; engine: {shown.engine}; "
        f"values: {shown.levels}"
    )
