"""Iterators: which of them are one, and who makes them."""

from __future__ import annotations

import gc
import multiprocessing
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
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torchvision.datasets import ImageFolder

from batches import EVAL
from combinations import combinations
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

out_of_order = pytest.mark.skipif(
    not hasattr(torch, "accelerator"), reason="in_order came with torch 2.6"
)


@pytest.mark.parametrize(
    ("dataset", "arguments", "persistent"),
    [
        *combinations([*DATASETS], [{}], [False, True]),
        *(
            pytest.param("map-style", {"shuffle": True}, persistent, marks=pytest.mark.long)
            for persistent in (False, True)
        ),
        pytest.param("map-style", {"in_order": False}, False, marks=out_of_order),
        ("images", {"shuffle": True}, True),
    ],
    ids=str,
)
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


def test_an_iterator_that_has_begun_an_epoch_leaves_its_workers_where_a_state_is_loaded():
    """They are at another place in the data."""

    def loader():
        return FastLoader(Stream(), 2, num_workers=1, persistent_workers=True)

    first = loader()
    next(iter(first))
    state = first.state_dict()
    other = loader()
    list(other)
    iterator = iter(other)
    other.load_state_dict(state)
    assert [batch.tolist() for batch in iterator] == [[2, 3], [4, 5], [6]]


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


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("dataset", DATASETS)
def test_it_is_one_of_torchs_that_counts_what_it_gave(photos, dataset, workers):
    def outcome(kind):
        torch.manual_seed(1)
        iterator = iter(kind(DATASETS[dataset](photos), 2, num_workers=workers))
        seen = [isinstance(iterator, _BaseDataLoaderIter), iterator._num_yielded]
        return [*seen, next(iterator), iterator._num_yielded, iterator._next_data()]

    assert_same(outcome(FastLoader), outcome(DataLoader))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("dataset", DATASETS)
def test_it_has_what_torchs_copy_from_their_loader(photos, dataset, workers):
    made = DATASETS[dataset](photos)

    def outcome(kind):
        loader = kind(made, 2, num_workers=workers, drop_last=True)
        iterator = iter(loader)
        copied = "dataset collate_fn num_workers drop_last timeout persistent_workers".split()
        if workers:
            copied += ["prefetch_factor", "worker_init_fn"]
        for name in copied:
            assert getattr(iterator, f"_{name}") is getattr(loader, name), name
        assert iterator._index_sampler is loader.batch_sampler
        return iterator._auto_collation, iterator._dataset_kind

    assert_same(outcome(FastLoader), outcome(DataLoader))


class Saved(torch.utils.data.Sampler):
    """Knows which index the loop comes to next, from the private attributes of its iterator."""

    def __init__(self):
        self.given = 0

    def __iter__(self):
        for i in range(11):
            self.given += 1
            yield i

    def place(self, iterator):
        ahead = 0
        if iterator._num_workers > 0:
            batches = iterator._send_idx - iterator._rcvd_idx
            ahead = batches * iterator._index_sampler.batch_size
        return self.given - ahead


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("dataset", ["map-style", "rows", "images"])
def test_a_sampler_can_tell_how_far_it_is_ahead_of_the_loop(photos, dataset, workers):
    sampler = Saved()
    iterator = iter(FastLoader(DATASETS[dataset](photos), 2, sampler=sampler, num_workers=workers))
    assert sampler.place(iterator) == 0
    for batches in 1, 2, 3:
        next(iterator)
        assert sampler.place(iterator) == 2 * batches


@pytest.mark.parametrize("dataset", ["map-style", "rows", "images"])
def test_programs_see_that_they_have_ended_its_workers(photos, dataset):
    iterator = iter(FastLoader(DATASETS[dataset](photos), 2, num_workers=1))
    assert not iterator._shutdown
    assert iterator._tasks_outstanding > 0
    iterator._shutdown_workers()
    assert iterator._shutdown


@pytest.mark.parametrize(
    "arguments",
    [{}, pytest.param({"in_order": False}, marks=out_of_order), {"num_workers": "auto"}],
    ids=str,
)
@pytest.mark.parametrize("dataset", ["map-style", "iterable"])
def test_workers_that_persist_end_when_the_loader_drops_its_iterator(photos, dataset, arguments):
    arguments = {"num_workers": 1, **arguments}
    loader = FastLoader(DATASETS[dataset](photos), 2, persistent_workers=True, **arguments)
    list(loader)
    list(loader)
    assert multiprocessing.active_children()
    loader._iterator = None  # as Lightning does at the end of ``fit``
    assert not multiprocessing.active_children()


# --- what others add to torch's iterators --------------------------------------------------------


@pytest.fixture
def skips_are_added(monkeypatch):
    """What SpeechBrain adds: the loader's ``behind`` batches are skipped, once."""
    torchs = _BaseDataLoaderIter.__init__

    def init(iterator, loader):
        torchs(iterator, loader)
        for _ in range(getattr(loader, "behind", None) or 0):
            if next(iterator._sampler_iter, None) is None:
                break
            iterator._num_yielded += 1
        if hasattr(loader, "behind"):
            loader.behind = None

    def reset(iterator, loader, first_iter=False):
        if not first_iter:
            torchs_reset(iterator, loader, first_iter)
        iterator._IterableDataset_len_called = loader._IterableDataset_len_called

    torchs_reset = _BaseDataLoaderIter._reset
    monkeypatch.setattr(_BaseDataLoaderIter, "__init__", init)
    monkeypatch.setattr(_BaseDataLoaderIter, "_reset", reset)


class InLists:
    """A batch_sampler."""

    def __len__(self):
        return 3

    def __iter__(self):
        return iter([[1, 2], [3], [8, 9, 10]])


@pytest.mark.usefixtures("skips_are_added")
@pytest.mark.parametrize(
    ("arguments", "dataset", "behind"),
    combinations(
        [
            {"batch_size": 2},
            {"batch_size": 2, "shuffle": True},
            {"batch_size": 2, "shuffle": True, "drop_last": True, "generator": 3},
            {"batch_size": None},
            {"batch_sampler": InLists()},
            {"batch_size": 2, "num_workers": 1},
            {"batch_size": 2, "num_workers": 1, "persistent_workers": True, "shuffle": True},
        ],
        ["map-style", "rows", "images"],
        [2, 40],
        rounds=2,
    ),
    ids=lambda value: "-".join(value) if isinstance(value, dict) else str(value),
)
def test_batches_that_others_have_an_iterator_skip_are_skipped(photos, dataset, arguments, behind):
    def outcome(kind):
        torch.manual_seed(1)
        given = dict(arguments)
        if "generator" in given:
            given["generator"] = torch.Generator().manual_seed(given["generator"])
        loader = kind(DATASETS[dataset](photos), **given)
        loader.behind = behind
        iterator = iter(loader)
        first = iterator._num_yielded
        return [first, list(iterator), iterator._num_yielded, list(loader), torch.rand(1)]

    ours, theirs = outcome(FastLoader), outcome(DataLoader)
    if behind == 40:  # more than there are: torch counts those that there were
        ours[0] = theirs[0] = ours[2] = theirs[2] = None
    assert_same(ours, theirs)


@out_of_order
@pytest.mark.usefixtures("skips_are_added")
def test_they_are_skipped_in_torchs_own_iterators_too():
    loader = FastLoader(Numbers(), 2, num_workers=1, in_order=False)
    loader.behind = 2
    iterator = iter(loader)
    assert iterator._num_yielded == 2
    assert [indices.tolist() for indices, _ in iterator] == [[4, 5], [6, 7], [8, 9], [10]]
    assert len(list(loader)) == 6


@pytest.mark.usefixtures("skips_are_added")
def test_after_a_skip_a_state_resumes_at_the_same_place():
    def loader():
        return FastLoader(Numbers(), 2, shuffle=True, seed=1)

    expected = [indices.tolist() for indices, _ in loader()]
    first = loader()
    first.behind = 2
    iterator = iter(first)
    assert next(iterator)[0].tolist() == expected[2]
    second = loader()
    second.load_state_dict(first.state_dict())
    assert [indices.tolist() for indices, _ in second] == expected[3:]
