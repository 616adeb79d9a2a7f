"""A user's Dataset in this process: torch's iterator, with nothing between it and the dataset."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from fastload import FastLoader
from fastload._base.machine import cpu
from sides import side_by_side


class Numbers(Dataset):
    def __len__(self):
        return 5

    def __getitem__(self, i):
        return torch.tensor(float(i))


class Large(Dataset):
    """Tensors that are worth a slab, of which the third is odd."""

    def __init__(self, odd):
        self.odd = odd

    def __len__(self):
        return 4

    def __getitem__(self, i):
        image = torch.full((3, 300, 300), float(i))
        return self.odd(image) if i == 2 else image


def test_the_iterator_has_what_torchs_has():
    loader = FastLoader(Numbers(), batch_size=2)
    iterator = iter(loader)
    assert type(iterator._dataset_fetcher) is _MapDatasetFetcher
    assert len(iterator) == 3
    next(iterator)
    assert iterator._num_yielded == 1


def test_the_profiler_sees_what_it_sees_of_torch():
    seen = []
    for kind in (DataLoader, FastLoader):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for _ in kind(Numbers(), batch_size=2):
                pass
        events = {e.key: e.count for e in profile.key_averages()}
        seen.append({key: count for key, count in events.items() if "DataLoader" in key})
    assert seen[0] == seen[1]
    assert seen[0]


@pytest.mark.parametrize(
    "odd",
    [
        lambda t: t[:, :200],
        lambda t: t.double(),
        lambda t: t.requires_grad_(),
        lambda t: t.to_sparse(),
        lambda t: torch.nn.Parameter(t),
        lambda t: None,
    ],
    ids=["shape", "dtype", "gradients", "sparse", "subclass", "none"],
)
def test_large_samples_that_do_not_fit_together_are_as_with_torch(odd):
    side_by_side(Large(odd), 2, batch_size=4)
    with torch.no_grad():
        side_by_side(Large(odd), 1, batch_size=4)


def test_waiting_is_read_every_10_ms_and_counts_until_the_next_reading(monkeypatch):
    readings = iter([1.0, 1.001, 2.0, 2.004])
    monkeypatch.setattr(cpu, "wanted", lambda: next(readings))
    monkeypatch.setattr(cpu, "_WAITING_TIMES", 0)  # however long a reading takes
    waiting = cpu.Waiting()
    found = []
    for begin_ms, end_ms in [(0, 4), (5, 6), (6, 9), (15, 19)]:
        waiting.begin(begin_ms * 10**6)
        found.append(waiting.end(begin_ms * 10**6, end_ms * 10**6) / 1e6)
    assert found == pytest.approx([3.0, 0.75, 2.25, 0.0], abs=1e-3)


def test_two_threads_that_share_a_clock_of_waiting_do_not_disturb_each_other(monkeypatch):
    shared = cpu.Waiting()
    shared.begin(0)

    def read():  # the reading at one thread's end, in which the other's comes to its end
        monkeypatch.setattr(cpu, "wanted", lambda: -1.0)
        shared.end(0, 10**6)
        return -1.0

    monkeypatch.setattr(cpu, "wanted", read)
    assert 0 <= shared.end(0, 10**6) <= 10**6


def test_an_error_that_is_stop_iteration_ends_the_epoch_as_in_torch():
    class Stops(Numbers):
        def __getitem__(self, i):
            if i == 3:
                raise StopIteration
            return i

    side_by_side(Stops(), 2, batch_size=2)
