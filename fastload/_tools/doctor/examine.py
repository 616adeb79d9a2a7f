"""``examine``: run a script, observe it and derive findings; ``apply``: also try FastLoader."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from ...errors import FastloadError, ScriptError, UsageError
from .comparison import Comparison, compare
from .observation import LoaderSeen, Observation
from .rules import Finding, findings


@dataclasses.dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What ``examine`` saw in the unchanged script, and what to change, the largest gain first.

    ``applied`` is the comparison with FastLoader in place of DataLoader; None if it was not
    requested, or if it failed, which is a finding.
    """

    seen: Observation
    findings: tuple[Finding, ...]
    applied: Comparison | None = None

    @property
    def images_per_s(self) -> float:
        """Rate of the unchanged training loop."""
        loader = self.seen.training
        return statistics.fmean(loader.rates() or [0.0]) if loader else 0.0

    def as_json(self) -> dict[str, object]:
        """The diagnosis as JSON values."""
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
    """Run an unchanged training script for some steps, and find what slows it down.

    It runs in a separate process, with ``arguments``, until so many ``steps`` (calls of
    ``backward``) or ``timeout_s``. Raises ScriptError if it fails, or has no training loop over a
    DataLoader.
    """
    script = os.path.abspath(os.fspath(script))
    if not os.path.isfile(script):
        raise ScriptError(f"{script!r}: expected a Python script, found no such file")
    if not 0 < timeout_s < math.inf:
        raise UsageError(f"timeout_s: expected seconds above 0, got {timeout_s!r}")
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
    """The diagnosis with a comparison of the script with FastLoader and unchanged.

    Both run twice, in turn. A failure is added to the findings.
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
            what=f"the unchanged script ran once, and failed when it ran again: {what}",
            change="make it run repeatedly (does it leave files behind?), then compare",
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
            f"the script did not reach {steps} training steps within {timeout_s:.0f} s: use fewer "
            "steps (--steps) or a longer timeout (--timeout)"
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            # The script's output goes to stderr: stdout is for the report.
            done = subprocess.run(
                command, stdout=sys.stderr.fileno(), timeout=timeout_s, check=False
            )
            why = f"the script ended its process itself (status {done.returncode})"
        if not os.path.exists(output):  # a timeout during the trial does no harm
            raise ScriptError(why)
        with open(output, encoding="utf-8") as file:
            seen = Observation.from_json(json.load(file))
    if seen.error:
        raise ScriptError(f"the script failed:\n{seen.error}", where=seen.error_where)
    if seen.training is None:
        raise ScriptError(
            "found no training loop over a DataLoader: nothing called backward() between batches"
        )
    return seen
