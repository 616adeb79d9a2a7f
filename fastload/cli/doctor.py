"""``fastload doctor``."""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.table import Table


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="""\b
Examples:
  fastload doctor train.py --epochs 2
  fastload doctor --steps 200 --apply train.py
  fastload doctor --json train.py | jq '.findings[0]'

Exit status: 0 nothing to change, 1 the script failed, 3 there are findings.
""",
)
@click.option(
    "--steps", type=click.IntRange(min=4), default=100, show_default=True,
    help="Training steps after which the script is ended.",
)  # fmt: skip
@click.option("--apply", is_flag=True, help="Run it with FastLoader in place of DataLoader too.")
@click.option(
    "--timeout", "timeout_s", type=float, default=600, show_default=True, help="Seconds for a run."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("script", type=click.Path(dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    steps: int,
    apply: bool,
    timeout_s: float,
    as_json: bool,
    script: str,
    arguments: tuple[str, ...],
) -> int:
    """Run SCRIPT, somebody's training script, for some steps and say what holds it up.

    The script is not changed; what comes after its name are its own arguments.
    """
    from fastload._doctor import examine

    found = examine(script, arguments, steps=steps, apply=apply, timeout_s=timeout_s)
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=1))
        return 3 if found.findings else 0
    console = Console(highlight=False)
    loader = found.seen.training
    assert loader is not None  # examine raises without one
    console.print(
        f"{len(loader.steps_s)} steps at {found.images_per_s:,.0f} images/s; the loop waits for "
        f"data {loader.waiting:.0%} of its time",
        soft_wrap=True,
    )
    if not found.findings:
        console.print("nothing to change was found")
    else:
        table = Table(show_lines=True)
        for heading in ("", "what was seen", "what to change", "gain"):
            table.add_column(heading)
        for number, finding in enumerate(found.findings, 1):
            gain = f"{finding.gain:.1f} x" if finding.gain >= 1.05 else "small"
            if not finding.verified:
                gain = "unverified: there is no GPU here"
            table.add_row(str(number), finding.what, finding.change, gain)
        console.print(table)
    if found.applied is not None:
        ratio = found.applied_images_per_s / found.images_per_s
        console.print(
            "with `from fastload import FastLoader as DataLoader`: "
            f"{found.applied_images_per_s:,.0f} images/s, {ratio:.2f} x",
            soft_wrap=True,
        )
    return 3 if found.findings else 0
