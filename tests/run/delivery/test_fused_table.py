"""The table as one kernel gives the indexed form's bits: run by Triton's interpreter on the CPU."""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fastload._engine import device_stage

CUDA = torch.device("cuda", 0)
HERE = Path(__file__).resolve()

with_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)

COMPARED = """
import itertools
import numpy as np, torch
from torchvision import transforms as v1
from fastload._engine import device_stage
from fastload._engine.nvidia import fused_table
from fastload._transforms import sample_params
from fastload._transforms.recognise import recognise

CPU, ORDERS = torch.device("cpu"), (torch.contiguous_format, torch.channels_last)
calls = 0

def counted(*given, **more):
    global calls
    values = fused_table.look_up(*given, **more)
    calls += values is not None
    return values

def both(plan, order):
    device_stage.fused_look_up = lambda device: None
    indexed = device_stage.DeviceStage(plan, CPU, order)
    device_stage.fused_look_up = lambda device: counted
    return indexed, device_stage.DeviceStage(plan, CPU, order)

def same(plan, order, levels, drawn=None):
    expected, got = (stage(levels, drawn) for stage in both(plan, order))
    assert got.dtype == expected.dtype == plan.dtype and got.stride() == expected.stride()
    assert torch.equal(got, expected)

generator = torch.Generator().manual_seed(1)
chain = [v1.ToTensor(), v1.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
three = recognise(v1.Compose([v1.RandomResizedCrop(32), *chain]))
gray = [v1.RandomResizedCrop(32), v1.ToTensor(), v1.Normalize((0.1,), (0.3,))]
one = recognise(v1.Compose(gray), "L")
erasing = v1.RandomErasing(1, value="random")
erased = recognise(v1.Compose([v1.RandomResizedCrop(32), *chain, erasing]))
dtypes = (torch.float32, torch.float16, torch.bfloat16)
shapes = ((2, 9, 7), (1, 20, 19), (3, 1, 5), (0, 4, 4))  # n, h, w
given = itertools.product((three, one), dtypes, ORDERS, ORDERS)
for number, (plan, dtype, into, out) in enumerate(given):
    n, h, w = shapes[number % len(shapes)]
    levels = torch.randint(0, 256, (n, plan.channels, h, w), dtype=torch.uint8, generator=generator)
    same(plan.with_output(dtype), out, levels.to(memory_format=into))
assert calls == number + 1, calls
for out in ORDERS:
    levels = torch.randint(0, 256, (2, 3, 33, 34), dtype=torch.uint8, generator=generator)
    drawn = sample_params.rectangles(erased, 34, 33, seed=1, epoch=0, indices=np.arange(2))
    same(erased, out, levels, drawn)
    same(three, out, levels[:, :, :-1, 1:])  # a view: the indexed form
    same(three, out, levels[:, :, ::2, ::2])
print("compared", calls)
"""


@with_triton
def test_the_kernel_gives_the_bits_of_the_indexed_form() -> None:
    paths = [str(HERE.parents[2]), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", COMPARED],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "compared 26"


@with_triton
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_the_kernel_is_compiled_for_devices_that_are_not_here(
    capability: int, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from fastload._engine.nvidia import fused_table

    pointers = {"levels": "*u8", "table": "*i32", "values": "*i32"}
    strides = ("image_stride", "channel_stride", "pixel_stride", "pixels")
    constants = {"CHANNELS": 3, "NHWC": True, "SAME": False, "BLOCK": 1024}
    source = ASTSource(
        fused_table._kernel,
        signature={
            **pointers,
            **dict.fromkeys(strides, "i32"),
            **dict.fromkeys(constants, "constexpr"),
        },
        constexprs=constants,
    )
    try:
        target = GPUTarget("cuda", capability, 32)
        made = triton.compile(source, target=target, options={"enable_fp_fusion": False})
    finally:
        sys.modules.pop("fastload._engine.nvidia.fused_table", None)
    assert len(made.asm["cubin"]) > 1000


def test_without_triton_the_indexed_form_is_taken_and_nothing_is_said(
    monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setitem(sys.modules, "fastload._engine.nvidia.fused_table", None)
    device_stage.fused_look_up.cache_clear()
    with caplog.at_level(logging.WARNING, "fastload"):
        assert device_stage.fused_look_up(CUDA) is None
        assert device_stage.fused_look_up(torch.device("cpu")) is None
    assert caplog.text == ""
    device_stage.fused_look_up.cache_clear()


def test_a_triton_that_does_not_run_is_logged_once(monkeypatch: Any, caplog: Any) -> None:
    def look_up(*given: Any, **more: Any) -> None:
        raise RuntimeError("Failed to find C compiler")

    broken = SimpleNamespace(look_up=look_up)
    monkeypatch.setitem(sys.modules, "fastload._engine.nvidia.fused_table", broken)
    monkeypatch.setattr(torch, "zeros", lambda *given, **more: None)
    device_stage.fused_look_up.cache_clear()
    with caplog.at_level(logging.WARNING, "fastload"):
        assert device_stage.fused_look_up(CUDA) is None
        assert device_stage.fused_look_up(CUDA) is None
    assert caplog.text.count("Triton does not run on cuda:0") == 1
    assert "Failed to find C compiler" in caplog.text
    device_stage.fused_look_up.cache_clear()
