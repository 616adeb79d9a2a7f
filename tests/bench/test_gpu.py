"""What of the benchmarks for a GPU can be tested without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench import gpu_report
from bench.process import Failed, Process
from bench.suites import gpu_transfer

ROOT = Path(__file__).resolve().parents[2]


class PackedError(Exception):
    pass


def test_transfer_packs_every_set_of_images_into_a_store_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed: list[Path] = []
    work = SimpleNamespace(images="", stores=str(tmp_path / "stores"))

    def pack(images: str, path: Path) -> None:
        assert path.parent.is_dir() and not path.exists()
        path.touch()
        packed.append(path)
        raise PackedError

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu_transfer, "imagenet", lambda *given: work)
    monkeypatch.setattr(gpu_transfer, "pack", pack)
    options: Any = SimpleNamespace(toy=True, fresh=True, cache=tmp_path)
    for images in ("toy", "given", "toy"):  # the second time it is there and begun again
        work.images = f"/images/{images}"
        with pytest.raises(PackedError):
            gpu_transfer.GpuTransfer().run("resnet50", options)
    assert packed[0] == packed[2] != packed[1]


def test_script_takes_paths_from_where_it_is_called(tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$@" >> "$CALLS"\n')
    python.chmod(0o755)
    calls = tmp_path / "calls"
    env = {**os.environ, "GPU_VENV": str(tmp_path / "venv"), "CALLS": str(calls)}
    command = ["sh", ROOT / "bench" / "gpu.sh", "--out", "sub/gpu.json"]
    subprocess.run(command, cwd=tmp_path, env=env, check=True, timeout=60)
    assert calls.read_text().splitlines()[-1].endswith(f" {tmp_path}/sub/gpu.json")
    assert (tmp_path / "sub").is_dir()


def test_what_fails_or_never_ends_hides_no_other_part(tmp_path: Path) -> None:
    """One file of tests dies, one fails, a suite hangs: the rest is in the JSON all the same."""
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        f"""#!/bin/sh
case "$*" in
*bench.gpu_report*) [ ! -e "$3/small.status" ] || exec {sys.executable} "$@" ;;
*test_decode.py*) kill -SEGV $$ ;;
*test_transfer.py*)
    echo "one thing was wrong"
    for last; do :; done
    echo '<testsuites><testsuite><testcase classname="t" name="a"/><testcase classname="t" name="b">
    <failure message="no copy"/></testcase><testcase classname="t" name="c"><skipped
    message="needs two CUDA devices"/></testcase></testsuite></testsuites>' >"$last"
    exit 1 ;;
*gpu-transfer*) trap "" INT; exec sleep 60 ;;
*gpu-decode*)
    while [ "$1" != --json ]; do shift; done
    echo '[{{"suite": "gpu-decode", "median": 1}}]' >"$2" ;;
esac
"""
    )
    python.chmod(0o755)
    env = {**os.environ, "GPU_VENV": str(tmp_path / "venv"), "LIMIT": "4", "KILL_AFTER": "1"}
    command = ["sh", ROOT / "bench" / "gpu.sh", "--out", tmp_path / "gpu.json"]
    done = subprocess.run(command, env=env, timeout=120, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    found = json.loads((tmp_path / "gpu.json").read_text())
    ended = {name: part["ended"] for name, part in found["parts"].items()}
    assert ended.pop("tests-decode") in ("with 139", "with -11")
    assert ended.pop("tests-transfer") == "with 1"
    assert ended.pop("gpu-transfer") == "at its time limit"
    assert set(ended.values()) == {"well"}
    assert found["parts"]["tests-transfer"]["log"] == "one thing was wrong\n"
    skipped = {gpu_report.ONE_DEVICE: 1}
    assert found["tests"] == {"passed": 1, "failed": {"t::b": "no copy"}, "skipped": skipped}
    assert [row["suite"] for row in found["rows"]] == ["gpu-decode"] * 3


@pytest.mark.parametrize("skipped", [gpu_report.ONE_DEVICE, "nvidia-dali is not installed"])
def test_a_run_is_good_where_nothing_but_a_second_device_was_wanting(skipped: str) -> None:
    rows = [{"suite": "gpu-transfer"}, {"suite": "gpu-decode"}]
    tests = {"passed": 9, "failed": {}, "skipped": {skipped: 1}}
    parts = {"tests-transfer": {"ended": "well", "seconds": 1}}
    content: dict[str, Any] = {"parts": parts, "tests": tests, "rows": rows}
    assert gpu_report.good(content) == (skipped == gpu_report.ONE_DEVICE)
    assert not gpu_report.good({**content, "rows": rows[:1]})
    assert not gpu_report.good({**content, "parts": {"small": {"ended": "with 1"}}})


def test_a_loader_that_hangs_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_ANSWER_S", "0.2")
    with Process("torch-pil") as process, pytest.raises(Failed, match=r"no answer within 0\.2 s"):
        process.receive()  # nothing was asked: it waits
