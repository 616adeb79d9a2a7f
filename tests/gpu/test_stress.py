"""The transfer stage under schedules that are as bad as they get: every byte of every batch.

The caller reads each batch late (behind a kernel that only takes time) and lets go of it at once,
so memory that is written to too early, or seen too soon, is seen as wrong numbers.
"""

from __future__ import annotations

import contextlib
import gc
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset
from torchvision import transforms as v1

from batches import TRAIN
from bench.gpu_report import ONE_DEVICE
from fastload import FastLoader
from fastload._base.devices.cuda import Cuda
from fastload._base.devices.mover import Mover

pytestmark = pytest.mark.gpu

LENGTH = 40_000
SIZE = 16
ERASED = v1.Compose([*TRAIN.transforms, v1.RandomErasing(0.8, value="random")])


class Trees(Dataset[dict[str, Any]]):
    """Sample i: a tree of tensors that are i everywhere."""

    def __init__(self, count: int, bad: tuple[int, ...] = ()) -> None:
        self.count, self.bad = count, bad

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> dict[str, Any]:
        if i in self.bad:
            raise ValueError(f"sample {i}")
        return {
            "wide": torch.full((LENGTH,), float(i)),
            "parts": [torch.full((LENGTH // 2,), i, dtype=torch.int32), (i, torch.tensor(i))],
        }


class Checked:
    """Counts wrong values on the device, without waiting for it."""

    def __init__(self, device: torch.device, seed: int) -> None:
        self.wrong = torch.zeros((), dtype=torch.int64, device=device)
        self.random = random.Random(seed)

    def __call__(self, batch: dict[str, Any], number: int, scale: int = 1) -> None:
        if self.random.random() < 0.3:
            torch.cuda._sleep(self.random.randrange(4_000_000))
        parts = batch["parts"]
        ids = torch.arange(SIZE, device=self.wrong.device) + SIZE * number
        for tensor, times in ((batch["wide"], scale), (parts[0], 1), *((p, 1) for p in parts[1])):
            assert tensor.device == self.wrong.device
            expected = times * ids.view(-1, *[1] * (tensor.dim() - 1))
            self.wrong += (tensor != expected).sum()

    def right(self) -> bool:
        """Whether everything was; waits for the device."""
        torch.cuda.synchronize(self.wrong.device)
        return int(self.wrong.item()) == 0


def epoch(loader: FastLoader[Any], checked: Checked, scale: int = 1) -> int:
    number = -1
    for number, batch in enumerate(loader):
        checked(batch, number, scale)
        del batch
    return number + 1


def loader_of(
    count: int = 10 * SIZE, ahead: int | None = None, **arguments: Any
) -> FastLoader[Any]:
    bad = arguments.pop("bad", ())
    loader = FastLoader(Trees(count, bad), SIZE, **{"device": "cuda", **arguments})
    if ahead is not None:
        device = Cuda(torch.device("cuda", torch.cuda.current_device()))
        loader._loader_resources.mover.put(Mover(device, ahead))
    return loader


@pytest.mark.parametrize("ahead", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("own_stream", [False, True])
def test_trees_of_tensors_are_whole(ahead: int, own_stream: bool) -> None:
    checked = Checked(torch.device("cuda", 0), ahead)
    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        loader = loader_of(ahead=ahead)
        assert [epoch(loader, checked) for _ in range(3)] == [10] * 3
    assert checked.right()


def test_batch_transform_runs_before_a_batch_is_seen() -> None:
    def doubled(batch: dict[str, Any]) -> dict[str, Any]:
        torch.cuda._sleep(500_000)
        return {**batch, "wide": batch["wide"] * 2}

    checked = Checked(torch.device("cuda", 0), 1)
    loader = loader_of(batch_transform=doubled)
    assert [epoch(loader, checked, 2) for _ in range(3)] == [10] * 3
    assert checked.right()


def test_batches_that_are_on_the_device_already_are_whole() -> None:
    """``next`` makes them in the caller's stream, and the side stream reads them late."""
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")

    def collated(samples: list[torch.Tensor]) -> torch.Tensor:
        batch = torch.empty((SIZE, LENGTH), device="cuda").fill_(-1)
        torch.cuda._sleep(1_000_000)
        return batch.fill_(float(samples[0]))

    def doubled(batch: torch.Tensor) -> torch.Tensor:
        torch.cuda._sleep(2_000_000)
        return batch * 2

    rows = torch.arange(10.0)[:, None].repeat_interleave(SIZE, 0)
    loader = FastLoader(
        rows, SIZE, device="cuda", collate_fn=collated, batch_transform=doubled, num_workers=0
    )
    for _ in range(3):
        for number, batch in enumerate(loader):
            wrong += (batch != 2 * number).sum()
            del batch
    assert wrong.item() == 0


def test_a_batch_is_the_callers_to_write_to_and_to_keep() -> None:
    kept, loader = [], loader_of()
    for round_ in range(4):
        for number, batch in enumerate(loader):
            if number % 3 == round_ % 3:
                kept.append((number, batch["wide"]))
            else:
                torch.cuda._sleep(400_000)
                batch["wide"].fill_(-1)
    for number, wide in kept:
        expected = torch.arange(SIZE, device=wide.device) + SIZE * number
        assert (wide == expected[:, None]).all().item()


def test_nothing_is_allocated_in_a_thousand_batches() -> None:
    loader, wrong = loader_of(50 * SIZE), torch.zeros((), dtype=torch.int64, device="cuda")
    names = ("reserved_bytes.all.current", "num_device_alloc", "num_alloc_retries")
    figures = list[tuple[float, ...]]()
    for _ in range(21):
        for number, batch in enumerate(loader):
            if not figures and number < 10:
                torch.cuda._sleep(40_000_000)  # the loader gets as far ahead as it ever may
            wrong += batch["wide"][:, -1].long().sum() - SIZE * (SIZE * number * 2 + SIZE - 1) // 2
        del batch
        gc.collect()
        torch.cuda.synchronize()
        stats = torch.cuda.memory_stats()
        host = getattr(torch.cuda, "host_memory_stats", dict[str, int])()
        pinned = loader.inspect().mover.accelerator.memory()["pinned_MB"]
        figures.append((*(stats[name] for name in names), host.get("num_host_alloc", 0), pinned))
    # Two segments more at most: sizes differ, and how far the host is ahead. 750 batches follow.
    for most, found in zip(
        (2 * (20 << 20), 2, 0, 2, 0), zip(*figures[5:], strict=True), strict=True
    ):
        assert max(found) - min(found) <= most, figures
    assert wrong.item() == 0


def test_leaving_early_anywhere_leaves_no_copy() -> None:
    checked = Checked(torch.device("cuda", 0), 4)
    for leave in range(6):
        iterator: Any = iter(loader_of(ahead=leave % 3 + 1))
        for number in range(leave):
            checked(next(iterator), number)
        if leave % 2:
            iterator.close()
            assert len(iterator._epoch.maker._in_flight) == 0
        del iterator  # its slabs go, and may be mapped again
        assert epoch(loader_of(3 * SIZE), checked) == 3
    assert checked.right()


def test_errors_come_at_their_batch_and_those_around_it_are_whole() -> None:
    calls = []

    def failing(batch: dict[str, Any]) -> dict[str, Any]:
        calls.append(1)
        if len(calls) % 4 == 2:
            raise RuntimeError("of batch_transform")
        return batch

    checked = Checked(torch.device("cuda", 0), 5)
    for _ in range(3):
        iterator = iter(loader_of(12 * SIZE, batch_transform=failing))
        failed = 0
        for number in range(12):
            try:
                batch = next(iterator)
            except RuntimeError:
                failed += 1
                continue
            checked(batch, number)
            del batch
        assert failed == 3
        with pytest.raises(StopIteration):
            next(iterator)
        seen = 0
        with pytest.raises(ValueError, match="sample 70"):
            for seen, batch in enumerate(loader_of(bad=(70,))):
                checked(batch, seen)
        assert seen == 3
    assert checked.right()


def test_two_loaders_take_turns_in_streams_of_their_own() -> None:
    streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
    checks = [Checked(torch.device("cuda", 0), i) for i in range(2)]
    torch.cuda.synchronize()
    for _ in range(3):
        iterators = [iter(loader_of()) for _ in streams]
        for number in range(10):
            for stream, checked, iterator in zip(streams, checks, iterators, strict=True):
                with torch.cuda.stream(stream):
                    checked(next(iterator), number)
    assert all(checked.right() for checked in checks)


def test_a_loader_in_each_of_three_threads() -> None:
    results: list[Any] = []

    def run(seed: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            checked = Checked(torch.device("cuda", 0), seed)
            loader = loader_of(ahead=seed + 1)
            results.append([epoch(loader, checked) for _ in range(3)])
            results.append(checked.right())

    _in_threads([lambda seed=seed: run(seed) for seed in range(3)])
    assert len(results) == 6 and all(results)


def test_each_of_two_devices_has_its_loader() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip(ONE_DEVICE)
    devices = [torch.device("cuda", i) for i in range(2)]
    checks = [Checked(device, i) for i, device in enumerate(devices)]
    for _ in range(3):
        iterators = [iter(loader_of(device=device)) for device in devices]
        for number in range(10):
            for device, checked, iterator in zip(devices, checks, iterators, strict=True):
                batch = next(iterator)
                assert torch.cuda.current_device() == 0
                with torch.cuda.device(device):
                    checked(batch, number)
                del batch
    assert all(checked.right() for checked in checks)


@pytest.mark.parametrize("workers", [0, 2])
def test_images_of_the_device_stage_are_the_cpus(store: Path, workers: int) -> None:
    given = {"transform": ERASED, "seed": 4, "shuffle": True, "num_workers": workers}
    expected = [images.cuda() for images, _ in FastLoader(store, 5, **given)]
    loader, wrong = FastLoader(store, 5, device="cuda", **given), torch.zeros((), device="cuda")
    for _ in range(2):
        loader.set_epoch(0)
        with _another_stream(), contextlib.closing(iter(loader)) as batches:
            for known, (images, _) in zip(expected, batches, strict=True):
                torch.cuda._sleep(300_000)
                wrong += (images != known).sum()
                del images
    assert wrong.item() == 0


@contextlib.contextmanager
def _another_stream() -> Iterator[None]:
    stream, caller = torch.cuda.Stream(), torch.cuda.current_stream()
    stream.wait_stream(caller)
    with torch.cuda.stream(stream):
        yield
    caller.wait_stream(stream)


def _in_threads(works: list[Callable[[], None]]) -> None:
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # raised below, in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
