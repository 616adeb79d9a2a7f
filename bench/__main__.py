"""The command line: ``python -m bench list`` and ``python -m bench run SUITE``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from bench import documents, loaders, machine, report
from bench.data import cache_folder
from bench.plot import figures
from bench.process import missing
from bench.suites import SUITES
from bench.suites.base import Options

_CPUS = len(os.sched_getaffinity(0))


@click.group()
def main() -> None:
    """fastload measured against torch's DataLoader and other loaders."""


@main.command("list")
def list_() -> None:
    """Name the suites, their variants (the first is the default) and the loaders."""
    for suite in SUITES.values():
        click.echo(f"{suite.name}: {suite.summary}\n    variants: {', '.join(suite.variants)}")
    click.echo()
    for name in (*loaders.WHERE, *loaders.SCALED, *loaders.REMOTE):
        loader = loaders.make(name)
        click.echo(f"{name}: {loader.summary}\n    {missing(loader.needs) or 'installed'}")


_FILES = click.argument(
    "files", type=click.Path(exists=True, dir_okay=False, path_type=Path), nargs=-1, required=True
)


@main.command()
@click.argument("suite", type=click.Choice(list(SUITES)))
@click.option("--data", help="Folder of images; without it the suite makes its own.")
@click.option("--loaders", "names", help="Names, separated by commas; default: all.")
@click.option("--threads", type=click.IntRange(1), default=_CPUS, show_default="the CPUs")
@click.option("--variant", "variants", help="Names, separated by commas, or 'all'.")
@click.option(
    "--simd",
    type=click.Choice(["scalar", "neon", "avx2", "avx512"]),
    help="FastLoader's instruction set, which the variant's name then includes.",
)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--seconds", type=float, default=2.0, show_default=True, help="Least, per round.")
@click.option(
    "--tries", type=click.IntRange(1), help="Settings that each loader tries; default: all."
)
@click.option(
    "--json",
    "output",
    type=click.Path(dir_okay=False),
    help="File for the rows; those of other variants that it has stay.",
)
@click.option("--cache", help="Folder for images and packed stores, kept for the next run.")
@click.option(
    "--repos",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with checkouts of public scripts, for the suite scripts.",
)
@click.option("--toy", is_flag=True, help="The smallest size: shows that it runs, not how fast.")
def run(
    suite: str,
    names: str | None,
    variants: str | None,
    simd: str | None,
    output: str | None,
    cache: str | None,
    toy: bool,
    **given: Any,
) -> None:
    """Measure SUITE and print a table."""
    if simd and not machine.choose(simd):
        raise click.BadParameter(f"{simd} does not run here", param_hint="--simd")
    chosen = SUITES[suite]
    options = Options(
        loaders=_split("loader", names, chosen.loaders),
        toy=toy,
        cache=cache_folder(cache),
        say=_say,
        machine={"machine": machine.describe(), "shared_versions": machine.versions()},
        **{**given, "rounds": 1, "seconds": 0.1} if toy else given,
    )
    existing = tuple(chosen.variants)
    wanted = _split("variant", variants or existing[0], (*existing, "all"))
    path = Path(output) if output else None
    kept = _rows((path,)) if path and path.exists() else []
    rows: list[report.Row] = []
    for variant in existing if "all" in wanted else wanted:
        name = f"{variant}, {simd}" if simd else variant
        made = [{**row, "variant": name} for row in chosen.run(variant, options)]
        rows += made
        if path:  # after each variant: an interrupted run keeps what it has
            kept = _merged(kept, made)
            path.write_text(json.dumps(kept, indent=1) + "\n")
    _show(rows)


@main.command()
@_FILES
def publish(files: tuple[Path, ...]) -> None:
    """Put the rows in FILES between the markers of README.md and pages of docs/."""
    for path in documents.fill(_rows(files), Path()):
        click.echo(path)


@main.command()
@_FILES
def table(files: tuple[Path, ...]) -> None:
    """Print the tables of rows that `run --json` wrote into FILES."""
    _show(_rows(files))


@main.command()
@_FILES
@click.option("--out", default=".", show_default=True, type=click.Path(file_okay=False))
def plot(files: tuple[Path, ...], out: str) -> None:
    """Draw a chart for each suite in FILES, which `run --json` wrote.

    They are OUT/SUITE.svg for light pages, and OUT/SUITE-dark.svg for dark ones. Of imagenet-train
    there is OUT/overview, too: the README's five bars.
    """
    for path in figures(_rows(files), Path(out)):
        click.echo(path)


def _rows(files: tuple[Path, ...]) -> list[report.Row]:
    rows: list[report.Row] = []
    for path in files:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if not all(isinstance(row, dict) and "median" in row for row in found):
                raise ValueError("it has no rows")
        except (ValueError, TypeError) as error:
            expected = f"{path}: expected rows that `run --json` wrote: {error}"
            raise click.ClickException(expected) from error
        rows += found
    return rows


def _merged(kept: list[report.Row], made: list[report.Row]) -> list[report.Row]:
    """``kept``, with the rows ``made`` in the place of those that it has of their variants."""

    merged: dict[tuple[str, str], list[report.Row]] = {}
    for rows in (kept, made):
        merged |= {(row["suite"], row["variant"]): [] for row in rows}
        for row in rows:
            merged[row["suite"], row["variant"]].append(row)
    return [row for rows in merged.values() for row in rows]


def _say(line: str) -> None:
    click.secho(line, dim=True, err=True)


def _show(rows: list[report.Row]) -> None:
    out = Console() if Console().is_terminal else Console(width=160)
    for table in report.tables(rows):
        out.print(table)


def _split(what: str, given: str | None, existing: tuple[str, ...]) -> tuple[str, ...]:
    """Names out of "a,b"; all known ones where nothing was given."""
    if given is None:
        return existing
    names = tuple(name.strip() for name in given.split(",") if name.strip())
    unknown = [name for name in names if name not in existing]
    if unknown:
        raise click.BadParameter(
            f"no {what} {', '.join(unknown)}; there are: {', '.join(existing)}"
        )
    return names


if __name__ == "__main__":
    main(prog_name="python -m bench")
