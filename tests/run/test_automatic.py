"""num_workers="auto": the same batches, adjusted workers, decisions that can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info
from torchvision import transforms as T

from fake_time import FakeTime
from fastload import FastLoader
from fastload._run.governor import Governor, Setting
from fastload.errors import UsageError

CHAIN = T.Compose([T.RandomResizedCrop(32), T.ToTensor()])


def test_batches_are_those_of_a_fixed_number(store: Path) -> None:
    def epoch(workers: Any) -> list[torch.Tensor]:
        loader = FastLoader(
            store, batch_size=4, shuffle=True, seed=3, transform=CHAIN, num_workers=workers
        )
        return [images for _ in range(2) for images, _ in loader]

    for automatic, fixed in zip(epoch("auto"), epoch(2), strict=True):
        assert torch.equal(automatic, fixed)


def test_threads_and_batches_ahead_change_in_mid_epoch_without_changing_a_batch(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = iter(Setting(workers=1 + k % 5, prefetch=1 + k % 4) for k in range(10**6))
    monkeypatch.setattr("fastload._run.governor.Pace.batch", lambda self: next(settings))
    used = list(range(24)) * 8

    def loader(workers: Any) -> FastLoader:
        return FastLoader(
            store, batch_size=5, sampler=used, seed=1, transform=CHAIN, num_workers=workers
        )

    for automatic, fixed in zip(loader("auto"), loader(2), strict=True):
        assert torch.equal(automatic[0], fixed[0])
        assert torch.equal(automatic[1], fixed[1])


def test_a_heavy_step_is_noticed(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeTime(monkeypatch, "_base.trace", "_run.epoch_iterator", "_run.engine_maker")
    loader = FastLoader(store, batch_size=1, sampler=[0] * 150, transform=CHAIN, num_workers="auto")
    governor = loader.inspect().governor
    assert governor is not None
    governor.setting = Setting(workers=4, prefetch=2)
    for _ in loader:
        clock.computes(1000)  # whatever decoding took
    decisions = loader.stats()["decisions"]
    assert decisions[0].startswith("trying 1 workers"), decisions
    assert decisions[1].startswith("kept 1 workers"), decisions


class Numbers(Dataset[int]):
    """Which process made a sample."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        info = get_worker_info()
        assert info is not None
        return int(info.num_workers)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.filterwarnings("error:This DataLoader will create")  # nobody asked for so many
def test_processes_change_between_epochs_only(
    persistent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})
    loader = FastLoader(Numbers(), batch_size=4, num_workers="auto", persistent_workers=persistent)
    governor = loader.inspect().governor
    assert governor is not None
    for workers in (1, 3, 2):
        governor.window = lambda workers=workers, **_: Setting(workers=workers, prefetch=2)  # type: ignore[method-assign]
        seen = {int(number) for batch in loader for number in batch}
        if workers == 1:  # nothing was measured before the first epoch
            assert seen == {governor.setting.workers}
        else:
            assert seen == {workers}
        assert loader.num_workers == seen.pop()


def test_an_iterable_dataset_keeps_one_worker() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(10))

    loader = FastLoader(Stream(), batch_size=4, num_workers="auto")
    assert loader.num_workers == 1
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert list(map(torch.Tensor.tolist, loader)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_the_attribute_is_an_int_that_trainers_can_read(store: Path) -> None:
    loader = FastLoader(store, num_workers="auto")
    assert type(loader.num_workers) is int
    rebuilt = DataLoader(loader.dataset, num_workers=0)
    assert rebuilt.num_workers == 0
    with pytest.raises(UsageError, match="num_workers"):
        FastLoader(store, num_workers="many")


class Own(TensorDataset):
    """A dataset of the user's, which runs through torch's machinery."""


def test_little_memory_bounds_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastload._base.machine.memory.available", lambda: 200 << 20)
    monkeypatch.setattr("fastload._base.machine.cpu.available", lambda **_: 8)
    loader = FastLoader(Own(torch.arange(4)), num_workers="auto")
    assert loader.num_workers == 1
    assert isinstance(loader.inspect().governor, Governor)
    assert loader.inspect().governor.most.workers == 1
