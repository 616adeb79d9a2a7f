"""Which nvJPEG DALI finds, without a GPU: one that can be loaded, and says its version."""

from __future__ import annotations

import ctypes
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fastload._engine.nvidia import dali_graph, nvjpeg

pytestmark = pytest.mark.skipif(
    dali_graph.absent() is not None, reason="nvidia-dali is not installed"
)

CUDA = torch.device("cuda", 0)
FOUND = """
import ctypes
from fastload._engine.nvidia import nvjpeg
found = nvjpeg.version()
print(*found, hasattr(ctypes.CDLL("libnvjpeg.so.13"), "nvjpegGetProperty"))
"""


def test_the_installed_one_is_found_whatever_is_on_the_librarys_path(tmp_path: Path) -> None:
    """An older toolkit's is there: it decodes no boxes, and DALI would take it without a word."""
    folders = importlib.import_module("nvidia").__path__
    if not any(list(Path(folder).glob("*/lib/libnvjpeg.so.13")) for folder in folders):
        pytest.skip("nvidia-nvjpeg is not installed")
    maps = Path("/proc/self/maps").read_text().splitlines()
    other = next(line.split()[-1] for line in maps if "/libm.so" in line or "/libm-" in line)
    shutil.copy(other, tmp_path / "libnvjpeg.so.13")
    done = subprocess.run(
        [sys.executable, "-c", FOUND],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    major, minor, ours = done.stdout.split()
    assert (int(major), int(minor)) >= (13, 2)
    assert ours == "True"


@pytest.mark.parametrize(
    ("version", "boxes"), [((0, 0), False), ((12, 4), False), ((13, 1), False), ((13, 2), True)]
)
def test_boxes_are_for_those_that_decode_them(
    version: tuple[int, int], boxes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvjpeg, "version", lambda: version)
    assert dali_graph.takes_boxes(CUDA) == boxes
    assert dali_graph.takes_boxes(torch.device("cpu"))


def test_without_any_there_is_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    nvjpeg.version.cache_clear()
    assert nvjpeg.version() == (0, 0)
    nvjpeg.version.cache_clear()
