#!/bin/sh
# tests/gpu and the benchmark suites that need a CUDA device, into one JSON with device and versions.
#
#   sh bench/gpu.sh [--wheels FOLDER] [--out FILE]
#
# Uses .venv-gpu, which it makes; with --wheels everything comes out of that folder, offline.
# GPU_VENV=FOLDER takes an environment that is there already and installs nothing.
# DALI is part of it, for CUDA 13, as torch's own wheels are (torch.version.cuda); DALI=dali takes the
# one for CUDA 12.
set -eu
HERE=$PWD
cd "$(dirname "$0")/.."
WHEELS= OUT=$PWD/bench/results/local/gpu.json
from_here() { case $1 in /*) echo "$1" ;; *) echo "$HERE/$1" ;; esac; }
while [ $# -gt 0 ]; do
    case $1 in
    --wheels) WHEELS=$(from_here "$2") && shift 2 ;;
    --out) OUT=$(from_here "$2") && shift 2 ;;
    *) echo "gpu: expected --wheels FOLDER or --out FILE, got $1" >&2 && exit 2 ;;
    esac
done
VENV=${GPU_VENV:-$PWD/.venv-gpu}
PY=$VENV/bin/python
EXTRAS=test,${DALI:-dali-cuda13}
if [ -z "${GPU_VENV:-}" ]; then
    [ -x "$PY" ] || "${PYTHON:-python3}" -m venv "$VENV"
    if [ -n "$WHEELS" ]; then
        "$PY" -m pip install -q --no-index --find-links "$WHEELS" setuptools wheel pybind11
        FASTLOAD_REQUIRE_NATIVE=1 "$PY" -m pip install -q --no-index --find-links "$WHEELS" \
            --no-build-isolation -e ".[$EXTRAS]"
    else
        FASTLOAD_REQUIRE_NATIVE=1 "$PY" -m pip install -q -e ".[$EXTRAS]"
    fi
fi
"$PY" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || {
    echo "gpu: expected a CUDA device, found none; nothing was run" >&2
    exit 1
}
mkdir -p "$(dirname "$OUT")"
PARTS=$(mktemp -d)
trap 'rm -rf "$PARTS"' EXIT
FASTLOAD_REQUIRE_CUDA=1 "$PY" -m pytest tests/gpu --junitxml "$PARTS/tests.xml" || true
for suite in gpu-transfer gpu-decode; do
    "$PY" -m bench run "$suite" --variant all --json "$PARTS/$suite.json" || true
done
"$PY" - "$PARTS" "$OUT" <<'JOIN'
import json, sys, xml.etree.ElementTree as tree
from pathlib import Path
import torch
from bench import machine

parts, out = map(Path, sys.argv[1:])
tests = {}
if (parts / "tests.xml").exists():
    found = tree.parse(parts / "tests.xml").getroot().find("testsuite").attrib
    tests = {name: int(found[name]) for name in ("tests", "failures", "errors", "skipped")}
rows = [row for path in sorted(parts.glob("gpu-*.json")) for row in json.loads(path.read_text())]
content = {
    "device": torch.cuda.get_device_name(),
    "cuda": torch.version.cuda,
    "machine": machine.describe(),
    "versions": machine.versions(),
    "tests": tests,
    "rows": rows,
}
out.write_text(json.dumps(content, indent=1) + "\n")
print(out, tests)
good = tests and not tests["failures"] + tests["errors"] + tests["skipped"]
measured = {row["suite"] for row in rows} == {"gpu-transfer", "gpu-decode"}
sys.exit(0 if good and measured else 1)
JOIN
