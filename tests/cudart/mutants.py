"""What the emulated CUDA is good for: a transfer stage that leaves something out is found out.

Run by test_emulated.py, in a process that has the emulated CUDA; collected by nobody else.
"""

from __future__ import annotations

import ctypes
import gc
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from fastload import FastLoader
from fastload._base.devices import cuda
from fastload._run import resources
from fastload._run.delivery.transfer import _InFlight
from fastload._run.workers.columns import SMALL_NBYTES

_emulated = ctypes.CDLL(None)
Patch = Callable[[pytest.MonkeyPatch], None]


class Rows(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 160

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.full((SMALL_NBYTES // 64,), float(i))  # a batch is collated in a slab


def wrong(streams: list[torch.cuda.Stream]) -> int:
    """Values that were wrong, and faults, in some epochs that are read late."""
    found = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in streams]
    torch.cuda.synchronize()
    _emulated.emulated_faults()
    for round_ in range(6):
        resources.AHEAD_ON_DEVICE = round_ % 3
        iterator = iter(FastLoader(Rows(), 16, device="cuda"))
        for number in range(10):
            with torch.cuda.stream(streams[number % len(streams)]):
                batch = next(iterator)
                if number % 3 != 1:
                    torch.cuda._sleep(20_000_000)  # longer than a batch takes the host
                expected = torch.arange(16, device="cuda") + 16 * number
                found[number % len(streams)] += (batch != expected[:, None]).sum()
                del batch
        torch.cuda.synchronize()
    del iterator
    gc.collect()
    return sum(int(each.item()) for each in found) + int(_emulated.emulated_faults())


@pytest.fixture
def streams() -> Iterator[list[torch.cuda.Stream]]:
    yield [torch.cuda.current_stream()]
    torch.cuda.synchronize()


def test_what_is_whole_is_found_whole(streams: list[torch.cuda.Stream]) -> None:
    assert wrong(streams) == 0


def _no_hand_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cuda.Cuda, "hand_over", lambda self, mark, tensors: None)


def _slabs_back_at_once(patch: pytest.MonkeyPatch) -> None:
    add: Any = _InFlight.add
    patch.setattr(_InFlight, "add", lambda self, mark, held, done: add(self, mark, [], done))


def test_memory_let_go_of_in_another_stream_has_to_be_recorded(
    monkeypatch: pytest.MonkeyPatch, streams: list[torch.cuda.Stream]
) -> None:
    streams += [torch.cuda.Stream(), torch.cuda.Stream()]
    assert wrong(streams) == 0
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    assert any(wrong(streams) for _ in range(10))


def wrong_elsewhere() -> int:
    """The same, where one thread iterates and another one trains, in one stream."""
    found = torch.zeros((), dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    _emulated.emulated_faults()
    handed = queue.Queue[tuple[int, torch.Tensor] | None]()

    def train() -> None:
        while (item := handed.get()) is not None:
            number, batch = item
            torch.cuda._sleep(4_000_000)
            expected = torch.arange(16, device="cuda") + 16 * number
            found.add_((batch != expected[:, None]).sum())
            del batch, item

    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        resources.AHEAD_ON_DEVICE = 1
        for _ in range(6):
            for item in enumerate(FastLoader(Rows(), 16, device="cuda")):
                handed.put(item)
                del item
    finally:
        handed.put(None)
        trainer.join()
    torch.cuda.synchronize()
    gc.collect()
    return int(found.item()) + int(_emulated.emulated_faults())


def test_memory_that_another_thread_trains_on_has_to_be_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert wrong_elsewhere() == 0
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    assert any(wrong_elsewhere() for _ in range(10))


@pytest.mark.parametrize("leave_out", [_no_hand_over, _slabs_back_at_once])
def test_what_is_left_out_is_seen(
    leave_out: Patch, monkeypatch: pytest.MonkeyPatch, streams: list[torch.cuda.Stream]
) -> None:
    leave_out(monkeypatch)
    assert any(wrong(streams) for _ in range(10))
