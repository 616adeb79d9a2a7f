"""How many ranks share a machine, with and without torchrun."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import distributed_c10d

from fastload._base.machine import cpu, ranks


@pytest.fixture
def spawned(monkeypatch: Any) -> Any:
    """Pretends that mp.spawn has started eight ranks, which meet in a store that is given."""
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(32)))
    monkeypatch.setattr(cpu, "quota", lambda: None)

    def meet(store: Any, devices: int = 0) -> None:
        stored = torch.distributed.PrefixStore("default_pg", store)
        monkeypatch.setattr(distributed_c10d, "_get_default_store", lambda: stored)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)

    return meet


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_ranks_that_meet_on_this_machine_share_its_cpus(spawned: Any, host: str) -> None:
    spawned(torch.distributed.TCPStore(host, 0, 1, is_master=True))
    assert (ranks.local(), cpu.available()) == (8, 4)


def test_ranks_that_meet_in_a_file_share_its_cpus(spawned: Any, tmp_path: Path) -> None:
    spawned(torch.distributed.FileStore(str(tmp_path / "store"), 8))
    assert (ranks.local(), cpu.available()) == (8, 4)


@pytest.mark.parametrize(("devices", "local"), [(4, 4), (16, 8), (0, 1)])
def test_ranks_of_several_machines_are_counted_by_devices(
    spawned: Any, monkeypatch: Any, devices: int, local: int
) -> None:
    store = torch.distributed.TCPStore("localhost", 0, 1, is_master=True)
    spawned(store, devices)
    monkeypatch.setattr(ranks, "_is_loopback", lambda host: False)
    assert ranks.local() == local


def test_torchruns_number_decides(spawned: Any, monkeypatch: Any, tmp_path: Path) -> None:
    spawned(torch.distributed.FileStore(str(tmp_path / "store"), 8))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert (ranks.local(), cpu.available()) == (2, 16)


def test_one_process_alone_has_all(monkeypatch: Any) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert ranks.local() == 1


@pytest.mark.parametrize(
    ("host", "here"),
    [("::1", True), ("127.3.2.1", True), ("10.0.0.7", False), ("node-7", False)],
)
def test_only_a_loopback_address_is_this_machines_alone(host: str, here: bool) -> None:
    assert ranks._is_loopback(host) == here


@pytest.mark.parametrize(("cpus", "left"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (16, 14)])
def test_a_device_leaves_two_cpus_to_the_threads_that_launch(
    monkeypatch: Any, cpus: int, left: int
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cpus)))
    monkeypatch.setattr(cpu, "quota", lambda: None)
    assert (cpu.available(), cpu.available(device=True)) == (cpus, left)
