"""``fastload verify``: check every record against its checksum."""

from __future__ import annotations

import dataclasses
import json

import click

from .._base.byte_sizes import human
from .._printable import printable
from . import _options

_SHOWN = 50  # number of damaged records that are listed


@click.command(
    epilog="""\b
Examples:
  fastload verify imgs.lmdb
  fastload verify imgs.tfrecord --decode
  fastload verify imgs.lmdb --json | jq .damaged
"""
)
@click.argument("path", type=click.Path())
@click.option("--decode", is_flag=True, help="Also decode every image, as loading would.")
@_options.workers
@_options.storage_options
@_options.as_json
@click.option("-q", "--quiet", is_flag=True, help="Print only damaged records.")
def command(
    path: str,
    decode: bool,
    workers: int | None,
    storage_options: dict[str, str | bool] | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Read the store PATH and compare records, labels, names and fields with their checksums.

    Prints file, record and byte offset of damaged records; then the exit status is 1.
    """
    from .._tools.verify import verify

    store = _options.opened(path, storage_options)
    report = verify(
        store, decode=decode, workers=workers, progress=_options.progress(quiet, as_json)
    )
    known = report.columns in ("right", "no checksum")
    status = 0 if known and not report.damaged else 1
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report), indent=1))
        return status
    for damage in report.damaged[:_SHOWN]:
        where = "" if damage.offset is None else f", byte offset {damage.offset}"
        line = f"{damage.path}: record {damage.record} ({damage.key}){where}: {damage.reason}"
        click.echo(printable(line))
    if len(report.damaged) > _SHOWN:
        click.echo(f"and {len(report.damaged) - _SHOWN:,} more (--json has all)")
    if not known:
        click.echo(printable(report.columns))
    if not quiet:
        what = "checksums right" if report.checksums else "no checksum in this store; readable"
        good = report.records - len(report.damaged)
        click.echo(
            f"{printable(report.path)}: {good:,} of {report.records:,} records: {what}"
            f"{', decoded' if decode else ''}; {human(report.nbytes)} read"
        )
    return status
