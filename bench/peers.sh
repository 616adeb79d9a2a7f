#!/bin/sh
# The benchmark against every loader that installs here.
#
#   sh bench/peers.sh [OPTION...]             all suites with the loaders that count, in 40 minutes
#                                             on two CPUs (options: python -m bench all --help)
#   sh bench/peers.sh --publish [OPTION...]   the same; rows, tables and charts into the repository
#
# Makes .venv-peers, an environment of its own (about 9 GB), prints one table per suite, and writes
# the rows to bench/results/local/SUITE.json. PEERS=FOLDER takes an environment that is there already
# (with the fastload of this folder, click and rich) and installs nothing: what is missing from it is
# named in the tables.
set -eu
cd "$(dirname "$0")/.."
VENV=${PEERS:-$PWD/.venv-peers}
PY=$VENV/bin/python

note() { echo "peers: $*" >&2; }

set_up() {
    # What FFCV is compiled against and what SPDL decodes with.
    for name in pkg-config libopencv-dev libturbojpeg0-dev ffmpeg; do
        dpkg -s "$name" >/dev/null 2>&1 ||
            note "FFCV or SPDL will be absent from the tables without $name: apt-get install $name"
    done
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

# Again where the requirements or the core changed.
if [ -z "${PEERS:-}" ] && { [ ! -f "$VENV/.complete" ] ||
    [ -n "$(find bench/requirements-peers.txt fastload/_native -newer "$VENV/.complete" \
        \( -name '*.txt' -o -name '*.[ch]*' \))" ]; }; then
    set_up
fi
if [ "${1:-}" != --publish ]; then
    exec "$PY" -m bench all "$@"
fi
shift
"$PY" -m bench all --out bench/results "$@"
"$PY" -m bench publish bench/results/*.json
# Charts of the suites that a document shows.
charts=
for file in bench/results/*.json; do
    ! grep -q "charts/$(basename "$file" .json).svg" docs/benchmarks.md || charts="$charts $file"
done
# shellcheck disable=SC2086 # a list of files
[ -z "$charts" ] || "$PY" -m bench plot $charts --out docs/charts
