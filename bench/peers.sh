#!/bin/sh
# The benchmark against every loader that installs here.
#
#   sh bench/peers.sh [OPTION...]             all suites with the loaders that count, in 40 minutes
#                                             on two CPUs (options: python -m bench all --help)
#   sh bench/peers.sh SUITE... [OPTION...]    these suites with every loader (python -m bench run --help)
#   sh bench/peers.sh --publish [OPTION...]   all suites; rows, tables and charts into the repository
#
# Makes .venv-peers, an environment of its own (about 9 GB), prints one table per suite, and writes
# the rows to bench/results/local/SUITE.json. PEERS=FOLDER takes an environment that is there already
# and installs nothing: what is missing from it is named in the tables.
set -eu
cd "$(dirname "$0")/.."
VENV=${PEERS:-$PWD/.venv-peers}
PY=$VENV/bin/python
RESULTS=bench/results/local

note() { echo "peers: $*" >&2; }

# What FFCV is compiled against and what SPDL decodes with.
system_packages() {
    for name in pkg-config libopencv-dev libturbojpeg0-dev ffmpeg; do
        dpkg -s "$name" >/dev/null 2>&1 ||
            note "FFCV or SPDL will be absent from the tables without $name: apt-get install $name"
    done
}

set_up() {
    if [ -n "${PEERS:-}" ]; then
        if ! PYTHONPATH=. "$PY" - <<'CHECK'
import os
import click, rich, fastload.converters
here = os.path.realpath(fastload.converters.__file__).startswith(os.path.realpath(".") + os.sep)
raise SystemExit(not here)
CHECK
        then
            note "PEERS=$PEERS: expected an environment with click, rich and the fastload of this"
            note "folder; type: $PY -m pip install -e . click rich"
            exit 1
        fi
        return 0
    fi
    if [ -f "$VENV/.complete" ] && [ "$VENV/.complete" -nt bench/requirements-peers.txt ]; then
        if [ -n "$(find fastload/_native -newer "$VENV/.complete" -name '*.[ch]*')" ]; then
            FASTLOAD_REQUIRE_NATIVE=1 "$PY" -m pip install -q -e . && touch "$VENV/.complete"
        fi
        return 0
    fi
    system_packages
    [ -x "$PY" ] || "${PYTHON:-python3}" -m venv "$VENV"
    "$PY" -m pip install -q --upgrade pip
    # shellcheck disable=SC2086 # a list of requirements
    "$PY" -m pip install -q ${TORCH:-torch torchvision}
    FASTLOAD_REQUIRE_NATIVE=1 "$PY" -m pip install -q -e .
    grep -v '^#' bench/requirements-peers.txt | while read -r line; do
        note "installing $line"
        # shellcheck disable=SC2086 # several requirements on one line
        "$PY" -m pip install -q $line || note "could not install $line: it will be named in the tables"
    done
    touch "$VENV/.complete"
}

set_up
if [ "${1:-}" = --publish ]; then
    shift
    RESULTS=bench/results
    "$PY" -m bench all --out "$RESULTS" "$@"
    "$PY" -m bench publish "$RESULTS"/*.json
    # Charts of the suites that a document shows.
    charts=
    for file in "$RESULTS"/*.json; do
        ! grep -q "charts/$(basename "$file" .json).svg" docs/benchmarks.md || charts="$charts $file"
    done
    # shellcheck disable=SC2086 # a list of files
    [ -z "$charts" ] || "$PY" -m bench plot $charts --out docs/charts
    exit 0
fi
case ${1:-} in
'' | -*) exec "$PY" -m bench all --out "$RESULTS" "$@" ;;
esac
suites=
while [ $# -gt 0 ]; do
    case $1 in -*) break ;; *) suites="$suites $1" && shift ;; esac
done
mkdir -p "$RESULTS"
for suite in $suites; do
    "$PY" -m bench run "$suite" --json "$RESULTS/$suite.json" "$@"
done
