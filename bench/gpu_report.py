"""The parts of a run of bench/gpu.sh as one JSON: results, failures, and what never ended.

    python -m bench.gpu_report PARTS FILE

PARTS holds for each part NAME.status (its exit status and its seconds), NAME.log (what it printed)
and what it made: NAME.xml of tests, NAME.json of a suite. FILE is made of what is there, so it can
be made again after each part. Exits with 0 where every part ended well and no test was skipped
but for want of a second device.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import xml.etree.ElementTree as tree
from pathlib import Path
from typing import Any

import torch

from bench import machine

ONE_DEVICE = "needs two CUDA devices"
"""Why a test of several devices is skipped on a machine with one."""

_SUITES = {"gpu-transfer", "gpu-decode"}
_TIMED_OUT = {124, 137}
_TAIL = 3000  # characters of the log of a part that failed


def report(parts: Path) -> dict[str, Any]:
    """The contents of the folder ``parts``, with the device and the versions."""
    return {
        "device": _device(),
        "cuda": torch.version.cuda,
        "driver": _driver(),
        "libraries": _libraries(),
        "machine": machine.describe(),
        "versions": machine.versions(),
        "parts": {path.stem: _part(path) for path in sorted(parts.glob("*.status"))},
        "tests": _tests(sorted(parts.glob("*.xml"))),
        "rows": [row for path in sorted(parts.glob("*.json")) for row in _rows(path)],
    }


def good(content: dict[str, Any]) -> bool:
    """Whether all parts are there, succeeded and skipped nothing."""
    tests, rows = content["tests"], content["rows"]
    return (
        all(part["ended"] == "well" for part in content["parts"].values())
        and tests["passed"] > 0
        and not tests["failed"]
        and set(tests["skipped"]) <= {ONE_DEVICE}
        and {row["suite"] for row in rows} == _SUITES
    )


def _part(path: Path) -> dict[str, Any]:
    code, seconds = map(int, path.read_text().split())
    ended = "well" if code == 0 else "at its time limit" if code in _TIMED_OUT else f"with {code}"
    part: dict[str, Any] = {"ended": ended, "seconds": seconds}
    log = path.with_suffix(".log")
    if code and log.exists():
        part["log"] = log.read_text(errors="replace")[-_TAIL:]
    return part


def _tests(paths: list[Path]) -> dict[str, Any]:
    """Figures of JUnit files: a part whose process died has none, or half of one."""
    passed, failed, skipped = 0, dict[str, str](), dict[str, int]()
    for path in paths:
        try:
            cases = list(tree.parse(path).getroot().iter("testcase"))
        except tree.ParseError as error:
            failed[path.stem] = f"its results cannot be read: {error}"
            continue
        for case in cases:
            name = f"{case.get('classname')}::{case.get('name')}"
            bad = [found for kind in ("failure", "error") for found in case.findall(kind)]
            left = case.find("skipped")
            if bad:
                failed[name] = str(bad[0].get("message"))[:500]
            elif left is not None:
                reason = str(left.get("message"))
                skipped[reason] = skipped.get(reason, 0) + 1
            else:
                passed += 1
    return {"passed": passed, "failed": failed, "skipped": skipped}


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = json.loads(path.read_text())
    except ValueError:
        return []  # the part was killed while it wrote; its status says so
    return rows


def _device() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "none"


def _driver() -> str:
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return "not known: there is no nvidia-smi that answers"
    return done.stdout.strip()


def _libraries() -> dict[str, str]:
    libraries = {}
    for found in importlib.metadata.distributions():
        name = found.metadata["Name"] or ""
        if name.startswith(("nvidia-dali", "nvidia-nvimgcodec", "nvidia-nvjpeg")):
            libraries[name] = found.version
    return libraries


def main(arguments: list[str]) -> int:
    """As at the top of this file."""
    parts, out = map(Path, arguments)
    content = report(parts)
    out.write_text(json.dumps(content, indent=1) + "\n")
    print(out, json.dumps({"parts": content["parts"], "tests": content["tests"]}, indent=1))
    return 0 if good(content) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
