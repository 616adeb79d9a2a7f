"""Step A: the order of a loader is DataLoader's."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from fastload import FastLoader, Mix
from fastload._run.drawing import index_batches, index_lists
from fastload._run.order import Batches, Division, InOrder, SeededSampler, Windows, order_of
from fastload._run.shard import Shard
from fastload._sources.packed import augmentation_of


def torch_batches(batch_sampler):
    return [list(batch) for batch in batch_sampler]


def test_a_dataset_that_has_grown_before_the_first_batch_is_read_as_torch_reads_it():
    data = [0]
    for inner in (SequentialSampler(data), RandomSampler(data)):
        batches = index_lists(BatchSampler(inner, 2, False))
        data.append(0)
        assert sum(map(len, batches)) == len(data)


def test_a_seeded_order_depends_on_seed_and_epoch_alone():
    sampler = SeededSampler(range(100), seed=7)
    first = sampler.permutation()
    assert np.array_equal(first, SeededSampler(range(100), seed=7).permutation())
    assert sorted(first.tolist()) == list(range(100))
    sampler.set_epoch(1)
    second = sampler.permutation()
    assert not np.array_equal(first, second)
    assert not np.array_equal(second, SeededSampler(range(100), seed=8).permutation())
    assert list(sampler) == second.tolist()


def test_dataloader_takes_the_seeded_sampler():
    loader = DataLoader(torch.arange(10), batch_size=4, sampler=SeededSampler(range(10), seed=1))
    assert sorted(torch.cat(list(loader)).tolist()) == list(range(10))


def test_begin_prefers_the_epoch_that_was_chosen_last():
    assert SeededSampler(range(3), seed=0).begin(4) == 4
    sampler = SeededSampler(range(3), seed=0)
    assert sampler.begin(0) == 0
    assert sampler.begin(1) == 1
    sampler.set_epoch(5)
    assert sampler.begin(2) == 5
    assert sampler.begin(6) == 6


def test_the_next_epoch_is_the_one_after_or_the_one_that_was_chosen_or_is_resumed():
    sampler = SeededSampler(range(3), seed=0)
    assert sampler.next_epoch == 0
    sampler.begin(0)
    assert sampler.next_epoch == 1
    sampler.resume(3)
    assert sampler.next_epoch == 3
    sampler.begin(3)
    assert sampler.next_epoch == 4
    sampler.set_epoch(7)
    assert sampler.next_epoch == 7


@given(n=st.integers(0, 60), size=st.integers(1, 12), drop_last=st.booleans())
def test_batches_are_views_of_all_indices_in_order(n, size, drop_last):
    indices = np.arange(n, dtype=np.int64)
    batches = Batches(indices, size, drop_last)
    expected = torch_batches(BatchSampler(SequentialSampler(range(n)), size, drop_last))
    assert [batch.tolist() for batch in batches] == expected
    assert len(batches) == len(expected)
    assert all(batch.base is indices for batch in batches)
    for outside in (-1, len(batches)):
        with pytest.raises(IndexError, match="expected a batch from 0"):
            batches[outside]


def test_an_epoch_of_single_samples_begins_without_an_object_for_each():
    gc.collect()
    before = len(gc.get_objects())
    order = index_batches(BatchSampler(RandomSampler(range(1_000_000)), 1, False))
    next(order)
    assert len(gc.get_objects()) < before + 1000
    assert len(order.known) == 1_000_000


def test_an_order_that_was_left_early_goes_with_the_last_reference_to_it():
    order = index_batches(BatchSampler(RandomSampler(range(100)), 10, False))
    next(order)
    known = weakref.ref(order.known)
    gc.disable()
    try:
        del order
        assert known() is None
    finally:
        gc.enable()


def test_the_dataset_follows_the_epoch_of_its_sampler(store):
    """A trainer that rebuilt the loader tells the sampler alone; so what is augmented differs."""
    loader = FastLoader(store, 4, shuffle=True, seed=3)
    dataset = loader.dataset
    loader.sampler.set_epoch(5)
    assert augmentation_of(dataset) == (3, 5)
    part = SeededSampler(Subset(dataset, range(7)), 3)
    part.set_epoch(6)
    assert augmentation_of(dataset) == (3, 6)


# --- every order that is known ------------------------------------------------------------------


def known_orders():
    rows = TensorDataset(torch.arange(23))
    of_mix = FastLoader(Mix([(rows, 2), (rows, 1)]), 4, shuffle=True, seed=2).sampler
    of_groups = FastLoader(rows, 4, shuffle=True, batch_by=[i % 3 for i in range(23)])
    return {
        "torch's": order_of(SequentialSampler(range(23))),
        "ascending": InOrder(range(23)),
        "shuffled": SeededSampler(range(23), 3),
        "windows": SeededSampler(range(23), 3, Windows(np.arange(23) // 4, 2)),
        "mix": of_mix,
        "groups": of_groups.batch_sampler,
    }


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("kind", list(known_orders()))
def test_an_order_divides_what_is_left_of_an_epoch_among_ranks(kind, drop_last):
    order = known_orders()[kind]
    order.begin(1)
    total = order.length(1)
    for first, ranks in [(0, 1), (0, 3), (6, 2), (total, 2)]:
        parts = [
            order.part(Division(Shard(rank, ranks), 4, drop_last, first), lambda indices: indices)
            for rank in range(ranks)
        ]
        assert len({part.length for part in parts}) == 1, "all ranks have as much"
        assert abs(parts[0].length * ranks - (total - first)) < ranks
        if not first:
            assert {len(part.batches) for part in parts} == {
                order.count(Division(Shard(0, ranks), 4, drop_last))
            }
    whole = order.part(Division(Shard(), 4, drop_last), lambda indices: indices).batches.indices
    if kind not in ("mix", "groups"):
        assert whole.tolist() == list(map(int, order.permutation()))
        assert sorted(whole.tolist()) == list(range(23))


@pytest.mark.parametrize("kind", list(known_orders()))
def test_the_order_of_an_epoch_is_known_before_it_begins_or_nobody_says_so(kind):
    order = known_orders()[kind]
    order.begin(4)
    before = order.following(5, Shard(1, 2))
    order.begin(5)
    part = order.part(Division(Shard(1, 2), 1, False), lambda indices: indices)
    assert before.tolist() in ([], part.batches.indices.tolist())
    assert (kind == "mix") == (not len(before))


def test_an_order_that_nobody_knows_says_so():
    order = order_of(iter([3, 1]))
    assert not order.known
    assert (order.length(0), order.describe(), order.grouping()) == (None, None, None)
    assert order.repeats
    assert not order_of(RandomSampler(range(3))).repeats
    assert order_of(RandomSampler(range(3), replacement=True)).repeats
    assert order.following(1, Shard()).tolist() == []
