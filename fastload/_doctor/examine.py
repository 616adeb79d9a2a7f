"""The examination: run the script, observe, judge; with FastLoader in place too, if asked."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from fastload.errors import UsageError

from .observation import Observation
from .rules import Finding, findings


@dataclasses.dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What was found.

    Attributes:
        seen: of the script as it is.
        findings: what to change, the most worthwhile first.
        applied: of the same script with FastLoader in place of DataLoader; None if not asked for.
    """

    seen: Observation
    findings: tuple[Finding, ...]
    applied: Observation | None

    @property
    def images_per_s(self) -> float:
        """Of the training loop as it is."""
        return _rate(self.seen)

    @property
    def applied_images_per_s(self) -> float:
        """Of the training loop with FastLoader; 0 where it was not run."""
        return 0.0 if self.applied is None else _rate(self.applied)

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "images_per_s": self.images_per_s,
            "applied_images_per_s": self.applied_images_per_s,
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
            "seen": dataclasses.asdict(self.seen),
        }


def _rate(seen: Observation) -> float:
    loader = seen.training
    if loader is None:
        return 0.0
    seconds = sum(loader.steps_s) + sum(loader.waits_s) + sum(loader.starts_s)
    return loader.images / seconds if seconds else 0.0


def examine(
    script: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    *,
    steps: int = 100,
    apply: bool = False,
    timeout_s: float = 600.0,
) -> Diagnosis:
    """Run a training script for some steps, unchanged, and find what holds it up.

    Args:
        script: path of the script; it runs in a process of its own, with ``arguments``.
        steps: of training (calls of ``backward``) after which it is ended.
        apply: run it again with FastLoader in place of torch's DataLoader.
        timeout_s: for each run.

    Raises:
        UsageError: no such script, it failed, or no loop over a DataLoader was seen in it.
    """
    script = os.path.abspath(os.fspath(script))
    if not os.path.isfile(script):
        raise UsageError(f"{script!r}: expected a Python script, found none")
    seen = _run(script, arguments, steps, timeout_s, replace=False)
    applied = _run(script, arguments, steps, timeout_s, replace=True) if apply else None
    return Diagnosis(seen=seen, findings=tuple(findings(seen)), applied=applied)


def _run(
    script: str, arguments: Sequence[str], steps: int, timeout_s: float, *, replace: bool
) -> Observation:
    with tempfile.TemporaryDirectory(prefix="fastload-doctor-") as folder:
        output = os.path.join(folder, "seen.json")
        command = [sys.executable, "-m", "fastload._doctor.child", output, str(steps)]
        command += ["replace" if replace else "keep", script, *arguments]
        try:
            # The script's own words go to stderr: stdout is for ours.
            done = subprocess.run(
                command, stdout=sys.stderr.fileno(), timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise UsageError(
                f"the script did not reach {steps} training steps within {timeout_s:.0f} s: "
                "ask for fewer (--steps)"
            ) from error
        if not os.path.exists(output):
            raise UsageError(f"the script ended its process by itself (status {done.returncode})")
        with open(output, encoding="utf-8") as file:
            seen = Observation.from_json(json.load(file))
    if seen.error:
        raise UsageError(f"the script failed:\n{seen.error}")
    if seen.training is None:
        raise UsageError(
            "no training loop over a DataLoader was seen: nothing called backward() between batches"
        )
    return seen
