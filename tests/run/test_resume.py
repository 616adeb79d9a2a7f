"""state_dict and load_state_dict: the next batch after a checkpoint is the one that would come."""

from __future__ import annotations

import copy
import io
import json
import random

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from batches import EVAL, TRAIN
from combinations import combinations
from fastload import FastLoader, UsageError
from sides import assert_same


class Random(Dataset):
    """Samples that draw from all three global generators."""

    def __len__(self):
        return 23

    def __getitem__(self, i):
        return i, torch.rand(2), random.random(), np.random.rand()


def resumed(make, steps, epochs=2, load=None):
    """Batches after ``steps`` steps: of an uninterrupted loader, and of one that was resumed."""
    torch.manual_seed(3)
    loader, expected, state, taken = make(), [], None, 0
    for _ in range(epochs):
        for batch in loader:
            if state is not None:
                expected.append(copy.deepcopy(batch))
            taken += 1
            if taken == steps:
                stream = io.BytesIO()
                torch.save(loader.state_dict(), stream)
                stream.seek(0)
                state = torch.load(stream, weights_only=True)
    other = (load or make)()
    torch.manual_seed(4)  # the state knows better
    other.load_state_dict(state)
    assert_same(other.state_dict()["batches"], state["batches"])
    first = next(iter(other), None)  # none where the state is of the end of an epoch
    other.load_state_dict(state)
    got = []
    while len(got) < len(expected):
        got += [copy.deepcopy(batch) for batch in other]
    if first is not None:
        assert_same(first, expected[0])
    return expected, got


@pytest.mark.parametrize("engine", ["native", "torch"])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_packed_store_with_random_transforms(store, engine, steps):
    def make():
        return FastLoader(store, 5, shuffle=True, transform=TRAIN, seed=2, engine=engine)

    expected, got = resumed(make, steps)
    assert len(expected) == 10 - steps
    assert_same(got, expected)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("steps", [2, 7])
def test_a_packed_store_without_a_seed_draws_order_and_augmentation_again(store, persistent, steps):
    def make():
        return FastLoader(
            store,
            5,
            shuffle=True,
            transform=TRAIN,
            generator=torch.Generator().manual_seed(1),
            num_workers=1,
            persistent_workers=persistent,
        )

    expected, got = resumed(make, steps)
    assert_same(got, expected)


SAMPLERS = {
    "shuffle": lambda g: {"shuffle": True, "generator": g},
    "random": lambda g: {"sampler": RandomSampler(range(23), True, 40, generator=g)},
    "weighted": lambda g: {"sampler": WeightedRandomSampler(torch.ones(23), 31, generator=g)},
}


# An order is drawn in the training process, whoever makes the samples.
@pytest.mark.parametrize(
    ("workers", "sampler"),
    [(0, sampler) for sampler in SAMPLERS]
    + [
        pytest.param(1, sampler, marks=pytest.mark.long if sampler != "random" else ())
        for sampler in SAMPLERS
    ],
)
def test_torchs_samplers_with_generators(workers, sampler):
    def make():
        order = SAMPLERS[sampler](torch.Generator().manual_seed(5))
        return FastLoader(range(23), batch_size=4, num_workers=workers, **order)

    for steps in (1, 7):
        expected, got = resumed(make, steps)
        assert_same(got, expected)


def test_the_global_generator_is_left_alone():
    torch.manual_seed(8)
    loader = FastLoader(range(23), 4, shuffle=True)
    iterator = iter(loader)
    expected = [next(iterator) for _ in range(6)]
    loader = FastLoader(range(23), 4, shuffle=True)
    torch.manual_seed(8)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    torch.manual_seed(100)
    other = FastLoader(range(23), 4, shuffle=True)
    other.load_state_dict(state)
    got = list(other)
    assert_same(got, expected[1:])
    after = torch.rand(3)
    torch.manual_seed(100)
    assert torch.equal(after, torch.rand(3))


class Stream(IterableDataset):
    """Each worker counts upwards by itself; ``own``: with a state of its own."""

    def __iter__(self):
        info = get_worker_info()
        worker = 0 if info is None else info.id
        shuffled = torch.randperm(9 + 4 * worker)
        for i in shuffled.tolist():
            yield worker, i, random.random()


class Stateful(IterableDataset):
    def __init__(self):
        self.at = 0
        self.drawn = 0

    def __iter__(self):
        worker = get_worker_info()
        while self.at < 9 + 4 * (worker.id if worker else 0):
            self.at += 1
            self.drawn += 1
            yield self.at
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


@pytest.mark.parametrize("kind", [Stream, Stateful])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("steps", [1, 2])
def test_iterable_datasets_by_their_state_or_by_replay(kind, workers, steps):
    def make():
        return FastLoader(kind(), 3, num_workers=workers, seed=1)

    expected, got = resumed(make, steps, epochs=1)
    assert_same(got, expected)


class Torn(IterableDataset):
    """Every fourth sample raises, and what comes after it can still be had."""

    def __init__(self, also=()):
        self.also = also

    def __iter__(self):
        return Tearing(self.also)


class Tearing:
    def __init__(self, also):
        self.at, self.also = -1, also

    def __iter__(self):
        return self

    def __next__(self):
        self.at += 1
        if self.at == 24:
            raise StopIteration
        if self.at % 8 == 3 or self.at in self.also:
            raise ValueError(f"sample {self.at}")
        return self.at


def gone_on_with(iterator, steps=None):
    """What ``next`` gives, errors among it, ``steps`` times or to the end."""
    got = []
    while steps is None or len(got) < steps:
        try:
            got.append(next(iterator).tolist())
        except ValueError as error:
            got.append(str(error).splitlines()[-1])
        except StopIteration:
            break
    return got


@pytest.mark.parametrize(
    ("arguments", "seed"),
    [({}, None), ({}, 1), ({"num_workers": 2}, 1),
     pytest.param({"num_workers": 2}, None, marks=pytest.mark.long)],
)  # fmt: skip
def test_what_raised_and_was_gone_on_with_does_not_raise_again_in_the_replay(arguments, seed):
    def make(*also):
        return FastLoader(Torn(also), 2, seed=seed, **arguments)

    for steps in (3, 5, 6):
        loader = make()
        iterator = iter(loader)
        gone_on_with(iterator, steps)
        state = loader.state_dict()
        other = make()
        other.load_state_dict(state)
        assert gone_on_with(iter(other)) == gone_on_with(iterator)
    other = make(1)
    other.load_state_dict(state)
    with pytest.raises(ValueError, match=r"sample \d+"):  # one that did not raise before
        next(iter(other))


def test_an_iterator_with_a_state_of_its_own_is_not_replayed():
    class Counter:
        def __init__(self):
            self.at = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.at += 1
            if self.at > 20:
                raise StopIteration
            return self.at

        def state_dict(self):
            return {"at": self.at}

        def load_state_dict(self, state):
            self.at = state["at"]

    class Counting(IterableDataset):
        def __iter__(self):
            return Counter()

    expected, got = resumed(lambda: FastLoader(Counting(), 3), 2, epochs=1)
    assert_same(got, expected)


@pytest.mark.parametrize(("before", "named", "after"), [(2, "2", 0), (0, "0 or 1", 2)])
def test_an_iterable_dataset_needs_as_many_workers(before: int, named: str, after: int):
    loader = FastLoader(Stream(), 3, num_workers=before)
    next(iter(loader))
    other = FastLoader(Stream(), 3, num_workers=after)
    other.load_state_dict(loader.state_dict())
    with pytest.raises(UsageError, match=f"of num_workers={named},.*got num_workers={after}:"):
        iter(other)


def shares(world, state=None, **arguments):
    loaders = []
    for rank in range(world):
        loader = FastLoader(range(50), seed=6, shuffle=True, shard=(rank, world), **arguments)
        if state is not None:
            loader.load_state_dict(state)
        loaders.append(loader)
    return loaders


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 4), (4, 1), (1, 3)])
def test_on_another_number_of_ranks_no_sample_is_lost_or_repeated(before, after):
    loaders = shares(before, batch_size=3)
    seen, state = [], None
    for loader in loaders:
        iterator = iter(loader)
        seen += torch.cat([next(iterator) for _ in range(3)]).tolist()
        state = loader.state_dict()
    rest = [torch.cat(list(loader)).tolist() for loader in shares(after, state, batch_size=5)]
    assert len({len(part) for part in rest}) == 1
    padding = -(50 - 9 * before) % after
    every = seen + [i for part in rest for i in part]
    assert len(every) == 50 + padding
    assert set(every) == set(range(50))


def test_ranks_of_a_sampler_inside_a_batch_sampler_are_in_the_state():
    def loader(ranks):
        inner = DistributedSampler(Random(), num_replicas=ranks, rank=0)
        return FastLoader(Random(), batch_sampler=BatchSampler(inner, 3, False))

    two = loader(2)
    next(iter(two))
    state = two.state_dict()
    assert state["order"]["world_size"] == 2
    same = loader(2)
    same.load_state_dict(state)
    assert len(list(same)) == 3
    other = loader(3)
    other.load_state_dict(state)
    with pytest.raises(UsageError, match="another world_size: expected 2, got 3"):
        iter(other)


def test_between_epochs_and_before_the_first_it_is_the_beginning_of_one():
    def make():
        return FastLoader(range(9), 2, shuffle=True, generator=torch.Generator().manual_seed(0))

    loader = make()
    first = loader.state_dict()
    epochs = [list(loader) for _ in range(3)]
    loader = make()
    list(loader)
    second = loader.state_dict()
    for state, expected in ((first, epochs[0]), (second, epochs[1])):
        other = FastLoader(range(9), 2, shuffle=True, generator=torch.Generator())
        other.load_state_dict(state)
        assert_same(list(other), expected)


def test_a_sampler_with_a_state_of_its_own_is_given_it():
    class Sampler:
        def __init__(self, start):
            self.start = start

        def __iter__(self):
            order = random.Random(self.start).sample(range(12), 12)
            self.start += 1
            return iter(order)

        def __len__(self):
            return 12

        def state_dict(self):
            return {"start": self.start}

        def load_state_dict(self, state):
            self.start = state["start"]

    loader = FastLoader(range(12), 2, sampler=Sampler(3))
    list(loader)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    expected = list(iterator)
    other = FastLoader(range(12), 2, sampler=Sampler(0))
    other.load_state_dict(state)
    assert_same(list(other), expected)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": 2}, "another seed"),
        ({"dataset": range(8)}, "another number of samples"),
        ({"shuffle": False}, "another order: expected shuffled, got ascending"),
    ],
)
def test_a_state_of_another_loader_is_refused(changed, message):
    arguments = {"dataset": range(9), "batch_size": 2, "shuffle": True, "seed": 1}
    loader = FastLoader(**arguments)
    next(iter(loader))
    other = FastLoader(**{**arguments, **changed})
    other.load_state_dict(loader.state_dict())
    with pytest.raises(UsageError, match=message):
        iter(other)


def test_what_is_no_state_is_refused():
    loader = FastLoader(range(9), 2)
    for state in ({}, {"version": 99}, None):
        with pytest.raises(UsageError, match=r"FastLoader\.state_dict"):
            loader.load_state_dict(state)


def test_only_an_iteration_needs_the_length_of_the_dataset():
    """As in torch: accelerate reads the state of each loader, also of one that is never run."""

    class Endless:
        def __getitem__(self, index):
            return index

    loader = FastLoader(Endless(), 2)
    state = loader.state_dict()
    with pytest.raises(TypeError, match="no len"):
        next(iter(loader))
    loader.load_state_dict(state)
    with pytest.raises(TypeError, match="no len"):
        next(iter(loader))


def test_a_state_with_a_seed_of_numpy_is_json():
    loader = FastLoader(range(9), 2, shuffle=True, seed=np.int64(3))
    assert json.loads(json.dumps(loader.state_dict()))["order"]["seed"] == 3


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": None},
        {"samples": "many"},
        {"generators": ["no base64"]},
        {"generators": [""]},
        {"workers": [5]},
        {"batches": float("inf")},
    ],
)
def test_a_damaged_state_is_refused(change):
    loader = FastLoader(range(9), 2)
    with pytest.raises(UsageError, match="the state is damaged"):
        loader.load_state_dict({**loader.state_dict(), **change})
    with pytest.raises(UsageError, match="the state is damaged"):
        loader.load_state_dict({"version": 2})
    assert_same([len(batch) for batch in loader], [2, 2, 2, 2, 1])  # it was not touched


@pytest.mark.skipif(not hasattr(torch, "accelerator"), reason="in_order came with torch 2.6")
def test_batches_without_an_order_have_no_state():
    loader = FastLoader(range(9), 2, num_workers=1, in_order=False)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(UsageError, match="in_order=True"):
        loader.state_dict()


def test_a_sampler_that_repeats_augments_each_time_anew_after_resuming_too(store):
    def make():
        sampler = [0, 1, 0, 2, 0, 1, 3, 0]
        return FastLoader(store, 2, sampler=sampler, transform=TRAIN, seed=4)

    expected, got = resumed(make, 2, epochs=1)
    assert_same(got, expected)
    assert not torch.equal(expected[0][0][0], expected[1][0][1])


def test_a_distributed_sampler_is_told_the_epoch_that_it_had(store):
    """Lightning asks for the order of the epoch it resumes before it tells the sampler."""

    def make():
        sampler = DistributedSampler(range(24), 2, 1, seed=4)
        return FastLoader(store, 3, transform=EVAL, sampler=sampler)

    loader = make()
    loader.sampler.set_epoch(7)
    iterator = iter(loader)
    next(iterator)
    other = make()
    other.load_state_dict(loader.state_dict())
    assert other.sampler.epoch == 7
    assert_same(list(other), list(iterator))
    in_order = FastLoader(store, 3, transform=EVAL)
    other.sampler.set_epoch(9)  # before the state: a state that does not fit is not left out
    other.load_state_dict(in_order.state_dict() | {"batches": 1})
    with pytest.raises(UsageError, match="the state was saved with another"):
        next(iter(other))


@pytest.mark.parametrize(
    ("make", "how"),
    combinations(
        ["user", "native"],
        [
            ((2, True), (2, True)),
            ((2, True), (0, False)),
            ((2, False), (2, True)),
            ((0, False), (2, True)),
        ],
    ),
)
def test_workers_that_persist_do_not_move_the_generator(store, make, how):
    """Torch draws their seed once, every other worker's in each epoch: before the order."""
    saved, used = how

    def loader(how):
        workers, persistent = how
        given = {"num_workers": workers, "persistent_workers": persistent, "shuffle": True}
        given["generator"] = torch.Generator().manual_seed(1)
        if make == "native":
            return FastLoader(store, 5, transform=TRAIN, **given)
        return FastLoader(range(23), 5, **given)

    for steps in (2, 12):  # in the first and third epoch
        rest = 15 - steps if saved == used else -steps % 5
        expected, got = resumed(lambda: loader(saved), steps, epochs=3, load=lambda: loader(used))
        assert_same(got[:rest], expected[:rest])
