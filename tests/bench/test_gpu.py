"""What of the benchmarks for a GPU can be tested without one."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import json
import os
import random
import shutil
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import RandomSampler
from torchvision import transforms

import warm
from bench import gpu_lab, gpu_report
from fastload import FastLoader, PackedDataset
from fastload._version import DISTRIBUTION, __version__

ROOT = Path(__file__).resolve().parents[2]


def _clean() -> dict[str, str]:
    """Without LD_LIBRARY_PATH, which cv2 sets: gpu.sh would ask its Python for a path."""
    return {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}


class Counted(torch.nn.Module):
    """A network that counts its steps, and how often it saw the batch that is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 10)
        self.seen: list[float] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen.append(float(images.double().sum()))
        found: torch.Tensor = self.layer(images.mean(dim=(2, 3)))
        return found


def test_transfer_times_fed_steps_behind_what_was_ahead(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the CPU, which shows that it runs; every other row is a measurement of a device."""
    times: list[int] = []
    waited: list[int] = []  # how many steps there were when the host waited for the device
    network = Counted()

    def clock() -> float:
        times.append(len(network.seen))
        return float(len(times))

    clocks = SimpleNamespace(perf_counter=clock, perf_counter_ns=lambda: 0)
    monkeypatch.setattr(gpu_lab, "time", clocks)
    monkeypatch.setattr(gpu_lab, "_synchronize", lambda: waited.append(len(network.seen)))
    dataset = PackedDataset(
        store,
        transform=transforms.Compose([transforms.RandomResizedCrop(16), transforms.ToTensor()]),
    )
    sampler = RandomSampler(dataset, replacement=True, num_samples=120)
    loader: FastLoader[Any] = FastLoader(dataset, 2, sampler=sampler, num_workers=1)
    monkeypatch.setattr(gpu_lab, "DEVICE", torch.device("cpu"))
    found = gpu_lab.measured(iter(loader), network, steps=3, rounds=2)
    # by the clock above
    assert found == {"shares": [1.0, 1.0], "step_ms": 333.333, "next_ms": 0.0}
    whole = gpu_lab._UNTIMED + 3
    assert times == waited == [n for k in range(6) for n in (whole * k + 8, whole * (k + 1))]
    there = network.seen[0]
    for k in range(0, 6, 2):  # the batch that is there, and then only others
        assert set(network.seen[whole * k : whole * (k + 1)]) == {there}
        fed = network.seen[whole * (k + 1) : whole * (k + 2)]
        assert len(set(fed)) > 4


def test_script_takes_paths_from_where_it_is_called(tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$@" >> "$CALLS"\n')
    python.chmod(0o755)
    calls = tmp_path / "calls"
    env = {**_clean(), "GPU_VENV": str(tmp_path / "venv"), "CALLS": str(calls)}
    command = ["sh", ROOT / "bench" / "gpu.sh", "--out", "sub/gpu.json"]
    subprocess.run(command, cwd=tmp_path, env=env, check=True, timeout=60)
    assert calls.read_text().splitlines()[-1].endswith(f" {tmp_path}/sub/gpu.json")
    assert (tmp_path / "sub").is_dir()


@pytest.mark.long
def test_what_fails_or_never_ends_hides_no_other_part(tmp_path: Path) -> None:
    """One file of tests dies, one fails, a suite hangs: the rest is in the JSON all the same."""
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        f"""#!/bin/sh
case "$*" in
*--here*) echo '{{"device": "a GPU"}}' >"$4/machine" ;;
*bench.gpu_report*) [ ! -e "$3/fed_dali.status" ] || exec {sys.executable} "$@" ;;
*test_decode.py*) kill -SEGV $$ ;;
*test_transfer.py*)
    echo "one thing was wrong"
    for last; do :; done
    echo '<testsuites><testsuite><testcase classname="t" name="a"/><testcase classname="t" name="b">
    <failure message="no copy"/></testcase><testcase classname="t" name="c"><skipped
    message="needs two CUDA devices"/></testcase></testsuite></testsuites>' >"$last"
    exit 1 ;;
*" fed_eager") trap "" INT; exec sleep 60 ;;
*bench.gpu_lab*) echo '{{"part": "'"$4"'"}}' >"$3/$4.jsonl" ;;
esac
"""
    )
    python.chmod(0o755)
    env = {**_clean(), "GPU_VENV": str(tmp_path / "venv"), "LIMIT": "4", "KILL_AFTER": "1"}
    command = ["sh", ROOT / "bench" / "gpu.sh", "--out", tmp_path / "gpu.json"]
    done = subprocess.run(command, env=env, timeout=120, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    found = json.loads((tmp_path / "gpu.json").read_text())
    ended = {name: part["ended"] for name, part in found["parts"].items()}
    assert ended.pop("tests-decode") in ("with 139", "with -11")
    assert ended.pop("tests-transfer") == "with 1"
    assert ended.pop("fed_eager") == "at its time limit"
    assert set(ended.values()) == {"well"}
    assert found["device"] == "a GPU"
    assert found["parts"]["tests-transfer"]["log"] == "one thing was wrong\n"
    skipped = {gpu_report.ONE_DEVICE: 1}
    assert found["tests"] == {"passed": 1, "failed": {"t::b": "no copy"}, "skipped": skipped}
    parts = {"link", "smoke", "warm", "fed_compiled", "overlap", "threads", "to_device"}
    parts |= {"fed_small", "fed_files", "dali", "dali_boxes", "dali_reader", "fed_dali"}
    assert set(found["figures"]) == parts
    assert found["figures"]["smoke"] == [{"part": "smoke"}]


DYING = """
import os, signal
def test_one(): pass
def test_two(): assert False, "no copy"
def test_three(): os.kill(os.getpid(), signal.SIGSEGV)
def test_four(): pass
"""


def test_tests_behind_the_one_that_their_process_died_of_are_run(tmp_path: Path) -> None:
    """Nothing is learnt from tests that never ran."""
    for name in ("bench", "tests/gpu", "venv/bin"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy(ROOT / "bench" / "gpu.sh", tmp_path / "bench")
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser): parser.addoption('--long', action='store_true')"
    )
    (tmp_path / "tests" / "gpu" / "test_cuda.py").write_text(DYING)
    python = tmp_path / "venv" / "bin" / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *--here*) ;; *) exec {sys.executable} "$@" ;; esac\n'
    )
    python.chmod(0o755)
    env = {**_clean(), "GPU_VENV": str(tmp_path / "venv"), "PYTHONPATH": str(ROOT)}
    command = ["sh", tmp_path / "bench" / "gpu.sh", "--out", tmp_path / "gpu.json"]
    subprocess.run([*command, "--part", "tests-cuda"], env=env, timeout=120, capture_output=True)
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["parts"]["tests-cuda"]["ended"] == "with 1"
    failed = found["tests"].pop("failed")
    assert found["tests"] == {"passed": 2, "skipped": {}}
    assert failed.pop("tests.gpu.test_cuda::test_two").startswith("AssertionError: no copy")
    (crashed,) = failed.items()
    assert crashed[0].endswith("::test_three") and "crashed while running" in crashed[1]


@pytest.mark.parametrize(("budget", "ended"), [("0", "at its time limit"), ("1000", "well")])
def test_a_budget_ends_the_whole_command_and_a_file_of_tests_is_a_part(
    tmp_path: Path, budget: str, ended: str
) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        '#!/bin/sh\ncase "$*" in *--here*) ;;\n'
        f'*bench.gpu_report*) exec {sys.executable} "$@" ;; esac\n'
    )
    python.chmod(0o755)
    env = {**_clean(), "GPU_VENV": str(tmp_path / "venv"), "BUDGET": budget}
    command = ["sh", ROOT / "bench" / "gpu.sh", "--out", tmp_path / "gpu.json"]
    part = ["--part", "tests-stress"]
    subprocess.run([*command, *part], env=env, timeout=120, capture_output=True)
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert {name: part["ended"] for name, part in found["parts"].items()} == {"tests-stress": ended}
    done = subprocess.run([*command, "--part", "tests-none"], env=env, capture_output=True)
    assert done.returncode == 2 and b"no part is called tests-none" in done.stderr


FAKE_PYTHON = f"""#!/bin/sh
case "$1 $2" in
"-m venv") for last; do :; done; mkdir -p "$last/bin"; cp "$0" "$last/bin/python" ;;
"-c "*) echo /there/site-packages ;;
"- $WHEELS") exec {sys.executable} "$@" ;;
"- "*) cat >/dev/null ;;
*) echo "$@" >>"$CALLS" ;;
esac
"""
"""Makes environments of itself, runs what takes the core out of a wheel, and notes the rest."""


def test_wheels_are_installed_once_as_they_come_and_the_core_out_of_fastloads(
    tmp_path: Path,
) -> None:
    wheels, tree, calls = tmp_path / "my-fastload-gpu", tmp_path / "tree", tmp_path / "calls"
    (tree / "bench").mkdir(parents=True)
    shutil.copy(ROOT / "bench" / "gpu.sh", tree / "bench")
    python = tmp_path / "python"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    wheels.mkdir()
    ours = f"{DISTRIBUTION.replace('-', '_')}-{__version__}-cp312-cp312-linux_x86_64.whl"
    with zipfile.ZipFile(wheels / ours, "w") as wheel:  # its name is the distribution's
        wheel.writestr("fastload/_native/_core.cpython-312.so", "the core")
        wheel.writestr("fastload/__init__.py", "")
    pip = wheels / "pip-1-py3-none-any.whl"
    pip.touch()

    def installed() -> list[str]:
        calls.write_text("")
        env = {**_clean(), "PYTHON": str(python), "WHEELS": str(wheels), "CALLS": str(calls)}
        command = ["sh", "bench/gpu.sh", "--wheels", wheels, "--part", "smoke,dali"]
        subprocess.run(command, cwd=tree, env=env, check=True, timeout=60)
        lines = calls.read_text().splitlines()
        begun = [line.split()[-1] for line in lines if "bench.gpu_lab" in line]
        assert begun == ["smoke", "dali"]
        begin = f"{pip}/pip install -q --no-index --no-deps --no-compile "
        return [line.removeprefix(begin) for line in lines if line.startswith(begin)]

    assert installed() == [str(pip), "--no-build-isolation -e ."]
    assert (tree / "fastload/_native/_core.cpython-312.so").read_text() == "the core"
    assert not (tree / "fastload/__init__.py").exists()
    assert installed() == []
    later = wheels / "nvidia_dali-2-py3-none-any.whl"
    later.touch()
    assert installed() == [str(later)]
    assert installed() == []


def test_pieces_are_joined_where_all_of_a_kind_are_there(tmp_path: Path) -> None:
    pieces = tmp_path / "wheels" / "pieces"
    pieces.mkdir(parents=True)
    for kind, nbytes in [("first", 10), ("dali", 30_000)]:
        (tmp_path / f"{kind}.whl").write_bytes(random.Random(1).randbytes(nbytes))
        tar = subprocess.run(
            ["tar", "-cf", "-", f"{kind}.whl"], cwd=tmp_path, check=True, capture_output=True
        ).stdout
        for number, begin in enumerate(range(0, len(tar), 25_000)):
            (pieces / f"{kind}.tar.a{'ab'[number]}").write_bytes(tar[begin : begin + 25_000])
    sums = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(pieces.iterdir())
    ]
    assert len(sums) == 3
    (pieces / "SHA256").write_text("".join(sums))
    last = (pieces / "dali.tar.ab").rename(tmp_path / "later")

    def join() -> set[str]:
        command = ["sh", ROOT / "bench" / "gpu.sh", "--join", pieces.parent]
        subprocess.run(command, check=True, timeout=60, capture_output=True)
        return {path.name for path in pieces.parent.glob("*.whl")}

    assert join() == {"first.whl"}
    last.rename(pieces / "dali.tar.ab")
    assert join() == {"first.whl", "dali.whl"}
    assert (pieces.parent / "dali.whl").read_bytes() == (tmp_path / "dali.whl").read_bytes()
    (pieces / "dali.tar.ab").write_bytes(b"something else")
    with pytest.raises(subprocess.CalledProcessError):
        join()


@pytest.mark.parametrize("skipped", [gpu_report.ONE_DEVICE, "nvidia-dali is not installed"])
def test_a_run_is_good_where_nothing_but_a_second_device_was_wanting(skipped: str) -> None:
    tests = {"passed": 9, "failed": {}, "skipped": {skipped: 1}}
    parts = {"tests-transfer": {"ended": "well", "seconds": 1}}
    content: dict[str, Any] = {"parts": parts, "tests": tests}
    assert gpu_report.good(content) == (skipped == gpu_report.ONE_DEVICE)
    assert not gpu_report.good({**content, "parts": {"smoke": {"ended": "with 1"}}})


@pytest.mark.parametrize("part", ["smoke", "fed_compiled", "threads"])
def test_a_part_runs_at_toy_size_without_a_device(tmp_path: Path, cache: Path, part: str) -> None:
    """Its images and stores are made once for all parts."""
    env = {**os.environ, "LAB_TOY": "1", "PYTHONPATH": str(ROOT), "TMPDIR": str(cache)}
    command = ["-m", "bench.gpu_lab", tmp_path, part]
    warm.run(command, cwd=ROOT, env=env, check=True, timeout=200, finalize=False)
    lines = (tmp_path / f"{part}.jsonl").read_text().splitlines()
    assert {json.loads(line).get("store") for line in lines} >= {"jpeg", "dct", "raw"}


def test_link_pins_a_slab_s_memory_and_copies_out_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a device that pins nothing and copies to the host."""
    pinned: list[int] = []
    device = SimpleNamespace(pin=lambda memory: pinned.append(memory.nbytes))
    monkeypatch.setattr("fastload._base.devices.cuda.Cuda", lambda which: device)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(gpu_lab, "DEVICE", torch.device("cpu"))
    monkeypatch.setattr(gpu_lab, "_lines", lines := list[str]())
    gpu_lab.link()
    found = [json.loads(line) for line in lines if "link" not in json.loads(line)]
    assert pinned == [38_535_168] * 2
    assert set(found[0]["pinning_ms"]) == {"fresh", "touched", "torch's"}
    copied = {line["copied_from"]: line["gb_per_s"] for line in found[1:]}
    assert set(copied) == {"registered", "torch's", "pageable"}
    assert all(rate > 0 for rate in copied.values())


def test_the_share_of_a_copy_that_others_cover_counts_no_time_twice() -> None:
    assert gpu_lab._covered((10, 20), [(0, 12), (11, 13), (15, 16), (19, 30)]) == 0.5
    assert gpu_lab._covered((10, 20), []) == 0


@pytest.mark.parametrize("part", gpu_lab.PARTS)
def test_what_a_part_imports_when_it_runs_is_there(part: str) -> None:
    code = ast.parse(textwrap.dedent(inspect.getsource(gpu_lab.PARTS[part])))
    for node in ast.walk(code):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fastload"):
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                name = f"{module.__name__}.{alias.name}"
                assert hasattr(module, alias.name) or importlib.util.find_spec(name), name
