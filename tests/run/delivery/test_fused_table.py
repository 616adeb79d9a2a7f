"""The table as one kernel gives the indexed form's bits: run by Triton's interpreter on the CPU."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torchvision import transforms as v1

import warm
from fastload._engine import device_stage
from fastload._transforms.recognise import recognise

CUDA = torch.device("cuda", 0)

with_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)

COMPARED = """
import itertools
import numpy as np, torch
from torchvision import transforms as v1
from fastload._engine import device_stage
from fastload._transforms.recognise import recognise
from fastload._engine.nvidia import fused_table
from fastload._transforms import sample_params
from fastload._transforms.geometry.draws import Numbers

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
    drawn = sample_params.rectangles(erased, Numbers(1, 0, np.arange(2)), 34, 33)
    same(erased, out, levels, drawn)
    same(three, out, levels[:, :, :-1, 1:])  # a view: the indexed form
    same(three, out, levels[:, :, ::2, ::2])
    for into in ORDERS:  # with a channel more between two images, or two pixels
        four = torch.randint(0, 256, (2, 4, 5, 6), dtype=torch.uint8, generator=generator)
        same(three, out, four.to(memory_format=into)[:, :3])
print("compared", calls)
"""


@with_triton
def test_the_kernel_gives_the_bits_of_the_indexed_form() -> None:
    strict = 'import warnings; warnings.simplefilter("error", UserWarning)\n'
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = warm.run(["-c", strict + COMPARED], env=environment, finalize=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "compared 30"


COMPILED = """
import itertools, re, torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

class Absent:
    "A device that is not here: what is asked of one when a kernel is compiled."
    def get_current_device(self): return 0
    def get_current_stream(self, device): return 0
    def get_current_target(self): return GPUTarget("cuda", CAPABILITY, 32)

driver.set_active(Absent())
from fastload._engine.nvidia import fused_table

run, kernels = fused_table._kernel.run, []

def compiled(*given, warmup, **more):
    kernels.append(run(*given, warmup=True, **more))

fused_table._kernel.run = compiled
orders = (torch.contiguous_format, torch.channels_last)
for dtype, order, nhwc, (h, w) in itertools.product(
    (torch.float32, torch.bfloat16), orders, (False, True), ((32, 32), (9, 7))
):
    levels = torch.zeros((2, 3, h, w), dtype=torch.uint8).to(memory_format=order)
    fused_table.look_up(levels, torch.zeros(768, dtype=dtype), nhwc=nhwc)
assert all(len(kernel.asm["cubin"]) > 1000 for kernel in kernels)
# Bits are moved: nothing is computed that a device would round, or contract, in its own way.
assert not any(re.search(r"[.]b?f(16|32|64)", kernel.asm["ptx"]) for kernel in kernels)
print("compiled", len(kernels), len({id(kernel) for kernel in kernels}))
"""


@with_triton
@pytest.mark.parametrize(
    "capability", [90, *(pytest.param(other, marks=pytest.mark.long) for other in (80, 100))]
)
def test_the_kernel_is_compiled_for_devices_that_are_not_here(
    capability: int, tmp_path: Path
) -> None:
    """As a batch would have it compiled: by the arguments of its launch."""
    code = COMPILED.replace("CAPABILITY", str(capability))
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    done = warm.run(["-c", code], env=environment, finalize=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("compiled 16 ")


def test_without_triton_the_indexed_form_is_taken_and_nothing_is_said(
    monkeypatch: Any, logged: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "fastload._engine.nvidia.fused_table", None)
    device_stage.fused_look_up.cache_clear()
    assert device_stage.fused_look_up(CUDA) is None
    assert device_stage.fused_look_up(torch.device("cpu")) is None
    assert not logged
    device_stage.fused_look_up.cache_clear()


def test_a_triton_that_does_not_run_is_logged_once(monkeypatch: Any, logged: list[str]) -> None:
    def look_up(*given: Any, **more: Any) -> None:
        raise RuntimeError("Failed to find C compiler")

    broken = SimpleNamespace(look_up=look_up)
    monkeypatch.setitem(sys.modules, "fastload._engine.nvidia.fused_table", broken)
    monkeypatch.setattr(torch, "zeros", lambda *given, **more: None)
    device_stage.fused_look_up.cache_clear()
    assert device_stage.fused_look_up(CUDA) is None
    assert device_stage.fused_look_up(CUDA) is None
    assert "".join(logged).count("Triton does not run on cuda:0") == 1
    assert "Failed to find C compiler" in "".join(logged)
    device_stage.fused_look_up.cache_clear()


def test_a_kernel_that_fails_at_a_batch_is_logged_once_and_batches_are_whole(
    monkeypatch: Any, logged: list[str]
) -> None:
    """Each dtype and layout is compiled when it is first needed, into a folder of Triton's."""

    def look_up(*given: Any, **more: Any) -> None:
        raise PermissionError(13, "Permission denied", "/root/.triton/cache")

    plan: Any = recognise(v1.Compose([v1.CenterCrop(4), v1.ToTensor()]))
    levels = torch.arange(96, dtype=torch.uint8).view(2, 3, 4, 4)
    monkeypatch.setattr(device_stage, "fused_look_up", lambda device: look_up)
    stage = device_stage.DeviceStage(plan, torch.device("cpu"), torch.contiguous_format)
    for _ in range(2):
        assert torch.equal(stage(levels), levels / 255)
    assert "".join(logged).count("Triton does not run on cpu, so torch looks values up") == 1
    assert "Permission denied: '/root/.triton/cache'" in "".join(logged)


def test_memory_that_is_short_says_nothing_of_triton(monkeypatch: Any, logged: list[str]) -> None:
    def look_up(*given: Any, **more: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    plan: Any = recognise(v1.Compose([v1.CenterCrop(4), v1.ToTensor()]))
    monkeypatch.setattr(device_stage, "fused_look_up", lambda device: look_up)
    stage = device_stage.DeviceStage(plan, torch.device("cpu"), torch.contiguous_format)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        stage(torch.zeros((2, 3, 4, 4), dtype=torch.uint8))
    assert not logged
    assert stage._look_up is look_up
