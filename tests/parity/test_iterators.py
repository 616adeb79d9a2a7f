"""Iterators: which of them are one, and who makes them."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
    default_collate,
)
from torchvision.datasets import ImageFolder

from batches import EVAL
from fastload import FastLoader
from sides import assert_same


class Numbers(Dataset):
    def __len__(self):
        return 11

    def __getitem__(self, i):
        return i, torch.rand(())


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(7))


DATASETS = {
    "map-style": lambda photos: Numbers(),
    "iterable": lambda photos: Stream(),
    "rows": lambda photos: TensorDataset(torch.arange(11)),
    "images": lambda photos: ImageFolder(photos, EVAL),
}


@pytest.mark.parametrize(
    ("dataset", "arguments"),
    [
        *((dataset, {}) for dataset in DATASETS),
        ("map-style", {"shuffle": True}),
        pytest.param(
            "map-style",
            {"in_order": False},
            marks=pytest.mark.skipif(
                not hasattr(torch, "accelerator"), reason="in_order came with torch 2.6"
            ),
        ),
        ("images", {"shuffle": True}),
    ],
    ids=str,
)
@pytest.mark.parametrize("persistent", [False, True])
def test_two_iterators_in_turns_give_what_torchs_give(photos, dataset, persistent, arguments):
    def outcome(kind):
        torch.manual_seed(1)
        loader = kind(
            DATASETS[dataset](photos), 2, num_workers=1, persistent_workers=persistent, **arguments
        )
        first = iter(loader)
        made = [next(first)]
        second = iter(loader)
        assert (first is second) == persistent
        made += [next(second), next(first)]
        made += zip(loader, loader)
        made.append(next(first, "the end"))
        return [*made, *loader]

    assert_same(outcome(FastLoader), outcome(DataLoader))


def test_with_batches_that_are_transformed_too(no_leaks):
    def pairs(kind, **arguments):
        loader = kind(range(11), 2, num_workers=2, persistent_workers=True, **arguments)
        return [(a.tolist(), b.tolist()) for a, b in zip(loader, loader)]

    ours = pairs(FastLoader, batch_transform=torch.neg)
    assert ours == pairs(DataLoader, collate_fn=lambda items: -default_collate(items))


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("transform", [None, lambda batch: batch])
def test_an_iterator_that_is_kept_does_not_keep_its_loader(photos, dataset, transform, no_leaks):
    loader = FastLoader(
        DATASETS[dataset](photos),
        2,
        num_workers=1,
        persistent_workers=True,
        batch_transform=transform,
    )
    for batches in (2, 1):
        iterator = iter(loader)
        for _ in range(batches):
            next(iterator)
    alive = weakref.ref(loader)
    del iterator
    gc.disable()  # a cycle would wait for it, and with it the workers
    try:
        del loader
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("dataset", DATASETS)
def test_after_a_state_was_loaded_the_iterator_is_another(photos, dataset):
    loader = FastLoader(DATASETS[dataset](photos), 2, num_workers=1, persistent_workers=True)
    first = iter(loader)
    next(first)
    loader.load_state_dict(loader.state_dict())
    second = iter(loader)
    assert second is not first
    assert_same(len(list(second)), len(list(first)))


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("dataset", DATASETS)
def test_a_subclass_that_overrides_get_iterator_is_asked(photos, dataset, persistent):
    def outcome(parent):
        class Counting(parent):
            made = 0

            def _get_iterator(self):
                self.made += 1
                return super()._get_iterator()

        torch.manual_seed(1)
        loader = Counting(
            DATASETS[dataset](photos), 3, num_workers=1, persistent_workers=persistent
        )
        return [list(loader), list(loader), loader.made]

    assert_same(outcome(FastLoader), outcome(DataLoader))


def test_a_subclass_may_make_iterators_of_its_own():
    def outcome(parent):
        class Doubled(parent):
            def _get_iterator(self):
                return (batch for batch in super()._get_iterator() for _ in "ab")

        return [batch.tolist() for batch in Doubled(range(5), 2)]

    assert outcome(FastLoader) == outcome(DataLoader) == [[0, 1], [0, 1], [2, 3], [2, 3], [4], [4]]


def test_iterators_asked_for_by_themselves_are_each_their_own():
    def outcome(kind):
        torch.manual_seed(1)
        loader = kind(Numbers(), 4, num_workers=1, persistent_workers=True)
        return list(zip(loader._get_iterator(), loader._get_iterator()))

    assert_same(outcome(FastLoader), outcome(DataLoader))
