"""pytest's plugin in a process with the emulated CUDA: torch's operations, computed by the CPU."""

from __future__ import annotations

import gc
from pathlib import Path

import kernels
import pytest
import torch


def _mm(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Large products keep a device busy in tests, and nobody looks at them."""
    if len(one) < 1024:
        raise NotImplementedError("products are not emulated")
    torch.cuda._sleep(1_000_000)  # half a millisecond
    return torch.empty_like(one)


def pytest_configure(config: pytest.Config) -> None:
    kernels.install({"mm": _mm})


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    graphs = [item for item in items if "graph" in item.name]  # nothing can be captured here
    config.hook.pytest_deselected(items=graphs)
    items[:] = [item for item in items if item not in graphs]
    modules = {item.module for item in items if isinstance(item, pytest.Function)}
    for module in modules:
        if hasattr(module, "LENGTH"):
            module.LENGTH = 4_000  # batches of 1 MB: what is copied is copied by the CPU
        if hasattr(module, "busy"):
            module.busy = lambda steps=20: torch.cuda._sleep(1_000_000 * steps)
        if hasattr(module, "HEAD"):  # of programs in processes of their own
            here = str(Path(__file__).resolve().parent)
            module.HEAD += [f"import sys; sys.path.append({here!r})", "import kernels"]
            module.HEAD += ["kernels.install({})"]
    gc.freeze()  # tests collect often: not what torch and pytest are made of
