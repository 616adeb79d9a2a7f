"""What of the benchmarks for a GPU can be tested without one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

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
