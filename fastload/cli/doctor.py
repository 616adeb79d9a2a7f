"""``fastload doctor``: find what slows a training script down."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ._text import wrapped

if TYPE_CHECKING:
    from .._tools.doctor import Diagnosis, Finding


@click.command(
    context_settings={"allow_interspersed_args": False},
    epilog="""\b
Examples:
  fastload doctor train.py --epochs 2
  fastload doctor --steps 200 --apply train.py
  fastload doctor --json train.py | jq '.findings[0]'

Exit status: 0 nothing to change, 1 the script is missing, failed or does not train,
2 an error in the command line, 3 there are findings.
""",
)
@click.option(
    "--steps", type=click.IntRange(min=4), default=100, show_default=True,
    help="Training steps after which the script is stopped.",
)  # fmt: skip
@click.option("--apply", is_flag=True, help="Then compare it with FastLoader: four more runs.")
@click.option(
    "--timeout", "timeout_s", type=float, default=600, show_default=True,
    help="Time limit of a run in seconds.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("script", type=click.Path())
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    steps: int,
    apply: bool,
    timeout_s: float,
    as_json: bool,
    script: str,
    arguments: tuple[str, ...],
) -> int:
    """Run the training script SCRIPT for some steps and report what slows it down.

    The script is not changed. All arguments after its name are passed to it, even if doctor has an
    option of the same name.
    """
    from .._tools.doctor import apply as applied
    from .._tools.doctor import examine

    _warn_of_own(script, arguments)
    found = examine(script, arguments, steps=steps, timeout_s=timeout_s)
    if not as_json:
        _show(found)
    if apply:
        # After the findings are shown, in case this fails or is interrupted.
        known = len(found.findings)
        found = applied(found, script, arguments, steps=steps, timeout_s=timeout_s)
        if not as_json:
            _show_findings(found.findings[known:], 1 + _shown(found.findings[:known]))
            if found.applied is not None:
                _say(f"with {_IMPORT}: {found.applied.words()}")
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=1))
    return 3 if _shown(found.findings) else 0


_IMPORT = "`from fastload import FastLoader as DataLoader`"


def _warn_of_own(script: str, arguments: Sequence[str]) -> None:
    """Warn about options of doctor that go to the script because they come after its name."""
    context = click.get_current_context()
    own = {name for option in context.command.params for name in option.opts}
    taken = [word for word in arguments if word.partition("=")[0] in own]
    if taken:
        words = ", ".join(taken)
        click.echo(
            f"fastload: warning: {words}: comes after {script}, so it is passed to the script; put "
            f"doctor's options before it: fastload doctor {' '.join(taken)} {script}",
            err=True,
        )


def _show(found: Diagnosis) -> None:
    from .._run.bottleneck import WAITS

    loader = found.seen.training
    assert loader is not None  # examine raises without one
    most = 1 / max(1 - loader.waiting, 1e-9)  # if data came at once
    if loader.waiting < WAITS:
        verdict = "the training step is the bottleneck"
        verdict += f": a faster loader gains at most {most - 1:.0%}"
    else:
        verdict = f"the loop waits for data {loader.waiting:.0%} of its time"
        verdict += f": a faster loader gains at most {most:.1f} x"
    _say(verdict)
    _say(f"{len(loader.steps_s)} steps at {found.images_per_s:,.0f} images/s")
    if not _shown(found.findings):
        _say("found nothing to change")
    _show_findings(found.findings)


def _shown(findings: Sequence[Finding]) -> int:
    """The number of findings that are shown with a number."""
    return sum(finding.verified for finding in findings)


def _show_findings(findings: Sequence[Finding], first: int = 1) -> None:
    """Print the findings with numbers; those that only a GPU could verify on one line."""
    verified = [finding for finding in findings if finding.verified]
    for number, finding in enumerate(verified, first):
        click.echo()
        _say(finding.name + f", at {finding.where}" * bool(finding.where), f"{number}. ")
        _say(finding.what, "   seen:   ")
        _say(finding.change, "   change: ")
        if finding.gain > 1.0:
            _say(f"{finding.gain:.1f} x" if finding.gain >= 1.05 else "small", "   gain:   ")
    hints = [
        finding.name + f" ({finding.where})" * bool(finding.where)
        for finding in findings
        if not finding.verified
    ]
    if hints:
        click.echo()
        _say(f"only a GPU could show the cost of these, and there is none: {', '.join(hints)}")


def _say(text: str, heading: str = "") -> None:
    """Print a paragraph."""
    click.echo(wrapped(text, sys.stdout, heading))
