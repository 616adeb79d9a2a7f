"""``device="cuda"`` is one device for a loader's life; CPUs are left to the threads that launch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from batches import TRAIN
from fake_device import FakeDevice
from fastload import FastLoader
from fastload._base.devices import accelerator
from fastload._base.machine import cpu


@pytest.fixture
def two_devices(monkeypatch: Any) -> list[int]:
    """Two CUDA devices that are said to be there; the list has the current one."""
    current = [1]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(accelerator, "check", lambda device: None)
    monkeypatch.setattr(accelerator, "make", lambda device: FakeDevice(late=False))
    return current


def test_a_device_is_resolved_when_the_first_epoch_begins(
    store: Path, two_devices: list[int]
) -> None:
    loader: FastLoader[Any] = FastLoader(store, 8, transform=TRAIN, device="cuda", num_workers=0)
    assert "device: cuda," in loader.explain()  # asking for its index would start CUDA
    assert len(list(loader)) == 3
    assert "device: cuda:1," in loader.explain()
    two_devices[0] = 0  # as torch.cuda.set_device does
    assert len(list(loader)) == 3
    assert loader._loader_config().cuda == torch.device("cuda", 1)
    assert loader.device == "cuda"  # a trainer that rebuilds it on another rank gets its own


def test_a_loader_for_a_device_leaves_two_cpus(
    store: Path, two_devices: list[int], monkeypatch: Any
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(cpu, "quota", lambda: None)
    assert FastLoader(store, 8).num_workers == 8
    assert FastLoader(store, 8, device="cuda").num_workers == 6
    assert FastLoader(store, 8, device="cuda", num_workers="auto").num_workers == 6
