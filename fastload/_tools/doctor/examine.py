"""The examination: run the script, observe, judge; with FastLoader in place too, if asked."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from ...errors import FastloadError, ScriptError, UsageError
from .comparison import Comparison, compare
from .observation import LoaderSeen, Observation
from .rules import Finding, findings


@dataclasses.dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What was found.

    Attributes:
        seen: of the script as it is.
        findings: what to change, the most worthwhile first.
        applied: of the same script with FastLoader in place of DataLoader; None where that was not
            asked for, or failed, which is a finding.
    """

    seen: Observation
    findings: tuple[Finding, ...]
    applied: Comparison | None = None

    @property
    def images_per_s(self) -> float:
        """Of the training loop as it is."""
        loader = self.seen.training
        return statistics.fmean(loader.rates() or [0.0]) if loader else 0.0

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        applied = self.applied
        return {
            "images_per_s": self.images_per_s,
            "applied_images_per_s": 0.0 if applied is None else applied.after,
            "applied": None if applied is None else dataclasses.asdict(applied),
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
            "seen": dataclasses.asdict(self.seen),
        }


def examine(
    script: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    *,
    steps: int = 100,
    timeout_s: float = 600.0,
) -> Diagnosis:
    """Run a training script for some steps, unchanged, and find what holds it up.

    Args:
        script: path of the script; it runs in a process of its own, with ``arguments``.
        steps: of training (calls of ``backward``) after which it is ended.
        timeout_s: for the run.

    Raises:
        UsageError: no such script.
        ScriptError: it failed, or no loop over a DataLoader was seen in it.
    """
    script = os.path.abspath(os.fspath(script))
    if not os.path.isfile(script):
        raise UsageError(f"{script!r}: expected a Python script, found none")
    seen = _run(script, arguments, steps, timeout_s, replace=False)
    return Diagnosis(seen=seen, findings=tuple(findings(seen)))


def apply(
    diagnosis: Diagnosis,
    script: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    *,
    steps: int = 100,
    timeout_s: float = 600.0,
) -> Diagnosis:
    """The diagnosis with a comparison: the script with FastLoader in place, and as it is.

    Both run twice, in turn. Whatever becomes of that, the findings stay: a failure is one more.

    Args:
        diagnosis: of ``examine``; the other arguments are as there.
    """
    runs: dict[bool, list[LoaderSeen]] = {True: [], False: []}
    script = os.path.abspath(os.fspath(script))
    for replace in (True, False, False, True):
        try:
            loader = _run(script, arguments, steps, timeout_s, replace=replace).training
        except (FastloadError, OSError, ValueError) as error:
            failed = _failed(error, replace=replace)
            return dataclasses.replace(diagnosis, findings=(*diagnosis.findings, failed))
        assert loader is not None  # _run raises without one
        runs[replace].append(loader)
    return dataclasses.replace(diagnosis, applied=compare(runs[False], runs[True]))


def _failed(error: Exception, *, replace: bool) -> Finding:
    where = error.where if isinstance(error, ScriptError) else ""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    what = lines[-1] if lines else type(error).__name__
    if not replace:
        return Finding(
            name="failed-again",
            what=f"as it is, the script ran once, and failed when it ran again: {what}",
            change="let it run several times (files that it leaves behind?), then compare",
            where=where,
        )
    return Finding(
        name="apply-failed",
        what=f"with FastLoader in place of DataLoader the script fails: {what}",
        change="keep DataLoader until this is solved; the other findings hold without FastLoader",
        where=where,
    )


def _run(
    script: str, arguments: Sequence[str], steps: int, timeout_s: float, *, replace: bool
) -> Observation:
    with tempfile.TemporaryDirectory(prefix="fastload-doctor-") as folder:
        output = os.path.join(folder, "seen.json")
        command = [sys.executable, "-m", "fastload._tools.doctor.child", output, str(steps)]
        command += ["replace" if replace else "keep", script, *arguments]
        why = (
            f"the script did not reach {steps} training steps within {timeout_s:.0f} s: ask for "
            "fewer (--steps), or give it longer (--timeout)"
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            # The script's own words go to stderr: stdout is for ours.
            done = subprocess.run(
                command, stdout=sys.stderr.fileno(), timeout=timeout_s, check=False
            )
            why = f"the script ended its process by itself (status {done.returncode})"
        if not os.path.exists(output):  # what was seen is written before FastLoader is tried
            raise ScriptError(why)
        with open(output, encoding="utf-8") as file:
            seen = Observation.from_json(json.load(file))
    if seen.error:
        raise ScriptError(f"the script failed:\n{seen.error}", where=seen.error_where)
    if seen.training is None:
        raise ScriptError(
            "no training loop over a DataLoader was seen: nothing called backward() between batches"
        )
    return seen
