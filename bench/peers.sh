#!/bin/sh
# The benchmark against every loader that installs here.
#
#   sh bench/peers.sh [OPTION...]             all suites with the loaders that count, in 45 minutes
#                                             on two CPUs (options: python -m bench run --help)
#   sh bench/peers.sh --publish [OPTION...]   the same; rows, tables and charts into the repository
#
# Makes .venv-peers, an environment of its own (about 9 GB), prints one table per suite, and writes
# the rows to bench/results/local/SUITE.json. PEERS=FOLDER takes an environment that is there already
# (with the fastload of this folder, click and rich) and installs nothing: what is missing from it is
# named in the tables. PHOTOS=FOLDER and SMALL=FOLDER are images to measure on, of any size and of
# 32 x 32 pixels; others are made.
set -eu
cd "$(dirname "$0")/.."
VENV=${PEERS:-$PWD/.venv-peers}
PY=$VENV/bin/python

note() { echo "peers: $*" >&2; }

set_up() {
    # What FFCV is compiled against.
    for name in pkg-config libopencv-dev libturbojpeg0-dev; do
        dpkg -s "$name" >/dev/null 2>&1 ||
            note "FFCV will be absent from the tables without $name: apt-get install $name"
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

OUT=bench/results/local PUBLISH=
if [ "${1:-}" = --publish ]; then
    OUT=bench/results PUBLISH=1
    shift
fi
mkdir -p "$OUT"

# Loaders that were fastest somewhere, or represent a kind. The others (variations of torch's
# DataLoader, and of shards read in sequence) take part in one suite; python -m bench run measures
# all of them in each. Of the settings that each tries, more than two gain less than rounds differ.
LOADERS=fastload-folder,fastload-lmdb,fastload-lmdb-dct,fastload-lmdb-raw,torch-pil
LOADERS=$LOADERS,threads-simplejpeg,ffcv,ffcv-channels-last,dali,spdl,hf-datasets,grain,tf-data

suite() {
    name=$1 data=${PHOTOS:-}
    shift
    [ "$name" != small-images ] || data=${SMALL:-}
    "$PY" -m bench run "$name" ${data:+--data "$data"} --seconds 1 --tries 2 --loaders "$LOADERS" \
        --json "$OUT/$name.json" "$@"
}
suite imagenet-train --variant float32,uint8 --rounds 4 \
    --loaders "$LOADERS,torch-v2,torch-lmdb,litdata" "$@"
suite imagenet-eval --rounds 3 "$@"
suite small-images --variant jpeg,raw --rounds 5 --seconds 0.7 --loaders "$LOADERS,torch-array" "$@"
suite raw-train --variant float32,channels_last --rounds 3 "$@"
suite pack --rounds 1 --loaders "$LOADERS,torch-lmdb,webdataset,streaming,litdata" "$@"
suite startup --rounds 2 "$@"
suite memory --rounds 1 --seconds 2 "$@"
suite cold --rounds 3 "$@"
[ -n "$PUBLISH" ] || exit 0
"$PY" -m bench publish bench/results/*.json
# Charts of the suites that a document shows.
charts=
for file in bench/results/*.json; do
    ! grep -q "charts/$(basename "$file" .json).svg" docs/benchmarks.md || charts="$charts $file"
done
# shellcheck disable=SC2086 # a list of files
[ -z "$charts" ] || "$PY" -m bench plot $charts --out docs/charts
