#!/bin/sh
# tests/gpu and the benchmark suites that need a CUDA device, into one JSON with device and versions.
#
#   sh bench/gpu.sh [--wheels FOLDER] [--out FILE] [--photos DATA] [--small DATA] [--part PART[,PART...]]
#   PYTHON=python3.12 sh bench/gpu.sh --collect FOLDER
#   sh bench/gpu.sh --join FOLDER
#   sh bench/gpu.sh --report PARTS [--out FILE]
#
# Uses .venv-gpu, which it makes. GPU_VENV=FOLDER takes an environment that is there already and
# installs nothing. DALI is that for CUDA 13, as torch's own wheels are (torch.version.cuda);
# CUDA=12 takes that for CUDA 12.
#
# --wheels  installs what is in that folder and not installed yet, offline, beside what $PYTHON has:
#           torch and torchvision, with the NumPy and Pillow that they need. It needs neither pip nor
#           a compiler there. DALI's wheels may come later, with another command.
# --collect fills such a folder on a machine with a network, a compiler, xz and the same version of
#           Python: the core with libjpeg in it, the libraries, what the tests and suites need; and
#           puts all of it into FOLDER/pieces as files of at most PIECE (26m): first.tar.* with all
#           that most parts need, dali.tar.* with DALI. HAS="NAME ..." leaves out packages that the
#           other machine's Python has.
# --join    makes FOLDER's wheels of those in FOLDER/pieces that are whole.
# --part    runs these alone: tests, tests-NAME (of tests/gpu/test_NAME.py), transfer-jpeg,
#           transfer-dct, transfer-raw, photos, photos-uint8, small. tests-decode and the last three
#           need DALI. The others' results stay in FILE.parts, and FILE is made of what is there.
# --report  makes FILE of a folder of parts, without a GPU: put together what several runs left.
# ROUNDS (3) and SECONDS_EACH (2) are those of a measurement. TEST_LIMIT (60) is the most seconds that
# a test may take, LIMIT (500) a suite or a file of tests, and BUDGET the whole command, installing
# included (none by default). What fails or never ends hides no other's results: FILE says how each
# part ended, and holds the end of its log.
set -eu
HERE=$PWD
START=$(date +%s)
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
PARTS="tests transfer-jpeg transfer-dct transfer-raw photos photos-uint8 small"
WHEELS='' COLLECT='' JOIN='' REPORT='' PHOTOS='' SMALL='' OUT=$PWD/bench/results/local/gpu.json
from_here() { case $1 in /*) echo "$1" ;; *) echo "$HERE/$1" ;; esac; }
while [ $# -gt 0 ]; do
    case $1 in
    --wheels) WHEELS=$(from_here "$2") && shift 2 ;;
    --collect) COLLECT=$(from_here "$2") && shift 2 ;;
    --join) JOIN=$(from_here "$2") && shift 2 ;;
    --report) REPORT=$(from_here "$2") && shift 2 ;;
    --out) OUT=$(from_here "$2") && shift 2 ;;
    --photos) PHOTOS=$(from_here "$2") && shift 2 ;;
    --small) SMALL=$(from_here "$2") && shift 2 ;;
    --part) PARTS=$(echo "$2" | tr , ' ') && shift 2 ;;
    *) echo "gpu: expected one of the options above, got $1 (see the head of $0)" >&2 && exit 2 ;;
    esac
done
for part in $PARTS; do # before anything is installed
    case $part in
    tests | transfer-jpeg | transfer-dct | transfer-raw | photos | photos-uint8 | small) continue ;;
    tests-*) [ ! -e "tests/gpu/test_${part#tests-}.py" ] || continue ;;
    esac
    echo "gpu: no part is called $part (see the head of $0)" >&2
    exit 2
done
case ${CUDA:-13} in
12) LIBRARIES="nvidia-dali-cuda120" EXTRAS=test,dali ;;
*) LIBRARIES="nvidia-dali-cuda130 nvidia-nvjpeg>=13.2" EXTRAS=test,dali-cuda13 ;;
esac
# What fastload, tests/gpu and the suites import beyond what stands at --wheels.
NEEDED="lmdb google-crc32c h5py click rich tqdm pip setuptools wheel pytest>=9 pytest-timeout
    hypothesis psutil"

# tar may lack xz where Python has it.
UNPACKED='import sys, tarfile
with tarfile.open(fileobj=sys.stdin.buffer, mode="r|*") as tar:
    tar.extractall(sys.argv[1], filter="data")'

# What the core may link to: what every Linux with glibc has.
ANYWHERE='linux-vdso|ld-linux|/lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so'

collect() {
    rm -rf "$COLLECT"/*.whl "$COLLECT/pieces"
    made=$(mktemp -d)
    trap 'rm -rf "$made"' EXIT
    mkdir -p "$COLLECT/pieces" "$made/first" "$made/dali"
    "$PYTHON" -m venv "$made/venv"
    pip="$made/venv/bin/python -m pip"
    $pip install -q setuptools wheel pybind11
    FASTLOAD_REQUIRE_NATIVE=1 $pip wheel -q --no-deps --no-build-isolation -w "$made/first" .
    "$made/venv/bin/python" -m zipfile -e "$made/first"/*.whl "$made/fastload"
    linked=$(ldd "$made"/fastload/fastload/_native/_core*.so | grep -vE "$ANYWHERE" || true)
    if [ -n "$linked" ]; then
        echo "gpu: expected libraries that can be linked into the core (libjpeg.a, libdeflate.a," \
            "libwebp.a), found only these, which the other machine may lack: install their" \
            "development packages" "$linked" >&2
        exit 1
    fi
    $pip wheel -q --no-deps -w "$made/first" prefetch_generator
    # shellcheck disable=SC2086 # both in one command: one version of each
    $pip download -q --only-binary=:all: -d "$made/first" $NEEDED $LIBRARIES
    mv "$made"/first/nvidia_*.whl "$made/dali"
    for name in numpy ${HAS:-}; do # what is there stays as it is there
        rm -f "$made"/*/"$(echo "$name" | tr '.-' '__')"-*.whl
    done
    slim "$made"/dali/*.whl
    for tar in first dali; do
        (cd "$made/$tar" && tar -cf - ./*.whl) | xz -T0 |
            split -b "${PIECE:-26m}" - "$COLLECT/pieces/$tar.tar."
    done
    (cd "$COLLECT/pieces" && sha256sum -- *.tar.* >SHA256)
    ls -l "$COLLECT/pieces"
}

# Leaves headers and other Pythons' modules out of wheels, and does not compress them: xz makes less
# of them than zip does.
slim() {
    "$PYTHON" - "$@" <<'SLIM'
import os, sys, zipfile

ours = f".cpython-{sys.version_info[0]}{sys.version_info[1]}-"
for path in sys.argv[1:]:
    os.rename(path, path + ".all")
    with zipfile.ZipFile(path + ".all") as whole, zipfile.ZipFile(path, "w") as slim:
        for info in whole.infolist():
            name = info.filename
            if "/include/" not in name and (".cpython-" not in name or ours in name):
                slim.writestr(info, whole.read(info), zipfile.ZIP_STORED)
    os.remove(path + ".all")
SLIM
}

join() {
    (cd "$JOIN/pieces" && sha256sum -c --quiet --ignore-missing SHA256 >&2)
    for tar in first dali; do
        names=$(sed -n "s/^[0-9a-f]*  \($tar\.tar\.[a-z]*\)\$/\1/p" "$JOIN/pieces/SHA256")
        for name in $names; do
            [ -e "$JOIN/pieces/$name" ] || { echo "gpu: $name is not here yet" && continue 2; }
        done
        # shellcheck disable=SC2086
        (cd "$JOIN/pieces" && cat $names) | "$PYTHON" -c "$UNPACKED" "$JOIN"
    done
    ls "$JOIN"
}

# Offline: the wheels, and beside them what $PYTHON sees. No compiler is asked for: the core comes
# out of fastload's wheel into the tree, which is installed as it stands.
make_environment() {
    "$PYTHON" -m venv --without-pip "$VENV"
    "$PY" - "$("$PYTHON" -c 'import sys; print("\n".join(p for p in sys.path if p.endswith("-packages")))')" <<'SEEN'
import sys, sysconfig
from pathlib import Path

Path(sysconfig.get_path("purelib"), "seen.pth").write_text(sys.argv[1] + "\n")
SEEN
    "$PY" - "$WHEELS" <<'CORE'
import sys, zipfile
from pathlib import Path

(wheel,) = Path(sys.argv[1]).glob("*fastload-*.whl")
with zipfile.ZipFile(wheel) as files:
    for name in files.namelist():
        if name.startswith("fastload/_native/_core") and name.endswith(".so"):
            files.extract(name)
CORE
}
install_wheels() {
    # pip runs out of its wheel: neither environment need have one.
    pip="$PY $(echo "$WHEELS"/pip-*.whl)/pip install -q --no-index --no-deps --no-compile"
    set --
    for wheel in "$WHEELS"/*.whl; do
        case $wheel in *fastload-*) continue ;; esac
        grep -qxF "$(basename "$wheel")" "$VENV/wheels" || set -- "$@" "$wheel"
    done
    [ $# = 0 ] || $pip "$@"
    for wheel; do basename "$wheel"; done >>"$VENV/wheels"
}

# As commands of their own: in a list with && or ||, set -e would not end them.
if [ -n "$COLLECT" ]; then
    collect
    exit
fi
if [ -n "$JOIN" ]; then
    join
    exit
fi
[ -z "$REPORT" ] || exec "$PYTHON" -m bench.gpu_report "$REPORT" "$OUT"
VENV=${GPU_VENV:-$PWD/.venv-gpu}
PY=$VENV/bin/python
if [ -z "${GPU_VENV:-}" ] && [ -n "$WHEELS" ]; then
    if [ ! -e "$VENV/ready" ]; then
        make_environment
        : >"$VENV/wheels"
    fi
    install_wheels
    [ -e "$VENV/ready" ] || FASTLOAD_NO_NATIVE=1 $pip --no-build-isolation -e .
    touch "$VENV/ready"
elif [ -z "${GPU_VENV:-}" ] && [ ! -e "$VENV/ready" ]; then
    "$PYTHON" -m venv "$VENV"
    FASTLOAD_REQUIRE_NATIVE=1 "$PY" -m pip install -q -e ".[$EXTRAS]"
    touch "$VENV/ready"
fi
if [ -n "${LD_LIBRARY_PATH:-}" ]; then # else an older toolkit's nvJPEG would be found first
    SITE=$("$PY" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    export LD_LIBRARY_PATH="$SITE/nvidia/cu13/lib:$SITE/nvidia/nvjpeg/lib:$LD_LIBRARY_PATH"
fi
FOUND=$OUT.parts
mkdir -p "$FOUND"
"$PY" -m bench.gpu_report --here "$FOUND"
echo "gpu: begins $(($(date +%s) - START)) s after the command"
# What a log holds when its process is killed is what was printed until then.
export PYTHONUNBUFFERED=1
# A loader that does not answer within so many seconds is left out of its suite.
export BENCH_ANSWER_S="${BENCH_ANSWER_S:-150}"
# run NAME COMMAND...: within the time limit; what it prints and how it ends are kept. Ended by
# SIGINT, so that Python cleans up: tests write their results, suites end their processes.
run() {
    name=$1
    shift
    echo "gpu: $name"
    begin=$(date +%s)
    code=0
    limit=${LIMIT:-500}
    if [ -n "${BUDGET:-}" ]; then
        left=$((START + BUDGET - ${KILL_AFTER:-30} - begin))
        [ "$left" -ge "$limit" ] || limit=$left
    fi
    if [ "$limit" -le 0 ]; then
        echo "not begun: BUDGET=$BUDGET is spent" >"$FOUND/$name.log"
        code=124
    else
        timeout -s INT -k "${KILL_AFTER:-30}" "$limit" "$@" >"$FOUND/$name.log" 2>&1 || code=$?
    fi
    echo "$code $(($(date +%s) - begin))" >"$FOUND/$name.status"
    tail -n 25 "$FOUND/$name.log"
}
# test_file PART FILE [OPTION...]: in a process of its own: one that dies takes only its own results
# along. Other packages' warnings, and the plugins of pytest that they bring, are not what this is
# about. A test may take TEST_LIMIT seconds; where not even Python gets through, the process ends.
test_file() {
    part_of=$1 path=tests/gpu/test_$2.py
    shift 2
    run "$part_of" env FASTLOAD_REQUIRE_CUDA=1 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 \
        PYTEST_PLUGINS=pytest_timeout "$PY" -m pytest "$path" -v --long -W default \
        --timeout "${TEST_LIMIT:-60}" -o faulthandler_timeout=$((${TEST_LIMIT:-60} + 20)) \
        --junitxml "$FOUND/$part_of.xml" "$@"
}
# The tests of FILE behind the one that its process died of.
test_rest() {
    "$PY" -m bench.gpu_report --begun "$FOUND/tests-$1.log" >"$FOUND/tests-$1.begun"
    [ -s "$FOUND/tests-$1.begun" ] || return 0
    file=$1
    set --
    while read -r name; do set -- "$@" --deselect "$name"; done <"$FOUND/tests-$file.begun"
    test_file "tests-$file-rest" "$file" "$@"
}
measure() { # measure NAME SUITE VARIANT [OPTION...]
    name=$1 suite=$2 variant=$3
    shift 3
    run "$name" "$PY" -m bench run "$suite" --variant "$variant" --rounds "${ROUNDS:-3}" \
        --seconds "${SECONDS_EACH:-2}" --json "$FOUND/$name.json" "$@"
}
report() { "$PY" -m bench.gpu_report "$FOUND" "$OUT"; }
for part in $PARTS; do
    rm -f "$FOUND/$part".*
    case $part in
    tests | tests-*)
        [ "$part" != tests ] || rm -f "$FOUND"/tests-*
        # First what all else stands on: a machine that is slow or hangs may leave no time for more.
        for file in transfer cuda $(ls tests/gpu | sed -n 's/^test_\(.*\)\.py$/\1/p' | grep -vx -e transfer -e cuda); do
            [ "$part" = tests ] || [ "$part" = "tests-$file" ] || continue
            rm -f "$FOUND/tests-$file-rest".*
            test_file "tests-$file" "$file"
            [ "$code" = 0 ] || [ -e "$FOUND/tests-$file.xml" ] || test_rest "$file"
        done
        ;;
    transfer-*)
        name=${part#transfer-}
        measure "$part" gpu-transfer "$name-256-eager,$name-32-eager,$name-256-compiled,$name-32-compiled" \
            ${PHOTOS:+--data "$PHOTOS"}
        ;;
    photos | photos-uint8) measure "$part" gpu-decode "$part" ${PHOTOS:+--data "$PHOTOS"} ;;
    small) measure "$part" gpu-decode "$part" ${SMALL:+--data "$SMALL"} ;;
    esac
    report >"$FOUND/report.log" 2>&1 || true # after each: whoever stops this keeps what is there
done
report
