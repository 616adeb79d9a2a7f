"""``fastload info``: show the contents of a store."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import click
import numpy as np

from .._base.byte_sizes import human
from .._printable import printable
from .._tools import picture
from .._tools.summary import Spread, Summary, describe_count, describe_labels, summarise
from ..errors import DataError, DecodeError
from ..storage import Store, open_store
from ..storage._read import fetched_ahead
from . import _options

if TYPE_CHECKING:
    from PIL import Image

_CLASSES_SHOWN = 20
_TILE = 96  # pixels of a picture in the contact sheet
_CELL = _TILE + 2 * picture.LINE  # with index and class, and the file, below it
_COLUMNS, _ROWS = 10, 8


@click.command(
    epilog="""\b
Examples:
  fastload info imgs.lmdb
  fastload info imgs.lmdb --grid sheet.png
  fastload info imgs.lmdb --json | jq .records
"""
)
@click.argument("path", type=click.Path())
@_options.storage_options
@_options.as_json
@click.option(
    "--grid", type=click.Path(dir_okay=False), help="Write a contact sheet here: sheet.png."
)
def command(
    path: str, storage_options: dict[str, str | bool] | None, as_json: bool, grid: str | None
) -> None:
    """Show the contents of the store PATH (or of a folder of images)."""
    if grid is not None:
        picture.format_of(grid)  # raises before any work is done
    with open_store(_options.opened(path, storage_options)) as store:
        summary = summarise(store)
        if as_json:
            shown = None if grid is None else _contact_sheet(store, grid)
            click.echo(json.dumps(dataclasses.asdict(summary), indent=1))
            return
        click.echo(_text(summary))
        if grid is not None:
            shown = _contact_sheet(store, grid)
            click.echo(f"contact sheet of {shown} records: {grid}")


def _text(summary: Summary) -> str:
    labels = describe_labels(len(summary.classes), summary.labels)
    lines = [
        f"{printable(summary.path)}: {describe_count(summary.records)}, {labels}",
        f"  format      {summary.format}",
        f"  records     {summary.records:,}",
        f"  bytes       {human(summary.nbytes)} in records, {human(summary.file_nbytes)} in files",
        f"  record      {_spread(summary.record_nbytes, human)}",
        f"  width       {_spread(summary.width, str)} pixels",
        f"  height      {_spread(summary.height, str)} pixels",
        f"  encodings   {_encodings(summary)}",
        f"  checksums   {'CRC32C of every record' if summary.checksums else 'none'}",
    ]
    if summary.labels not in (None, "int64"):
        lines.append(f"  labels      {summary.labels}")
    joint = summary.metadata.get("joint")
    moves = joint if isinstance(joint, dict) else {}
    for name, type_ in summary.fields.items():
        kind = f", moves with the image as {moves[name]}" if name in moves else ""
        lines.append(printable(f"  field       {name}: {type_}{kind}"))
    if 1 < summary.files < summary.records:
        lines.append(f"  files       {summary.files:,}")
    for key in ("encode", "resize", "quality", "part", "source", "fastload"):
        if summary.metadata.get(key) is not None:
            name, by = ("packed by", "fastload ") if key == "fastload" else (key, "")
            lines.append(f"  {name:<11} {by}{printable(str(summary.metadata[key])[:1000])}")
    if not summary.classes:
        return "\n".join([*lines, "  classes     none"])
    lines.append(f"  classes     {len(summary.classes):,}")
    shown = summary.classes[:_CLASSES_SHOWN]
    for name, count in shown:
        lines.append(f"    {'' if count is None else f'{count:,}':>9}  {printable(name)}")
    if len(summary.classes) > _CLASSES_SHOWN:
        lines.append(f"    ... and {len(summary.classes) - _CLASSES_SHOWN:,} more (--json has all)")
    return "\n".join(lines)


def _spread(spread: Spread | None, text: Callable[[int], str]) -> str:
    if spread is None:
        return "unknown"
    return f"{text(spread.min)} to {text(spread.max)}, median {text(spread.median)}"


def _encodings(summary: Summary) -> str:
    text = ", ".join(f"{name} {count:,}" for name, count in summary.encodings.items()) or "none"
    if summary.sampled < summary.records:
        text += f" (in a sample of {summary.sampled:,} records)"
    return text


def _contact_sheet(store: Store, path: str) -> int:
    """Draw records spread evenly over the store, with the masks and boxes that it names.

    Those that cannot be decoded are grey.
    """
    from PIL import Image

    count = min(len(store), _COLUMNS * _ROWS)
    indices = np.linspace(0, len(store) - 1, count).astype(np.int64) if count else np.empty(0, int)
    columns = max(1, min(_COLUMNS, count))
    rows = max(1, -(-count // columns))
    sheet = Image.new("RGB", (columns * _TILE, rows * _CELL), "white")
    keys = store.keys(indices)
    records = (record for part in fetched_ahead(store, [indices]) for record in part.tolist())
    for at, record in enumerate(records):
        tile = _tile(store, record)
        x, y = at % columns * _TILE, at // columns * _CELL
        sheet.paste(tile, (x + (_TILE - tile.width) // 2, y + (_TILE - tile.height) // 2))
        labels = None if store.labels is None else store.labels[record].tolist()
        label = "" if labels is None else picture.label_text(labels, store.classes)
        told = (f"{record}  {label}", keys[at])
        for line, text in enumerate(told):
            picture.write(sheet, (x + 2, y + _TILE + line * picture.LINE), text, _TILE - 4)
    picture.save(sheet, path)
    return count


def _tile(store: Store, record: int) -> Image.Image:
    """The image of a record with its masks and boxes over it; grey where they are damaged.

    Raises StoreError for a record that cannot be read.
    """
    from PIL import Image

    from .._engine.pillow import decode_record

    most = _TILE - 4
    damaged = Image.new("RGB", (most, most), "grey")
    try:
        image = decode_record(store, record, check=False)
    except DecodeError:
        return damaged
    if store.joint:  # else without the second that torch takes to be imported
        from .._tools.marks import as_stored
        from .._transforms.targets.joint import Joint

        line = -(-max(image.size) // most)
        try:
            image = as_stored(image, Joint.of(True, store), store, record, line=line)
        except DataError:
            return damaged
    image.thumbnail((most, most))
    times = most // max(image.size)  # enlarges small images, which would be hard to see
    return image.resize((times * image.width, times * image.height), Image.Resampling.NEAREST)
