"""The parts of a run of bench/gpu.sh as one JSON: results, failures, and what never ended.

    python -m bench.gpu_report --here PARTS
    python -m bench.gpu_report PARTS FILE

The first notes in PARTS what machine this is, and fails where fastload's core or a CUDA device is
missing. The second needs no device: PARTS may come from another machine, or from several. PARTS has
for each part NAME.status (its exit status and its seconds), NAME.log (what it printed) and what it
made: NAME.xml of tests, NAME.jsonl of bench/gpu_lab.py. FILE is made of what is there, so it can be
made again after each part. Exits with 0 where every part ended well and no test was skipped but for
want of a second device.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import xml.etree.ElementTree as tree
from pathlib import Path
from typing import Any

ONE_DEVICE = "needs two CUDA devices"
"""Why a test of several devices is skipped on a machine with one."""

_TIMED_OUT = {124, 137}
_TAIL = 3000  # characters of the log of a part that failed
_MACHINE = "machine"  # the file of PARTS that says what machine it was


def here() -> dict[str, Any]:
    """What machine this is. Raises RuntimeError where the parts cannot run on it."""
    import torch

    from bench import machine
    from fastload import _native

    if _native.load() is None:
        raise RuntimeError(f"expected fastload's native core in {sys.prefix}, found none")
    if not torch.cuda.is_available():
        raise RuntimeError("expected a CUDA device, found none")
    torch.ones(8, device="cuda").sum().item()  # it works, too
    return {
        "device": torch.cuda.get_device_name(),
        "devices": torch.cuda.device_count(),
        "cuda": torch.version.cuda,
        "driver": smi("driver_version"),
        "libraries": _libraries(),
        "machine": machine.describe(),
        "versions": machine.versions(),
    }


def report(parts: Path) -> dict[str, Any]:
    """The contents of the folder ``parts``."""
    noted = parts / _MACHINE
    machine: dict[str, Any] = json.loads(noted.read_text()) if noted.exists() else {}
    statuses = sorted(parts.glob("*.status"))
    return {
        **machine,
        "parts": {path.stem: _part(path) for path in statuses},
        "tests": _tests([path for path in statuses if path.stem.startswith("tests-")]),
        "figures": {path.stem: _figures(path) for path in sorted(parts.glob("*.jsonl"))},
    }


def good(content: dict[str, Any]) -> bool:
    """Whether all that was run succeeded, and no test was skipped."""
    tests = content["tests"]
    return (
        all(part["ended"] == "well" for part in content["parts"].values())
        and not tests["failed"]
        and set(tests["skipped"]) <= {ONE_DEVICE}
    )


def _part(path: Path) -> dict[str, Any]:
    code, seconds = map(int, path.read_text().split())
    ended = "well" if code == 0 else "at its time limit" if code in _TIMED_OUT else f"with {code}"
    part: dict[str, Any] = {"ended": ended, "seconds": seconds}
    log = path.with_suffix(".log")
    if code and log.exists():
        part["log"] = log.read_text(errors="replace")[-_TAIL:]
    return part


def _tests(statuses: list[Path]) -> dict[str, Any]:
    """Figures of test files, of JUnit's results."""
    tests: dict[str, Any] = {"passed": 0, "failed": {}, "skipped": {}}
    for status in statuses:
        path = status.with_suffix(".xml")
        if not path.exists():  # its status says why
            continue
        try:
            cases = list(tree.parse(path).getroot().iter("testcase"))
        except tree.ParseError as error:
            tests["failed"][path.stem] = f"its results cannot be read: {error}"
            continue
        for case in cases:
            name = f"{case.get('classname')}::{case.get('name')}"
            bad = [problem for kind in ("failure", "error") for problem in case.findall(kind)]
            skip = case.find("skipped")
            if bad:
                tests["failed"][name] = str(bad[0].get("message"))[:500]
            elif skip is not None:
                reason = str(skip.get("message"))
                tests["skipped"][reason] = tests["skipped"].get(reason, 0) + 1
            else:
                tests["passed"] += 1
    return tests


def _figures(path: Path) -> list[dict[str, Any]]:
    """The lines of a part of bench/gpu_lab.py."""
    try:
        figures = [json.loads(line) for line in path.read_text().splitlines()]
    except ValueError:
        return []  # the part was killed while it wrote; its status says so
    return figures


def smi(query: str) -> str:
    """What nvidia-smi says of the GPU."""
    asked = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "not known: there is no nvidia-smi that answers"
    return done.stdout.strip()


def _libraries() -> dict[str, str]:
    libraries = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"] or ""
        if name.startswith(("nvidia-dali", "nvidia-nvimgcodec", "nvidia-nvjpeg", "triton")):
            libraries[name] = distribution.version
    return libraries


def main(arguments: list[str]) -> int:
    if arguments[0] == "--here":
        try:
            found = here()
        except RuntimeError as error:  # torch's errors of CUDA too
            print(f"gpu: {error}; nothing was run", file=sys.stderr)
            return 1
        (Path(arguments[1]) / _MACHINE).write_text(json.dumps(found, indent=1) + "\n")
        return 0
    parts, out = map(Path, arguments)
    content = report(parts)
    out.write_text(json.dumps(content, indent=1) + "\n")
    print(out, json.dumps({"parts": content["parts"], "tests": content["tests"]}, indent=1))
    return 0 if good(content) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
