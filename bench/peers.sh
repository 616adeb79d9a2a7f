#!/bin/sh
# The benchmark against every loader that installs here: sh bench/peers.sh [SUITE...] [OPTION...]
# Makes .venv-peers, an environment of its own (about 8 GB), prints one table per suite, and writes
# the rows to bench/results/local/SUITE.json. Suites: all of them by default.
set -eu
cd "$(dirname "$0")/.."
VENV=$PWD/.venv-peers
PY=$VENV/bin/python
RESULTS=bench/results/local

note() { echo "peers: $*" >&2; }

# What FFCV is compiled against and what SPDL decodes with. Nothing else of the run needs root.
system_packages() {
    missing=
    for name in pkg-config libopencv-dev libturbojpeg0-dev ffmpeg; do
        dpkg -s "$name" >/dev/null 2>&1 || missing="$missing $name"
    done
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" = 0 ]; then sudo=; elif command -v sudo >/dev/null; then sudo=sudo; else
        note "FFCV and SPDL want:$missing; type: apt-get install$missing"
        return 0
    fi
    $sudo apt-get update -qq || true
    # shellcheck disable=SC2086 # a list of names
    $sudo apt-get install -y -qq --no-install-recommends $missing >&2 ||
        note "could not install$missing; FFCV or SPDL may be absent from the tables"
}

set_up() {
    if [ -f "$VENV/.complete" ] && [ "$VENV/.complete" -nt bench/requirements-peers.txt ]; then
        return 0
    fi
    system_packages
    [ -x "$PY" ] || "${PYTHON:-python3}" -m venv "$VENV"
    "$PY" -m pip install -q --upgrade pip
    # shellcheck disable=SC2086 # a list of requirements
    "$PY" -m pip install -q ${TORCH:-torch torchvision}
    "$PY" -m pip install -q -e .
    grep -v '^#' bench/requirements-peers.txt | while read -r line; do
        note "installing $line"
        # shellcheck disable=SC2086 # several requirements on one line
        "$PY" -m pip install -q $line || note "could not install $line: it will be named in the tables"
    done
    touch "$VENV/.complete"
}

set_up
mkdir -p "$RESULTS"
suites=
while [ $# -gt 0 ]; do
    case $1 in -*) break ;; *) suites="$suites $1" && shift ;; esac
done
[ -n "$suites" ] ||
    suites="imagenet-train imagenet-eval small-images raw-train pack startup memory scaling"
for suite in $suites; do
    "$PY" -m bench run "$suite" --json "$RESULTS/$suite.json" "$@"
done
