"""The transfer stage's CUDA class on queues that run late: streams, events, pinned memory."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torchvision import transforms as v1

from deliveries import Pageable, Slabs, delivery, in_order
from fake_cuda import FakeCuda, OnFakeCuda, Stream, fake_cuda
from fake_device import raw
from fastload import FastLoader, UsageError

LEVELS = v1.Compose([v1.RandomResizedCrop(96), v1.PILToTensor()])
ONE = torch.device("cuda", 1)


def train(cuda: FakeCuda, iterator: Any, lag: int) -> list[tuple[int, int]]:
    """Read each batch in the current stream of device 1, and let go of it at once."""
    seen: list[tuple[int, int]] = []
    for batch in iterator:
        data = raw(batch).view(np.int32)
        cuda.current[1].launch(lambda data=data: seen.append((int(data.min()), int(data.max()))))
        del batch
        cuda.run(cuda.random.randrange(lag + 1))
    return seen


@hypothesis.given(
    seed=st.integers(0, 2**32),
    ahead=st.integers(0, 3),
    lag=st.sampled_from([0, 1, 9]),
    kind=st.sampled_from([Slabs, Pageable]),
    own=st.booleans(),
)
def test_every_schedule_gives_whole_batches_in_order(
    seed: int, ahead: int, lag: int, kind: type[Slabs], own: bool
) -> None:
    with fake_cuda(seed) as cuda:
        if own:
            cuda.current[1] = Stream(cuda, 1)
        iterator, _ = delivery(kind(25), OnFakeCuda(ONE), ahead)
        seen = train(cuda, iterator, lag)
        cuda.synchronize()
        assert seen == in_order(25)


def test_without_its_events_batches_would_be_wrong(monkeypatch: Any) -> None:
    monkeypatch.setattr(OnFakeCuda, "hand_over", lambda self, *arguments: None)
    wrong = 0
    for seed in range(20):
        with fake_cuda(seed) as cuda:
            iterator, _ = delivery(Slabs(30), OnFakeCuda(ONE))
            seen = train(cuda, iterator, 2)
            cuda.synchronize()
            wrong += seen != in_order(30)
    assert wrong > 0


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_for_another_gpu_makes_no_context_on_the_current_one(
    store: Path, workers: int
) -> None:
    with fake_cuda() as cuda:
        loader = FastLoader(store, 4, transform=LEVELS, num_workers=workers, seed=1, device=ONE)
        for _ in range(2):
            assert len([cuda.synchronize() for _ in loader]) == 6
        assert (cuda.contexts, cuda.device) == ({1}, 0)
        assert cuda.current == cuda.default


@pytest.mark.parametrize("workers", [0, 2])
def test_cuda_is_called_in_the_callers_thread_alone(store: Path, workers: int) -> None:
    """A graph may be captured there between two batches, which calls elsewhere would end."""
    with fake_cuda() as cuda:
        loader = FastLoader(store, 4, transform=LEVELS, num_workers=workers, seed=1, device=ONE)
        for _ in range(2):
            assert len([cuda.synchronize() for _ in loader]) == 6
        del loader
        gc.collect()
        assert cuda.threads == {threading.get_ident()}


def test_pinned_memory_is_given_back_when_its_slab_goes() -> None:
    with fake_cuda() as cuda:
        device = OnFakeCuda(ONE)
        iterator, mover = delivery(Slabs(8), device)
        train(cuda, iterator, 0)
        pinned = len(cuda.registered)
        assert 1 <= pinned <= 8
        iterator.close()
        del iterator, mover, device
        gc.collect()
        assert cuda.registered == {}


def test_no_batch_while_a_graph_is_captured() -> None:
    with fake_cuda() as cuda:
        iterator, _ = delivery(Slabs(8), OnFakeCuda(ONE))
        next(iterator)
        cuda.capturing = True
        queued = [len(stream.queue) for stream in cuda.streams]
        with pytest.raises(UsageError, match="while a CUDA graph is being captured"):
            next(iterator)
        assert [len(stream.queue) for stream in cuda.streams] == queued
        cuda.capturing = False
        assert len(train(cuda, iterator, 9)) <= 7
        cuda.synchronize()
