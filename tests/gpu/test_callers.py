"""What callers do with batches and beside a loader, on a CUDA device."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torchvision import transforms as v1
from torchvision.transforms import v2

from batches import EVAL, TRAIN
from bench.gpu_report import ONE_DEVICE
from fastload import FastLoader
from fastload._base.devices import cuda

pytestmark = pytest.mark.gpu

ROWS, LENGTH = 64, 4_000  # 1 MB
ERASED = v1.Compose([*TRAIN.transforms, v1.RandomErasing(0.8, value="random")])


def rows(count: int = 512) -> TensorDataset:
    """Row i is i everywhere."""
    return TensorDataset(torch.arange(count, dtype=torch.float32)[:, None].repeat(1, LENGTH))


def loader_of(count: int = 512, **arguments: Any) -> FastLoader[Any]:
    return FastLoader(rows(count), ROWS, **{"device": "cuda", **arguments})


def right(batch: torch.Tensor, number: int, times: int = 1) -> torch.Tensor:
    """Whether it is batch ``number`` of ``rows``, on its device."""
    expected = times * (torch.arange(ROWS, device=batch.device) + ROWS * number)
    return (batch == expected[:, None]).all()


def late() -> None:
    """The current stream takes longer than a batch takes the host."""
    torch.cuda._sleep(4_000_000)


# --- batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cuda", "cuda:0", 0, torch.device("cuda", 0)])
def test_a_device_may_be_given_as_torch_takes_it(device: Any) -> None:
    """``pin_memory`` beside it changes nothing."""
    loader = loader_of(device=device, pin_memory=True)
    assert all(right(batch, number).item() for number, (batch,) in enumerate(loader))


@contextlib.contextmanager
def default_device() -> Iterator[None]:
    torch.set_default_device("cuda")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


SETTINGS = {
    "default device": default_device,
    "deterministic": deterministic,
    "autocast": lambda: torch.autocast("cuda", torch.bfloat16),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("workers", [0, 2])
def test_settings_of_torch_leave_batches_as_they_are(
    store: Path, setting: str, workers: int
) -> None:
    given = {"transform": ERASED, "seed": 1, "num_workers": workers}
    expected = list(FastLoader(store, 8, **given))
    with SETTINGS[setting]():
        found = list(FastLoader(store, 8, device="cuda", **given))
    for (images, labels), (ours, same) in zip(found, expected, strict=True):
        assert images.dtype == ours.dtype and torch.equal(images.cpu(), ours)
        assert torch.equal(labels.cpu(), same)


def test_loaders_of_training_and_validation_take_turns_and_keep_their_workers() -> None:
    train, valid = (loader_of(num_workers=2, persistent_workers=True) for _ in range(2))
    for _ in range(2):
        validation = iter(valid)
        for number, (batch,) in enumerate(train):
            late()
            assert right(batch, number).item() and right(next(validation)[0], number).item()
            if number == 5:
                break


def test_copies_of_batches_are_the_callers_own() -> None:
    found, kept = [], []
    for number, batch in enumerate(loader_of()):
        late()
        (other,) = copy.deepcopy(batch)
        (batch[0].mul_(-1), kept.append((number, other)))
        found.append(right(batch[0], number, -1))
    assert torch.stack(found).all()
    assert all(right(other, number).item() for number, other in kept)


def test_a_batch_kept_for_many_epochs_stays_whole() -> None:
    loader = loader_of()
    iterator = iter(loader)
    kept = [next(iterator)[0] for _ in range(3)]
    views = [batch[5:9, 100:] for batch in kept]
    del iterator
    for _ in range(4):
        for number, (batch,) in enumerate(loader):
            late()
            assert right(batch, number).shape == ()
            batch.fill_(-1)
    del loader, batch
    gc.collect()
    for number, (batch, view) in enumerate(zip(kept, views, strict=True)):
        assert right(batch, number).item() and view[0, 0].item() == ROWS * number + 5


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_pinned_batches_are_torchs_and_the_callers_copies_are_whole(
    store: Path, workers: int, engine: str
) -> None:
    """Without ``device``: the last reference goes in the middle of the copy."""
    given = {"transform": TRAIN, "seed": 3, "engine": engine, "num_workers": workers}
    expected = [images for images, _ in FastLoader(store, 4, **{**given, "num_workers": 0})]
    loader = FastLoader(store, 4, pin_memory=True, **given)
    found = []
    for _ in range(3):
        loader.set_epoch(0)
        for number, (images, labels) in enumerate(loader):
            assert images.is_pinned() and labels.is_pinned()
            late()
            moved = images.to("cuda", non_blocking=True)
            del images, labels
            found.append((number, moved))
    assert len(found) == 3 * len(expected)
    for number, moved in found:
        assert torch.equal(moved.cpu(), expected[number])


def test_sparse_batches_are_whole_and_the_callers_own() -> None:
    """torch records no stream on a sparse tensor, only on what it is made of."""

    def sparse(samples: list[tuple[torch.Tensor]]) -> torch.Tensor:
        return (torch.stack([row for (row,) in samples]) + 1).to_sparse()

    loader = loader_of(collate_fn=sparse)
    found = []
    for _ in range(2):
        for number, batch in enumerate(loader):
            assert batch.is_cuda and batch.is_sparse
            late()
            found.append(right(batch._values().view(ROWS, LENGTH) - 1, number))
            del batch
    assert len(found) == 16 and torch.stack(found).all().item()


# --- the loop -------------------------------------------------------------------------------------


def test_an_error_in_the_training_step_leaves_no_copy_and_the_loader_goes_on() -> None:
    loader = loader_of()
    for step in range(4):
        with pytest.raises(ZeroDivisionError):
            for number, (batch,) in enumerate(loader):
                late()
                assert number <= step
                batch.add_(1 / (step - number))
    assert all(right(batch, i).item() for i, (batch,) in enumerate(loader))


def test_a_generator_around_the_loader_may_be_left() -> None:
    loader = loader_of()

    def steps() -> Iterator[torch.Tensor]:
        for number, (batch,) in enumerate(loader):
            late()
            yield right(batch, number)

    for _ in range(3):
        generator = steps()
        found = [next(generator) for _ in range(3)]
        generator.close()
        assert torch.stack(found).all()
    assert torch.stack(list(steps())).all()


def test_state_is_resumed_on_the_device_at_the_very_next_sample(store: Path) -> None:
    def made() -> FastLoader[Any]:
        mixed = v2.CutMix(num_classes=3)
        return FastLoader(
            store, 4, shuffle=True, seed=5, transform=ERASED, device="cuda", batch_transform=mixed
        )

    whole = [(images.cpu(), labels.cpu()) for images, labels in made()]
    for step in (1, 2, 5):
        first = made()
        iterator = iter(first)
        for _ in range(step):
            next(iterator)
        state = first.state_dict()
        del iterator, first
        second = made()
        second.load_state_dict(state)
        rest = [(images.cpu(), labels.cpu()) for images, labels in second]
        assert len(rest) == len(whole) - step
        for one, other in zip(rest, whole[step:], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_network_of_half_the_width_gets_dense_channels_last(
    store: Path, dtype: torch.dtype
) -> None:
    given: dict[str, Any] = {"dtype": dtype, "memory_format": torch.channels_last, "seed": 2}
    loader = FastLoader(store, 5, transform=ERASED, device="cuda", **given)
    for (images, _), (known, _) in zip(
        loader, FastLoader(store, 5, transform=ERASED, **given), strict=True
    ):
        assert images.dtype == dtype
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(images.cpu(), known)


@pytest.mark.parametrize("kind", [v2.MixUp, v2.CutMix])
def test_mixing_on_the_device_is_that_of_the_cpu_within_rounding(store: Path, kind: Any) -> None:
    given: dict[str, Any] = {"transform": EVAL, "seed": 2, "batch_transform": kind(num_classes=3)}
    # The numbers that mixing draws are the CPU's in both.
    pairs = zip(FastLoader(store, 6, device="cuda", **given), FastLoader(store, 6, **given))
    for (images, labels), (known, expected) in pairs:
        assert torch.allclose(images.cpu(), known, atol=1e-6)
        assert torch.allclose(labels.cpu(), expected)


# --- graphs, streams, threads ---------------------------------------------------------------------


def test_an_iterator_that_goes_while_a_graph_is_captured_leaves_the_graph_whole() -> None:
    static, graph = torch.ones(8, device="cuda"), torch.cuda.CUDAGraph()
    iterator: Any = iter(loader_of())
    next(iterator)
    late()
    with torch.cuda.graph(graph):
        doubled = static * 2
        del iterator
        again = doubled * 2
    graph.replay()
    assert again.sum().item() == 32
    assert all(right(batch, i).item() for i, (batch,) in enumerate(loader_of()))


def test_one_graph_is_replayed_while_batches_come() -> None:
    static = torch.zeros(ROWS, LENGTH, device="cuda")
    total, graph = torch.zeros((), device="cuda"), torch.cuda.CUDAGraph()
    loader = loader_of()
    iterator = iter(loader)
    first = next(iterator)[0]
    with torch.cuda.graph(graph):  # copies may still be under way
        total.copy_((static[:, -1] * 2).sum())
    sums = []
    for batch in [first, *(batch for (batch,) in iterator)]:
        static.copy_(batch)
        del batch
        graph.replay()
        sums.append(total.clone())
    assert [s.item() for s in sums] == [2.0 * sum(range(64 * i, 64 * i + 64)) for i in range(8)]


def _runtime() -> Any:
    """CUDA's runtime, as torch has loaded it: among the process's own names, or by its path."""
    runtime = ctypes.CDLL(None)
    if hasattr(runtime, "cudaStreamCreateWithFlags"):
        return runtime
    maps = Path("/proc/self/maps").read_text().splitlines()
    return ctypes.CDLL(next(line.split()[-1] for line in maps if "/libcudart" in line))


def _own_stream() -> tuple[torch.cuda.ExternalStream, Callable[[], None]]:
    """A stream that is the caller's own, and what destroys it."""
    runtime, handle = _runtime(), ctypes.c_void_p()
    assert runtime.cudaStreamCreateWithFlags(ctypes.byref(handle), 1) == 0
    stream = torch.cuda.ExternalStream(handle.value)

    def destroy() -> None:
        stream.synchronize()
        assert runtime.cudaStreamDestroy(handle) == 0

    return stream, destroy


def test_a_stream_of_the_callers_own_may_be_destroyed_and_the_loader_goes_on() -> None:
    loader = loader_of()
    stream, destroy = _own_stream()
    found = []
    with torch.cuda.stream(stream):
        for number, (batch,) in enumerate(loader):
            late()
            found.append(right(batch, number))
            del batch
        assert torch.stack(found).all().item()
    del found
    destroy()
    for _ in range(2):
        for number, (batch,) in enumerate(loader):
            late()
            assert right(batch, number).item()
            del batch


def test_two_loaders_may_share_a_side_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch has 32 streams, and gives them out in turn."""
    side, callers = torch.cuda.Stream(), [torch.cuda.Stream(), torch.cuda.Stream()]
    monkeypatch.setattr(cuda, "side_stream", lambda device: side)
    first, second = loader_of(), loader_of()
    found = []
    for _ in range(3):
        iterators = [iter(first), iter(second)]
        for number in range(8):
            for iterator, caller in zip(iterators, callers, strict=True):
                with torch.cuda.stream(caller):
                    (batch,) = next(iterator)
                    late()
                    found.append(right(batch, number))
                    del batch
    torch.cuda.synchronize()
    assert all(each.item() for each in found)


def test_each_of_two_threads_has_a_device_and_a_loader() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip(ONE_DEVICE)
    results: list[Any] = []

    def run(index: int) -> None:
        try:
            device = torch.device("cuda", index)
            torch.cuda.set_device(device)
            loader, found = loader_of(device="cuda"), []
            for _ in range(4):
                for number, (batch,) in enumerate(loader):
                    assert batch.device == device
                    late()
                    found.append(right(batch, number))
                    del batch
            results.append(torch.stack(found).all().item())
        except BaseException as error:  # asserted below, in the test's own thread
            results.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True, True]
    assert isinstance(loader_of(), DataLoader)
