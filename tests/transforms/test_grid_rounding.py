"""AugMix follows the rounding of torch's matrix multiplication, which depends on the processor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import warm
from fastload._transforms.pixels import augmix
from fastload._transforms.recognise import Unrecognised, recognise

ROOT = Path(__file__).resolve().parents[2]
# "AVX2" makes MKL round as on a processor without AVX-512; "" leaves the choice to it.
MODES = ["", "AVX2"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.long
def test_augmix_is_torchvisions_however_torch_rounds(mode: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist",
         "tests/transforms/test_each.py", "-k", "AugMix-v1 or AugMix-v2"],
        cwd=ROOT,
        env=environment | ({"MKL_CBWR": mode} if mode else {}),
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.parametrize("mode", MODES)
def test_the_rounding_is_found_out(mode: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    code = "from fastload._transforms.pixels import augmix; print(augmix.grid_rounding())"
    environment |= {"MKL_CBWR": mode} if mode else {}
    found = warm.run(["-c", code], env=environment, check=True).stdout.strip()
    assert found in (["separate"] if mode else ["separate", "fused"])


def test_an_unknown_rounding_is_left_to_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    multiply = torch.Tensor.bmm
    monkeypatch.setattr(
        torch.Tensor, "bmm", lambda a, b: multiply(a.double(), b.double()).float() * (1 + 2**-20)
    )
    augmix._rounding_at.cache_clear()
    try:
        assert augmix.grid_rounding() is None
        found = recognise(v2.Compose([v2.AugMix(), v2.ToImage()]))
    finally:
        augmix._rounding_at.cache_clear()
    assert isinstance(found, Unrecognised)
    assert "AugMix, because torch multiplies matrices" in found.reason


@pytest.mark.parametrize("size", [(5, 7), (8, 8), (9, 8), (33, 31), (224, 224)])
def test_small_grids_are_never_fused(size: tuple[int, int]) -> None:
    """torch multiplies small matrices in its own loops."""
    w, h = (np.array([side]) for side in size)
    look = augmix.Look(2)
    step = augmix.Step("Rotate", (10.0,))
    values = augmix.AugMix((step,), 1, 1, 1, 1.0, False, look)._operation(
        "Rotate", np.array([10.0]), w, h
    )[1]
    large = 6 * size[0] * size[1] >= 400
    assert values[0, 11] == (large and augmix.grid_rounding() == "fused")


def test_the_rounding_is_that_of_the_present_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, multiply = augmix.grid_rounding(), torch.Tensor.bmm
    with torch.autocast("cpu", torch.bfloat16):
        assert augmix.grid_rounding() is None

    def rounded(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """As oneDNN in bfloat16: large ones."""
        made = multiply(a, b)
        return made.bfloat16().float() if a.numel() * b.shape[-1] > 16**3 else made

    monkeypatch.setattr(torch.Tensor, "bmm", rounded)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "another")
    try:
        assert augmix.grid_rounding() is None
        monkeypatch.undo()
        assert augmix.grid_rounding() == usual
    finally:
        augmix._rounding_at.cache_clear()


def test_precisions_of_several_back_ends_are_an_unknown_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def mixed() -> str:
        raise RuntimeError("a mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", mixed)
    assert augmix.grid_rounding() is None
