"""Who may still read a batch's device memory, and where its copies come from."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from deliveries import Pageable, Slabs, delivery, in_order
from fake_cuda import FakeCuda, OnFakeCuda, Stream, fake_cuda
from fake_device import raw
from fastload import FastLoader
from fastload._base.devices import cuda as cuda_module

ONE = torch.device("cuda", 1)


class Interleaved(Slabs):
    """Another thread trains on the batch before, and drops it, while the next one is made."""

    def __init__(self, count: int, cuda: FakeCuda) -> None:
        super().__init__(count)
        self.cuda = cuda
        self.handed: list[torch.Tensor] = []
        self.seen: list[tuple[int, int]] = []

    def train(self) -> None:
        while self.handed:
            data = raw(self.handed.pop(0)).view(np.int32)
            self.cuda.current[1].launch(
                lambda data=data: self.seen.append((int(data.min()), int(data.max())))
            )

    def __next__(self) -> torch.Tensor:
        thread = threading.Thread(target=self.train)
        thread.start()
        thread.join()
        return super().__next__()


def trained_elsewhere(cuda: FakeCuda) -> list[tuple[int, int]]:
    """What a step in another thread than the loader's has seen of twelve batches."""
    inner = Interleaved(12, cuda)
    iterator, _ = delivery(inner, OnFakeCuda(ONE), 1)
    for batch in iterator:
        inner.handed.append(batch)
        del batch
    inner.train()
    cuda.synchronize()
    return inner.seen


@pytest.mark.parametrize("own", [False, True])
def test_a_loader_iterated_in_one_thread_may_feed_a_step_in_another(own: bool) -> None:
    """The step is queued after ``next`` has begun, and before it allocates."""
    for seed in range(10):
        with fake_cuda(seed) as cuda:
            if own:
                cuda.current[1] = Stream(cuda, 1)
            assert trained_elsewhere(cuda) == in_order(12)


def test_without_a_record_such_a_step_would_read_another_batch(monkeypatch: Any) -> None:
    monkeypatch.setattr(Stream, "recorded", lambda stream, tensor: None)
    wrong = 0
    for seed in range(10):
        with fake_cuda(seed) as cuda:
            wrong += trained_elsewhere(cuda) != in_order(12)
    assert wrong > 0


def test_the_callers_stream_is_recorded_on_every_batch(monkeypatch: Any) -> None:
    recorded: list[tuple[Stream, int]] = []
    note = Stream.recorded

    def recording(stream: Stream, tensor: torch.Tensor) -> None:
        recorded.append((stream, id(tensor)))
        note(stream, tensor)

    monkeypatch.setattr(Stream, "recorded", recording)
    with fake_cuda() as cuda:
        iterator, _ = delivery(Slabs(4), OnFakeCuda(ONE))
        batches = [next(iterator) for _ in range(2)]
        cuda.current[1] = Stream(cuda, 1)
        batches += list(iterator)
        cuda.synchronize()
        streams = [cuda.default[1]] * 2 + [cuda.current[1]] * 2
        assert recorded == list(zip(streams, map(id, batches), strict=True))


# --- pinned memory that CUDA refuses --------------------------------------------------------------


def run_refused(kind: type[Slabs], cuda: FakeCuda) -> list[Any]:
    """Nine batches whose slabs cannot be registered; returns the warnings."""
    seen: list[tuple[int, int]] = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        iterator, _ = delivery(kind(9), OnFakeCuda(ONE))
        for batch in iterator:
            data = raw(batch).view(np.int32)
            cuda.current[1].launch(
                lambda data=data: seen.append((int(data.min()), int(data.max())))
            )
            del batch
        cuda.synchronize()
    assert seen == in_order(9)
    assert not cuda.error  # cleared: the caller's next kernel does not report it
    return [warning for warning in said if "CUDA refused" in str(warning.message)]


@pytest.mark.parametrize("kind", [Slabs, Pageable])
def test_slabs_that_cannot_be_registered_are_copied_out_of_torchs_pinned_memory(
    kind: type[Slabs],
) -> None:
    with fake_cuda() as cuda:
        cuda.fails = True
        (warning,) = run_refused(kind, cuda)
        assert cuda.pageable == 0
        assert "(CUDA error 712): batches are copied once more" in str(warning.message)
        assert len(run_refused(kind, cuda)) == 0  # once in a process


def test_without_any_pinned_memory_copies_are_made_and_the_loss_is_said() -> None:
    with fake_cuda() as cuda:
        cuda.fails = cuda.full = True
        said = run_refused(Pageable, cuda)
        assert cuda.pageable == 9
        assert [str(each.message).partition(" ")[2].partition(" 0")[0] for each in said] == [
            "refused to pin",
            "refused to allocate",
        ]


def test_explain_says_what_copies_come_from(monkeypatch: Any, store: Any) -> None:
    with fake_cuda() as cuda:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        loader: FastLoader[Any] = FastLoader(store, 4, device=ONE)
        assert "from pinned slabs that the engine fills" in loader.explain()
        cuda.fails = True
        run_refused(Slabs, cuda)
        assert "by way of pinned memory of torch's" in loader.explain()
        assert "(CUDA error 712)" in loader.explain()
        cuda.full = True
        run_refused(Slabs, cuda)
        assert "so the loop waits for each copy" in loader.explain()
    assert cuda_module.refusals() == {}
