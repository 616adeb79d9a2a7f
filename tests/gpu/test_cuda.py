"""What the transfer stage relies on of CUDA and of torch's use of it, each by itself."""

from __future__ import annotations

import collections
import gc
import mmap
import os
import queue
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset
from torchvision import transforms as v1

import fastload
from batches import TRAIN
from bench.gpu_report import ONE_DEVICE
from fastload import FastLoader, UsageError
from fastload._base.devices import cuda
from fastload._base.devices.cuda import Cuda
from fastload._base.slabs import _allocate
from fastload._run import resources

pytestmark = pytest.mark.gpu

ERASED = v1.Compose([*TRAIN.transforms, v1.RandomErasing(0.8, value="random")])
LENGTH = 40_000
ROWS = 64
HEAD = [
    "import torch",
    "from torchvision import transforms as v1",
    "from fastload import FastLoader",
]


def rows(count: int = 512) -> TensorDataset:
    """Batches of 64 rows take 10 MB: row i is i everywhere."""
    return TensorDataset(torch.arange(count, dtype=torch.float32)[:, None].repeat(1, LENGTH))


def right(batch: torch.Tensor, number: int) -> torch.Tensor:
    """Whether it is batch ``number`` of ``rows``, on the device."""
    first = 64 * number
    expected = torch.arange(first, first + len(batch), device=batch.device)
    return (batch == expected[:, None]).all()


# --- pinned memory --------------------------------------------------------------------------------


def test_memory_is_registered_once_and_given_back() -> None:
    device = Cuda(torch.device("cuda"))
    for _ in range(3):
        memory = np.frombuffer(_allocate(3_000_001), np.uint8)
        assert not torch.from_numpy(memory).is_pinned()
        assert device.pin(memory) and device.pin(memory)
        assert torch.from_numpy(memory).is_pinned()
        assert device.memory()["pinned_MB"] == pytest.approx(3.000001)
        del memory
        device.follow()
        assert device.memory()["pinned_MB"] == 0


def test_memory_that_is_registered_already_is_said_and_leaves_no_error_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cuda, "_refusal", None)
    memory = np.frombuffer(_allocate(1 << 20), np.uint8)
    cudart: Any = torch.cuda.cudart()
    assert int(cudart.cudaHostRegister(memory.ctypes.data, memory.nbytes, 1)) == 0
    try:
        with pytest.warns(UserWarning, match="CUDA refused to pin 1.0 MB of fastload's memory"):
            assert not Cuda(torch.device("cuda")).pin(memory)
        assert torch.ones(3, device="cuda").sum().item() == 3
    finally:
        assert int(cudart.cudaHostUnregister(memory.ctypes.data)) == 0


def test_without_registered_memory_batches_come_out_of_torchs_pinned_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Cuda, "pin", lambda self, memory: False)
    loader = FastLoader(rows(), 64, device="cuda")
    for _ in range(2):
        found = []
        for number, (batch,) in enumerate(loader):
            torch.cuda._sleep(1_000_000)
            found.append(right(batch, number))
            del batch
        assert torch.stack(found).all().item()


class Unadvised(mmap.mmap):
    """Memory of a system that does not keep it from forked children."""

    def madvise(self, *advice: int) -> None:
        raise OSError("Invalid argument")


def test_memory_that_a_forked_child_would_share_is_not_registered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cuda, "_refusal", None)
    memory = np.frombuffer(Unadvised(-1, 1 << 20), np.uint8)
    with pytest.warns(UserWarning, match="refused .*Invalid argument"):
        assert not Cuda(torch.device("cuda")).pin(memory)


def test_tensors_of_a_tokenizer_are_staged_where_they_are_large() -> None:
    class Encoding(collections.UserDict[str, torch.Tensor]):
        def to(self, device: torch.device) -> Encoding:
            raise AssertionError("its tensors are copied as any others")

    def encoded(samples: list[tuple[torch.Tensor]]) -> Encoding:
        wide = torch.stack([row for (row,) in samples])
        return Encoding(wide=wide, length=torch.tensor([len(wide)]))

    loader = FastLoader(rows(), 64, device="cuda", collate_fn=encoded)
    for number, batch in enumerate(loader):
        assert type(batch) is Encoding and batch["length"].item() == 64
        assert right(batch["wide"], number).item()


@pytest.mark.parametrize("workers", [0, 2])
def test_slabs_are_pinned_also_those_that_workers_write_into(workers: int) -> None:
    loader = FastLoader(rows(), 64, num_workers=workers, device="cuda")
    for _ in range(2):
        assert all(right(batch, i).item() for i, (batch,) in enumerate(loader))
    assert loader.inspect().mover.accelerator.memory()["pinned_MB"] >= LENGTH * 64 * 4e-6


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_fork_after_pinning_leaves_batches_as_they_are() -> None:
    found = []
    for number, (batch,) in enumerate(FastLoader(rows(), 64, device="cuda")):
        child = os.fork()
        if not child:
            os._exit(0)
        found.append(right(batch, number))
        assert os.waitpid(child, 0)[1] == 0
    assert torch.stack(found).all()


class Collecting(Dataset[torch.Tensor]):
    """Its workers collect garbage, as any program does sooner or later."""

    def __init__(self) -> None:
        self.main = os.getpid()

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> torch.Tensor:
        if os.getpid() != self.main:
            gc.collect()
        return torch.full((LENGTH,), float(i))


@pytest.mark.parametrize("forked", ["by the program", "for workers"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_child_that_collects_garbage_leaves_its_parents_batches(forked: str) -> None:
    """To free memory on which a stream is recorded, torch calls CUDA, which dies there."""
    loader = FastLoader(
        Collecting(), 16, num_workers=2, device="cuda", multiprocessing_context="fork"
    )
    for batch in loader:
        circle = [batch]
        circle.append(circle)  # type: ignore[arg-type] # as an exception that was caught leaves one
        del circle, batch
    if forked == "for workers":
        assert [int(batch[-1, 0].item()) for batch in loader] == [15, 31, 47, 63]
        return
    child = os.fork()
    if not child:
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


# --- streams and memory of the device -------------------------------------------------------------


def test_side_streams_do_not_share_the_priority_and_so_the_queue_of_the_callers() -> None:
    side = cuda.side_stream(torch.device("cuda", 0))
    assert side.priority < torch.cuda.default_stream().priority


def test_batches_let_go_of_in_one_stream_after_another() -> None:
    streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    busy, found = torch.ones(2048, 2048, device="cuda"), []
    torch.cuda.synchronize()
    for _ in range(5):
        iterator = iter(FastLoader(rows(), 64, device="cuda"))
        for number in range(8):
            with torch.cuda.stream(streams[number % 3]):
                (batch,) = next(iterator)
                for _ in range(10):
                    busy @ busy
                found.append(right(batch, number))
                del batch
    torch.cuda.synchronize()
    assert torch.stack(found).all()


def test_a_loader_iterated_in_one_thread_feeds_steps_in_another() -> None:
    """A step may be queued, and its batch freed, while the loader makes the next one."""
    handed = queue.Queue[tuple[int, torch.Tensor] | None](2)
    found: list[torch.Tensor] = []

    def train() -> None:
        while (item := handed.get()) is not None:
            number, batch = item
            torch.cuda._sleep(4_000_000)
            found.append(right(batch, number))
            del batch, item

    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        for _ in range(3):
            for number, (batch,) in enumerate(FastLoader(rows(), 64, device="cuda")):
                handed.put((number, batch))
                del batch
    finally:
        handed.put(None)
        trainer.join()
    assert len(found) == 24 and torch.stack(found).all().item()


def test_an_early_end_and_empty_cache_leave_a_running_step_its_batch() -> None:
    """With expandable segments, free memory is unmapped after waiting for recorded streams only."""
    _run(
        """
        for _ in range(3):
            for i, (batch,) in enumerate(FastLoader(rows(), 64, device="cuda")):
                if i == 2:
                    torch.cuda._sleep(400_000_000)  # longer than the iterator takes to end
                found = batch.sum(dtype=torch.float64)  # exact, in whatever order
                del batch
                if i == 2:
                    break
            torch.cuda.empty_cache()
            assert found.item() == 40_000 * sum(range(128, 192))
        """,
        PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
        PYTORCH_ALLOC_CONF="expandable_segments:True",
    )


def test_memory_is_flat_where_the_last_batch_is_smaller() -> None:
    loader = FastLoader(rows(490), 64, shuffle=True, device="cuda")
    reserved = []
    for epoch in range(60):
        for (batch,) in loader:
            if not epoch:
                torch.cuda._sleep(20_000_000)  # the loader gets as far ahead as it ever may
            batch.sum()
        del batch
        gc.collect()
        torch.cuda.synchronize()
        reserved.append(torch.cuda.memory_stats()["reserved_bytes.all.current"])
    # Two of the allocator's segments: pieces of two sizes do not always fit.
    assert max(reserved[10:]) <= reserved[5] + 2 * (20 << 20)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_an_epoch_never_waits_for_the_device(store: Path) -> None:
    loader = FastLoader(store, 5, transform=ERASED, seed=1, device="cuda")
    list(loader)  # tables are made
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert len([images.sum() for images, _ in loader]) == 5
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_out_of_memory_is_raised_at_its_batch_and_loading_goes_on(monkeypatch: Any) -> None:
    monkeypatch.setattr(resources, "AHEAD_ON_DEVICE", 0)
    loader = FastLoader(rows(), 64, device="cuda")
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-9)
    try:
        with pytest.raises(torch.cuda.OutOfMemoryError):
            list(loader)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert all(right(batch, i).item() for i, (batch,) in enumerate(loader))


@pytest.mark.parametrize("settings", ["expandable_segments:True", "backend:cudaMallocAsync"])
def test_torchs_other_allocators(settings: str) -> None:
    _run(
        """
        for _ in range(3):
            for i, (batch,) in enumerate(FastLoader(rows(), 64, device="cuda")):
                assert right(batch, i).item()
                del batch
        """,
        PYTORCH_CUDA_ALLOC_CONF=settings,
        PYTORCH_ALLOC_CONF=settings,
    )


def test_a_process_that_ends_in_the_middle_of_an_epoch_says_no_error() -> None:
    _run("iterator = iter(FastLoader(rows(), 64, device='cuda')); next(iterator)", quiet=True)
    _run("iterator = iter(FastLoader(rows(), 64, num_workers=2, device='cuda')); next(iterator)",
         quiet=True)  # fmt: skip


# --- what the caller is in the middle of ----------------------------------------------------------


def test_batches_moved_in_inference_mode_can_be_trained_with(store: Path) -> None:
    iterator = iter(FastLoader(store, 4, transform=ERASED, seed=1, device="cuda"))
    weight = torch.ones(1, device="cuda", requires_grad=True)
    with torch.inference_mode():
        next(iterator)
    for images, _ in iterator:
        assert not images.requires_grad
        (images * weight).sum().backward()
    assert weight.grad is not None and weight.grad.isfinite().all()


def test_no_batch_during_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    iterator = iter(FastLoader(rows(), 64, device="cuda"))
    next(iterator)
    with monkeypatch.context() as patch:
        patch.setattr(Cuda, "capturing", lambda self: True)
        with pytest.raises(UsageError, match="while a CUDA graph is being captured"):
            next(iterator)
    assert [right(batch, i).item() for i, (batch,) in enumerate(iterator, 1)] == [True] * 7


def test_what_another_has_left_stays_registered_during_a_capture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second, third = (Cuda(torch.device("cuda")) for _ in range(3))
    memory = np.frombuffer(_allocate(1 << 16), np.uint8)
    assert first.pin(memory)
    with monkeypatch.context() as patch:
        patch.setattr(Cuda, "capturing", lambda self: True)
        del memory, first
        del second  # it has nothing of its own to unregister
        assert len(cuda._left) == 1
    third.follow()
    assert not cuda._left


def test_no_batch_while_a_graph_is_captured_and_the_graph_is_whole(store: Path) -> None:
    loader = FastLoader(store, 4, transform=TRAIN, seed=1, num_workers=2, device="cuda")
    iterator = iter(loader)
    next(iterator)
    static, graph = torch.ones(8, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # the engine's threads go on meanwhile
        doubled = static * 2
        with pytest.raises(UsageError, match="while a CUDA graph is being captured"):
            next(iterator)
    graph.replay()
    assert doubled.sum().item() == 16
    assert len(list(iterator)) == 5


def test_numbers_of_a_batch_transform_leave_the_callers_generator_alone(store: Path) -> None:
    def noisy(batch: list[torch.Tensor]) -> list[torch.Tensor]:
        return [torch.rand_like(batch[0]), batch[1]]

    loader = FastLoader(store, 4, transform=TRAIN, seed=1, device="cuda", batch_transform=noisy)
    torch.cuda.manual_seed(5)
    expected = torch.rand(4, device="cuda")
    torch.cuda.manual_seed(5)
    first = [images for images, _ in loader]
    assert torch.equal(torch.rand(4, device="cuda"), expected)
    loader.set_epoch(0)
    assert all(torch.equal(a, b) for a, (b, _) in zip(first, loader, strict=True))


def test_times_of_copies_are_the_devices(tmp_path: Path) -> None:
    loader = FastLoader(rows(), 64, device="cuda")
    with fastload.trace(tmp_path / "trace.json"):
        assert all(right(batch, i).item() for i, (batch,) in enumerate(loader))
    figures = loader.inspect().stamps.snapshot()
    assert 0 < figures.stages_s["copy"] < figures.elapsed_s


# --- several devices ------------------------------------------------------------------------------


@pytest.fixture
def two_devices() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip(ONE_DEVICE)


@pytest.mark.usefixtures("two_devices")
def test_another_device_than_the_current_one(store: Path) -> None:
    loader = FastLoader(store, 4, transform=ERASED, seed=1, device="cuda:1")
    reference = FastLoader(store, 4, transform=ERASED, seed=1)
    for (images, labels), (expected, known) in zip(loader, reference, strict=True):
        assert images.device == labels.device == torch.device("cuda", 1)
        assert torch.cuda.current_device() == 0
        assert torch.equal(images.cpu(), expected) and torch.equal(labels.cpu(), known)


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("engine", ["native", "dali"])
def test_no_context_is_made_on_a_device_that_is_not_used(
    store: Path, engine: str, current: int
) -> None:
    if engine != "native":
        pytest.importorskip(f"nvidia.{engine}")
    _run(
        f"""
        torch.cuda._lazy_init()
        if {current}:
            torch.cuda.set_device({current})
        transform = v1.Compose([v1.RandomResizedCrop(64), v1.PILToTensor()])
        loader = FastLoader({str(store)!r}, 4, transform=transform, num_workers=2,
                            engine={engine!r}, device="cuda:1")
        assert len(list(loader)) == 6
        assert torch._C._cuda_hasPrimaryContext(1)
        assert not torch._C._cuda_hasPrimaryContext(0)
        """
    )


def _run(program: str, *, quiet: bool = False, **environment: str) -> None:
    """Run ``program`` in a process of its own; where ``quiet``, no error may be said at its end."""
    here = Path(__file__).resolve().parent
    names = "import test_cuda\nrows, right = test_cuda.rows, test_cuda.right"
    paths = [str(here), str(here.parent), str(here.parent.parent)]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([*HEAD, names, textwrap.dedent(program)])],
        env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = any(word in done.stderr for word in ("Traceback", "Exception", "terminate"))
    assert not quiet or not said, done.stderr[-2000:]
