#!/bin/sh
# What a quarter of an hour on a GPU can show, into one JSON with device and versions: is it right,
# is it fast enough, where does the time go, and DALI.
#
#   sh bench/gpu.sh [--wheels FOLDER] [--out FILE] [--stage 1|2|3] [--part PART[,PART...]]
#   PYTHON=python3.12 sh bench/gpu.sh --collect FOLDER
#   sh bench/gpu.sh --join FOLDER
#   sh bench/gpu.sh --report PARTS [--out FILE]
#
# CONTRIBUTING.md says what the options and variables mean (On a machine with a GPU). What fails or
# never ends hides no other's results: FILE says how each part ended, and holds the end of its log.
set -eu
HERE=$PWD
START=$(date +%s)
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
STAGES="1 2 3" PARTS='' LAB="link smoke warm fed_compiled overlap threads to_device fed_eager fed_small
    fed_files dali dali_boxes dali_reader fed_dali"
WHEELS='' COLLECT='' JOIN='' REPORT='' OUT=$PWD/bench/results/local/gpu.json
from_here() { case $1 in /*) echo "$1" ;; *) echo "$HERE/$1" ;; esac; }
while [ $# -gt 0 ]; do
    case $1 in
    --wheels) WHEELS=$(from_here "$2") && shift 2 ;;
    --collect) COLLECT=$(from_here "$2") && shift 2 ;;
    --join) JOIN=$(from_here "$2") && shift 2 ;;
    --report) REPORT=$(from_here "$2") && shift 2 ;;
    --out) OUT=$(from_here "$2") && shift 2 ;;
    --stage) STAGES=$2 && shift 2 ;;
    --part) PARTS=$(echo "$2" | tr , ' ') STAGES='' && shift 2 ;;
    *) echo "gpu: expected one of the options above, got $1 (see the head of $0)" >&2 && exit 2 ;;
    esac
done
for part in $PARTS; do # before anything is installed
    case " tests $(echo $LAB) " in *" $part "*) continue ;; esac
    [ "${part#tests-}" != "$part" ] && [ -e "tests/gpu/test_${part#tests-}.py" ] && continue
    echo "gpu: no part is called $part (see the head of $0)" >&2
    exit 2
done
case ${CUDA:-13} in
12) LIBRARIES="nvidia-dali-cuda120" EXTRAS=test,dali ;;
*) LIBRARIES="nvidia-dali-cuda130" EXTRAS=test,dali-cuda13 ;;
esac
# What fastload, tests/gpu and the suites import beyond what stands at --wheels.
NEEDED="lmdb google-crc32c h5py click rich tqdm pip setuptools wheel pytest>=9 pytest-timeout
    pytest-xdist hypothesis psutil"

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
        case ${wheel##*/} in *fastload-*) continue ;; esac # fastload is installed as it stands
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
FOUND=$OUT.parts
mkdir -p "$FOUND"
"$PY" -m bench.gpu_report --here "$FOUND"
echo "gpu: begins $(($(date +%s) - START)) s after the command"
# What a log holds when its process is killed is what was printed until then.
export PYTHONUNBUFFERED=1
# run NAME SECONDS COMMAND...: within the time limit; what it prints and how it ends are kept. Ended
# by SIGINT, so that Python cleans up: tests write their results.
run() {
    name=$1 limit=${LIMIT:-$2}
    shift 2
    echo "gpu: $name"
    rm -f "$FOUND/$name".*
    begin=$(date +%s)
    code=0
    if [ -n "${BUDGET:-}" ]; then
        left=$((START + BUDGET - ${KILL_AFTER:-10} - begin))
        [ "$left" -ge "$limit" ] || limit=$left
    fi
    if [ "$limit" -le 0 ]; then
        echo "not begun: BUDGET=$BUDGET is spent" >"$FOUND/$name.log"
        code=124
    else
        # A shell has its background jobs ignore SIGINT.
        LAB_UNTIL=$((begin + limit - 3)) timeout -s INT -k "${KILL_AFTER:-10}" "$limit" \
            env --default-signal=INT "$@" >"$FOUND/$name.log" 2>&1 || code=$?
    fi
    echo "$code $(($(date +%s) - begin))" >"$FOUND/$name.status"
    tail -n 25 "$FOUND/$name.log" | cut -c 1-700
    report >"$FOUND/report" 2>&1 || true # after each: whoever stops this keeps what is there
}
# tests NAME...: files at a time, each in a process of its own: they mostly wait. Behind a test that a
# process dies of, xdist runs the rest of its file. Other packages' warnings, and the plugins of pytest
# that they bring, are not what this is about. Threads of torch that wait would spin in the other
# processes' way. A test may take TEST_LIMIT seconds; where not even Python gets through, the process
# ends.
tests() {
    for file; do
        run "tests-$file" 130 env FASTLOAD_REQUIRE_CUDA=1 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 \
            PYTEST_PLUGINS=pytest_timeout,xdist.plugin OMP_WAIT_POLICY=passive OMP_NUM_THREADS=2 \
            "$PY" -m pytest "tests/gpu/test_$file.py" -n 1 -v --long -W default \
            --timeout "${TEST_LIMIT:-45}" -o faulthandler_timeout=$((${TEST_LIMIT:-45} + 20)) \
            --junitxml "$FOUND/tests-$file.xml" &
    done
    wait
}
lab() { run "$1" "$2" "$PY" -m bench.gpu_lab "$FOUND" "$1"; }
report() { "$PY" -m bench.gpu_report "$FOUND" "$OUT"; }
for part in $PARTS; do
    case $part in
    tests) tests transfer cuda stress callers stand_in decode ;;
    tests-*) tests "${part#tests-}" ;;
    *) lab "$part" 130 ;;
    esac
done
for stage in $STAGES; do
    case $stage in
    1) # Is it right, and is it fast enough? Nothing here needs DALI.
        lab link 40
        lab smoke 60
        if [ "$code" != 0 ]; then # wrong or broken: the tests say where; no speeds
            tests transfer cuda stress callers stand_in
            break
        fi
        # Beside the tests the network is compiled, by CPUs that would idle.
        lab warm 105 >/dev/null &
        tests transfer cuda stress callers stand_in
        lab fed_compiled 130 # the goal of 0.98
        lab overlap 30
        ;;
    2) # The decoder by the number of its threads. And the step for which the host has least time.
        lab threads 45
        lab to_device 25
        lab fed_eager 60
        lab fed_small 45
        lab fed_files 90
        ;;
    3) # DALI: right first, then how fast.
        tests decode
        lab dali 45
        nvjpeg=$(ls "$VENV"/lib/python3*/site-packages/nvidia/*/lib/libnvjpeg.so.1? | head -n 1)
        run dali_boxes 45 env LD_PRELOAD="$nvjpeg" "$PY" -m bench.gpu_lab "$FOUND" dali_boxes
        lab dali_reader 45
        lab fed_dali 45
        ;;
    esac
done
report
