"""The transfer stage's CUDA class on queues that run late: streams, events, pinned memory."""

from __future__ import annotations

import collections
import dataclasses
import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torchvision import transforms as v1

from deliveries import Pageable, Plain, Slabs, delivery, in_order
from fake_cuda import FakeCuda, OnFakeCuda, Stream, fake_cuda
from fake_device import raw
from fastload import FastLoader, UsageError
from fastload._base import nested
from fastload._base.slabs import _allocate

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


def test_what_was_left_by_another_stays_pinned_while_a_graph_is_captured() -> None:
    with fake_cuda() as cuda:
        first, second, third = (OnFakeCuda(ONE) for _ in range(3))
        memory = _allocate(1 << 16)
        assert first.pin(memory)
        cuda.capturing = True
        del memory, first
        del second  # it has nothing of its own to unpin
        assert len(cuda.registered) == 1
        cuda.capturing = False
        third.follow()
        assert cuda.registered == {}


class Own:
    """An object that moves itself, as a tokenizer's batches do."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x
        self.itself: object = self

    def to(self, device: torch.device) -> Own:
        return self


@dataclasses.dataclass
class Fields:
    x: torch.Tensor


def test_every_tensor_of_a_batch_is_recorded_whatever_it_is_in() -> None:
    x = [torch.full((3,), float(i)) for i in range(7)]
    packed = torch.nn.utils.rnn.pack_sequence([x[0], x[1]])
    batch = {
        "packed": packed,
        "own": [Own(x[2]), Own(x[3])],
        "user": collections.UserDict(data=(x[4], "text")),
        "fields": Fields(x[5]),
        "plain": x[6],
    }
    found = {tensor.data_ptr() for tensor in nested.all_tensors(batch)}
    assert found == {t.data_ptr() for t in [packed.data, packed.batch_sizes, *x[2:]]}
    with fake_cuda() as cuda:
        inner = Slabs(3)
        iterator, _ = delivery(inner, OnFakeCuda(ONE), finisher=_Giving(inner, batch))
        recorded: list[torch.Tensor] = []
        cuda.default[1].recorded = recorded.append  # type: ignore[method-assign]
        assert next(iterator) is batch
        assert {tensor.data_ptr() for tensor in recorded} == found


class _Giving(Plain):
    """Gives ``given`` for every batch."""

    def __init__(self, inner: Slabs, given: Any) -> None:
        super().__init__(inner)
        self.given = given

    def finish(self, item: Any, moved: Any, number: int) -> Any:
        return self.given


def _nested(layout: torch.layout) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(2)], layout=layout)


EYE = torch.eye(4)
MADE: dict[str, Callable[[], torch.Tensor]] = {
    "coo": EYE.to_sparse,
    "csr": EYE.to_sparse_csr,
    "csc": EYE.to_sparse_csc,
    "bsr": lambda: EYE.to_sparse_bsr((2, 2)),
    "bsc": lambda: EYE.to_sparse_bsc((2, 2)),
    "nested": lambda: _nested(torch.strided),
    "jagged": lambda: _nested(torch.jagged),
}


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.parametrize("kind", MADE)
def test_sparse_and_nested_tensors_are_handed_over(kind: str) -> None:
    """torch records streams on dense memory only, and refuses other tensors."""
    tensor = MADE[kind]()
    with fake_cuda() as cuda:
        device = OnFakeCuda(ONE)
        recorded: list[torch.Tensor] = []
        cuda.default[1].recorded = recorded.append  # type: ignore[method-assign]
        device.hand_over(device.mark(), lambda: [tensor])
        recorded = [part for part in recorded if part.numel()]  # without a jagged one's lengths
        (values,) = [part for part in recorded if part.is_floating_point()]
        assert values.sum() == 4  # all of them
        assert len(recorded) == {"nested": 1, "coo": 2, "jagged": 2}.get(kind, 3)
        cuda.synchronize()


def test_what_was_found_in_a_batch_is_not_kept() -> None:
    """Not until a garbage collection either: memory of a device is scarce."""
    batch = {"own": [Own(torch.ones(3))], "x": (torch.ones(2),)}
    kept = [weakref.ref(tensor) for tensor in nested.all_tensors(batch)]
    gc.disable()
    try:
        assert len(nested.all_tensors(batch)) == 2
        batch["own"][0].itself = None
        batch.clear()
        assert [tensor() for tensor in kept] == [None, None]
    finally:
        gc.enable()
