"""Samplers that were replaced or changed after the loader was made: torch reads what they are."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler
from torchvision.datasets import ImageFolder

from batches import EVAL
from combinations import combinations
from fastload import FastLoader, PackedDataset
from fastload.errors import UsageError
from sides import assert_same


class Numbers(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        return i, i


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(24))


class Repeat:
    """A batch sampler that never ends."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


class Pairs:
    def __iter__(self):
        return iter([[5, 3], [1], [2, 2, 0]])


def endless(parent):
    """A loader with one iterator for all epochs, as in timm and ultralytics."""

    class Endless(parent):
        def __init__(self, *given, **named):
            super().__init__(*given, **named)
            name = "sampler" if self.batch_sampler is None else "batch_sampler"
            object.__setattr__(self, name, Repeat(getattr(self, name)))
            self.iterator = super().__iter__()

        def __len__(self):
            order = self.sampler if self.batch_sampler is None else self.batch_sampler
            return len(order.sampler)

        def __iter__(self):
            for _ in range(len(self)):
                yield next(self.iterator)

    return Endless


DATASETS = {
    "own": lambda photos, store: Numbers(),
    "images": lambda photos, store: ImageFolder(photos, EVAL),
    "packed": lambda photos, store: PackedDataset(store, transform=EVAL),
}


@pytest.fixture(params=DATASETS)
def dataset(request, photos, store):
    return DATASETS[request.param](photos, store)


def workers_of(kind, ours):
    """DataLoader has none: its order is the same with any number, which it has to fork."""
    return ours if issubclass(kind, FastLoader) else 0


def generator():
    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize(
    ("size", "shuffle", "workers"), [(5, True, 2), (5, False, 0), (None, True, 0)]
)
def test_a_loader_that_never_ends_gives_epoch_after_epoch(dataset, size, shuffle, workers):
    def epochs(parent):
        torch.manual_seed(1)
        given = {"num_workers": workers_of(parent, workers), "generator": generator()}
        loader = endless(parent)(dataset, size, shuffle, **given)
        return [list(loader) for _ in range(3)]

    assert_same(epochs(FastLoader), epochs(DataLoader))


CHANGES = {
    "batch_size": lambda loader: setattr(loader.batch_sampler, "batch_size", 7),
    "drop_last": lambda loader: setattr(loader.batch_sampler, "drop_last", True),
    "sampler": lambda loader: setattr(loader.batch_sampler, "sampler", [4, 4, 1, 0, 9, 2]),
    "data_source": lambda loader: setattr(loader.sampler, "data_source", range(11)),
    "shuffled": lambda loader: setattr(
        loader.batch_sampler, "sampler", RandomSampler(range(6), generator=generator())
    ),
    "another batch_sampler": lambda loader: object.__setattr__(loader, "batch_sampler", Pairs()),
    "another of torch's": lambda loader: object.__setattr__(
        loader,
        "batch_sampler",
        BatchSampler(RandomSampler(range(9), generator=generator()), 2, False),
    ),
    "the loader's own again": lambda loader: object.__setattr__(
        loader, "batch_sampler", BatchSampler(loader.sampler, 10, True)
    ),
    "attributes that torch does not read": lambda loader: [
        object.__setattr__(loader, name, value)
        for name, value in (("batch_size", 9), ("drop_last", True), ("sampler", [1, 2]))
    ],
}


@pytest.mark.parametrize(
    ("change", "dataset", "arguments"),
    combinations(
        [*CHANGES], [*DATASETS], [{}, {"num_workers": 2, "shuffle": True}, {"seed": 0}], rounds=3
    ),
    indirect=["dataset"],
    ids=str,
)
def test_the_next_epoch_has_the_order_that_the_samplers_have_now(dataset, change, arguments):
    def epochs(kind):
        torch.manual_seed(1)
        named = {"num_workers": 0, **arguments}
        if kind is DataLoader:
            named.pop("seed", None)
            named["num_workers"] = 0  # its order is the same with any number, which it has to fork
        loader = kind(dataset, 5, **named)
        before = list(loader)
        CHANGES[change](loader)
        return [before, len(loader) if hasattr(loader.batch_sampler, "__len__") else 0, *loader]

    assert_same(epochs(FastLoader), epochs(DataLoader))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("change", ["batch_size", "drop_last", "endless"])
def test_a_stream_has_batches_of_the_size_that_its_batch_sampler_has_now(change, workers):
    def epochs(kind):
        loader = kind(Stream(), 5, num_workers=workers)
        if change == "endless":
            object.__setattr__(loader, "batch_sampler", Repeat(loader.batch_sampler))
        else:
            CHANGES[change](loader)
        return [*loader, *loader]

    assert_same(epochs(FastLoader), epochs(DataLoader))


def test_a_changed_order_resumes_at_its_next_batch(dataset):
    def loader():
        made = FastLoader(dataset, 5, shuffle=True, seed=2)
        made.batch_sampler.batch_size = 7
        return made

    whole = list(loader())
    first = loader()
    next(iter(first))
    second = loader()
    second.load_state_dict(first.state_dict())
    assert_same(list(second), whole[1:])


@pytest.mark.parametrize("copied", [copy.copy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_knows_that_its_order_was_replaced(dataset, copied):
    loader = FastLoader(dataset, 5, shuffle=True, seed=2)
    same, other = copied(loader), copied(loader)
    object.__setattr__(other, "batch_sampler", Pairs())
    assert_same(list(same), list(loader))
    expected = list(DataLoader(dataset, batch_sampler=Pairs()))
    for one in (other, copied(other)):
        assert_same(list(one), expected)


def test_a_seeded_loader_that_never_ends_is_told_its_epoch(dataset):
    loader = endless(FastLoader)(dataset, 24, shuffle=True, seed=2, num_workers=0)
    loader.set_epoch(1)
    other = FastLoader(dataset, 24, shuffle=True, seed=2)
    other.set_epoch(1)
    assert_same(list(loader), list(other))


def test_batches_of_groups_can_be_repeated(store):
    arguments = {"batch_by": [i % 2 for i in range(24)], "transform": EVAL, "shuffle": True}
    loader = endless(FastLoader)(store, 5, **arguments)
    # as for any sampler of ours, the loader says which epoch it is
    expected = list(FastLoader(store, 5, **arguments))
    assert_same([list(loader), list(loader)], [expected, expected])


def test_ranks_do_not_all_read_everything_after_their_order_was_replaced(dataset):
    loader = FastLoader(dataset, 5, shard=(0, 2))
    object.__setattr__(loader, "batch_sampler", Repeat(loader.batch_sampler))
    with pytest.raises(UsageError, match=r"replaced by a Repeat.*DistributedSampler"):
        iter(loader)


class Begins:
    """It is its own iterator, and begins anew with each ``iter``, as Lhotse's samplers do."""

    def __init__(self, items):
        self.items, self.begun = items, 0

    def __iter__(self):
        self.begun += 1
        self.left = iter(self.items)
        return self

    def __next__(self):
        return next(self.left)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "given",
    [
        lambda: {"sampler": Begins([[3, 1], [2]]), "batch_size": None, "collate_fn": list},
        lambda: {"batch_sampler": Begins([[3, 1], [2]])},
    ],
    ids=["lists", "batches"],
)
def test_a_sampler_is_begun_as_often_as_by_torch(given, workers):
    class Chosen(Numbers):
        def __getitem__(self, i):
            return i

    def counted(kind):
        arguments = given()
        loader, seen = kind(Chosen(), num_workers=workers, **arguments), []
        for _ in range(2):
            batches = iter(loader)
            seen += [arguments.get("sampler", arguments.get("batch_sampler")).begun, list(batches)]
        return seen

    assert_same(counted(FastLoader), counted(DataLoader))
