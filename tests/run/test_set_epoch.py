"""Whoever sets the epoch last, on the loader or its sampler, decides, up to the first batch."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, SequentialSampler

from batches import TRAIN
from fastload import FastLoader, PackedDataset, UsageError
from fastload._sources.packed import augmentation_of
from sides import assert_same


class Drawn(Dataset):
    def __len__(self):
        return 23

    def __getitem__(self, i):
        return i, torch.rand(2)


def makers(store):
    packed = PackedDataset(store, TRAIN)
    return {
        "native": lambda **given: FastLoader(packed, 5, seed=3, **given),
        "caller": lambda **given: FastLoader(packed, 5, seed=3, num_workers=0, **given),
        "local": lambda **given: FastLoader(Drawn(), 5, seed=3, **given),
        "workers": lambda **given: FastLoader(Drawn(), 5, seed=3, num_workers=2, **given),
        "persistent": lambda **given: FastLoader(
            Drawn(), 5, seed=3, num_workers=1, persistent_workers=True, **given
        ),
    }


KINDS = ["native", "caller", "local", "workers", "persistent"]


@pytest.mark.parametrize("epoch", [2**62, -(2**62), 2**63, 2**100, 1.5, "2", None])
def test_an_epoch_that_cannot_be_counted_is_refused_and_changes_nothing(store, epoch):
    packed = PackedDataset(store, TRAIN, seed=3)
    loader = FastLoader(packed, 5, seed=3, shuffle=True)
    for part in (loader, loader.sampler, packed):
        with pytest.raises(
            UsageError, match=r"set_epoch: expected an (epoch below 2\*\*62|integer)"
        ):
            part.set_epoch(epoch)
    assert loader.state_dict()["epoch"] == 0
    assert_same(list(loader), list(FastLoader(store, 5, transform=TRAIN, seed=3, shuffle=True)))


def test_the_largest_epochs_and_those_of_numpy_can_be_iterated_and_saved(store):
    for epoch in (2**62 - 1, 1 - 2**62, np.int64(1)):
        loader = FastLoader(store, 5, transform=TRAIN, seed=3, shuffle=True)
        loader.set_epoch(epoch)
        expected = list(loader)
        loader.set_epoch(epoch)
        state = loader.state_dict()
        other = FastLoader(store, 5, transform=TRAIN, seed=3, shuffle=True)
        other.load_state_dict(state)
        assert_same(list(other), expected)


def halved(dataset):
    return DistributedSampler(dataset, num_replicas=2, rank=0)


def test_that_is_what_torchs_loader_does_without_workers(store):
    for kind in (DataLoader, FastLoader):
        sampler = halved(range(23))
        iterator = iter(kind(range(23), 4, sampler=sampler))
        sampler.set_epoch(2)
        got = [batch.tolist() for batch in iterator]
        if kind is DataLoader:
            expected = got
    assert got == expected


@pytest.mark.parametrize("kind", KINDS)
def test_told_late_no_more_is_drawn_from_the_generators(store, kind):
    """The batches, and what the generators give afterwards, are those of an epoch told early."""
    made = []
    for late in (False, True):
        torch.manual_seed(1)
        make = makers(store)[kind]
        generator = torch.Generator().manual_seed(2)
        sampler = halved(make().dataset)
        loader = make(sampler=sampler, generator=generator)
        loader.seed = None
        if not late:
            sampler.set_epoch(4)
        iterator = iter(loader)
        sampler.set_epoch(4)
        # The numbers of "local" are the user's own, and workers that persist have drawn some.
        batches = list(iterator)[: kind not in ("local", "persistent")]
        made.append([batches, torch.rand(1, generator=generator), torch.rand(1)])
    assert_same(made[1], made[0])


def test_where_the_epoch_told_cannot_begin_the_iterator_has_ended(store, monkeypatch):
    loader = makers(store)["native"](shuffle=True)
    iterator = iter(loader)
    loader.sampler.set_epoch(4)
    monkeypatch.setattr(loader.sampler, "permutation", lambda first: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        next(iterator)
    assert list(iterator) == []


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (1, False), (1, True)])
def test_told_late_the_generators_give_what_they_give_told_early(seed, workers, persistent):
    given = {"num_workers": workers, "persistent_workers": persistent}
    made = []
    for late in (False, True):
        torch.manual_seed(1)
        generator = torch.Generator().manual_seed(2)
        loader = FastLoader(Drawn(), 5, shuffle=True, seed=seed, generator=generator, **given)
        batches = []
        for epoch in (4, 7):
            if not late:
                loader.set_epoch(epoch)
            iterator = iter(loader)
            loader.set_epoch(epoch)
            # Without a seed those that samples draw are the workers' own, which may persist.
            batches += [batch[:1] if seed is None else batch for batch in iterator]
        made.append([batches, torch.rand(1, generator=generator), torch.rand(1)])
    assert_same(made[1], made[0])


def test_in_order_a_seed_keeps_torchs_sampler_and_its_epoch(store):
    loader = FastLoader(store, 5, seed=3)
    assert isinstance(loader.sampler, SequentialSampler)
    assert list(loader.sampler) == list(range(24))
    assert type(FastLoader(store, 5).sampler) is SequentialSampler
    # What trainers do who tell samplers alone.
    loader.sampler.set_epoch(4)
    assert loader.state_dict()["epoch"] == 4
    assert augmentation_of(loader.dataset) == (3, 4)


def test_of_two_iterators_the_later_one_is_told(store):
    loader, other = (makers(store)["native"](shuffle=True) for _ in range(2))
    other.set_epoch(4)
    expected = [list(makers(store)["native"](shuffle=True)), list(other)]
    iterators = [iter(loader), iter(loader)]
    loader.set_epoch(4)
    assert_same([list(iterator) for iterator in iterators], expected)


def test_of_two_iterators_the_earlier_one_keeps_its_epoch(store):
    loader, other = (makers(store)["native"](shuffle=True) for _ in range(2))
    expected = [list(other), list(other)]
    iterators = [iter(loader), iter(loader)]
    assert_same([list(iterator) for iterator in iterators], expected)


def test_an_iterator_outlives_its_loader(store):
    loader = makers(store)["native"](shuffle=True)
    expected = list(makers(store)["native"](shuffle=True))
    iterator = iter(loader)
    del loader
    gc.collect()
    assert_same(list(iterator), expected)
