"""Random programs over one loader: epochs told, states saved and loaded, loops begun and left.

A model of the loader, which only counts, knows the epoch and the place of each batch. Whoever tells
an epoch or loads a state last decides, up to the first batch of an iterator. The batches of an
epoch are the same for every number of threads or processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, DistributedSampler

from batches import TRAIN
from fastload import FastLoader, PackedDataset
from sides import assert_same


class Drawn(Dataset):
    """Out of all three global generators."""

    def __len__(self):
        return 23

    def __getitem__(self, i):
        return i, torch.rand(2), random.random(), np.random.rand()


WORKERS = {"num_workers": 2}
PERSISTENT = {"num_workers": 1, "persistent_workers": True}
PACKED = {"native": {}, "caller": {"num_workers": 0}}
OWN = {"local": {}, "workers": WORKERS, "persistent": PERSISTENT}

ORDERS = {
    "in order": lambda dataset: {},
    "shuffled": lambda dataset: {"shuffle": True},
    "list": lambda dataset: {"sampler": list(range(22, -1, -1))},
    "divided": lambda dataset: {"sampler": DistributedSampler(dataset, 2, 0)},
}


class Makes:
    """Loaders of one dataset in one order."""

    def __init__(self, store, kinds, order):
        self.store, self.kinds, self.order = store, kinds, order

    def __call__(self, kind):
        given = {**self.kinds[kind], **ORDERS[self.order](range(23))}
        if self.kinds is OWN:
            return FastLoader(Drawn(), 5, seed=3, **given)
        return FastLoader(PackedDataset(self.store, TRAIN), 5, seed=3, **given)

    @functools.cache  # noqa: B019 - as long as the module
    def epoch(self, epoch):
        """All its batches, of a loader that is told no more than that."""
        loader = self("local" if self.kinds is OWN else "caller")
        loader.set_epoch(epoch)
        return list(loader)


@dataclasses.dataclass
class Place:
    """Where an iterator is: the number of its epoch, and of the next batch there."""

    epoch: int
    batch: int
    begun: bool = False
    ended: bool = False


class Model:
    """What is known of a loader: its iterators, the latest last; where the next one begins."""

    def __init__(self):
        self.iterators = []
        self.next = Place(0, 0)
        self.loaded = False  # whether a state was, since the latest one began

    def iter(self):
        self.iterators.append(self.next)
        self.next, self.loaded = Place(self.next.epoch + 1, 0), False

    def tell(self, epoch):
        """Nothing, if it is there already, as where a state was loaded before."""
        with self.coming():
            if self.next.epoch != epoch:
                self.next = Place(epoch, 0)

    def load(self, place):
        with self.coming():
            self.next, self.loaded = place, True

    @contextlib.contextmanager
    def coming(self):
        """Within it ``next`` is where the latest iterator begins, if it has not begun."""
        begun = not self.iterators or self.iterators[-1].begun
        if not begun:
            self.next = self.iterators.pop()
        yield
        if not begun:
            self.iter()

    def state(self):
        if self.loaded or not self.iterators or self.iterators[-1].ended:
            return self.next
        return self.iterators[-1]


class Run:
    """A loader and its model, which a program changes alike."""

    def __init__(self, makes, kind):
        self.makes = makes
        self.saved = None
        self.begin(kind)

    def begin(self, kind):
        self.kind, self.loader, self.model = kind, self.makes(kind), Model()
        self.iterators = []

    def iter(self):
        if self.iterators and not self.model.iterators[-1].begun:
            self.take(-1, 1)  # of two that have not begun, which one is told is no promise
        if self.makes.order == "divided" and not self.model.next.batch:
            self.loader.set_epoch(self.model.next.epoch)  # torch's sampler stays at its epoch
        if self.kind == "persistent":  # its iterators are one
            self.iterators.clear()
            self.model.iterators.clear()
        self.iterators.append(iter(self.loader))
        self.model.iter()

    def take(self, which, count):
        """The next batches of the latest iterator (-1), or of the one before it."""
        if len(self.iterators) < -which:
            return
        iterator, place = self.iterators[which], self.model.iterators[which]
        expected = self.makes.epoch(place.epoch)
        for _ in range(count):
            place.begun = True
            batch = next(iterator, None)
            if place.batch == len(expected):
                place.ended = True
                assert batch is None
                return
            assert_same(batch, expected[place.batch])
            place.batch += 1

    def tell(self, epoch, by_sampler):
        sampler = self.loader.sampler
        told = sampler if by_sampler and hasattr(sampler, "set_epoch") else self.loader
        if isinstance(told, DistributedSampler) and told.epoch == epoch:
            return  # which nobody sees
        told.set_epoch(epoch)
        self.model.tell(epoch)

    def save(self):
        state = self.model.state()
        self.saved = self.loader.state_dict(), state.epoch, state.batch
        assert self.saved[0]["epoch"] == state.epoch

    def load(self, kind):
        """The state that was saved last, into this loader or into another one."""
        if self.saved is None:
            return
        state, epoch, batch = self.saved
        if kind is not None:
            self.begin(sorted(self.makes.kinds)[kind % len(self.makes.kinds)])
        self.loader.load_state_dict(state)
        self.model.load(Place(epoch, batch))
        if self.makes.order == "divided" and not batch:
            self.loader.set_epoch(epoch)  # torch's sampler stays at its epoch


steps = st.one_of(
    st.just(("iter",)),
    st.tuples(st.just("take"), st.sampled_from([-1, -1, -1, -2]), st.integers(1, 6)),
    st.tuples(st.just("tell"), st.integers(0, 4), st.booleans()),
    st.just(("save",)),
    st.tuples(st.just("load"), st.sampled_from([None, 0, 1, 2])),
)
programs = st.lists(steps, min_size=3, max_size=12)


@pytest.fixture(scope="module")
def makes(small_store):
    return functools.cache(lambda own, order: Makes(small_store, OWN if own else PACKED, order))


def run(makes, kind, program):
    ran = Run(makes, kind)
    for step, *values in program:
        getattr(ran, step)(*values)
    ran.iter()
    ran.take(-1, 7)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", [*PACKED, "local"])
@given(program=programs)
@settings(max_examples=settings.default.max_examples // 2)
def test_threads_give_the_batches_of_the_epoch_that_was_told_last(makes, kind, order, program):
    run(makes(kind in OWN, order), kind, program)


@pytest.mark.parametrize("kind", ["workers", "persistent"])
@given(order=st.sampled_from([*ORDERS]), program=programs)
@settings(max_examples=settings.default.max_examples // 2)
def test_so_do_processes(makes, kind, order, program):
    run(makes(True, order), kind, program)
