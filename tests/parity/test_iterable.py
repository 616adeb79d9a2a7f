"""Iterable datasets: what DataLoader gives, FastLoader gives."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ChainDataset, DataLoader, IterableDataset, get_worker_info

from fastload import FastLoader
from sides import side_by_side


class Stream(IterableDataset):
    """``lengths[w]`` samples from worker w; random ones, and what the worker knows of itself."""

    def __init__(self, lengths, fails_at=None):
        self.lengths = lengths
        self.fails_at = fails_at

    def __iter__(self):
        info = get_worker_info()
        worker, seed = (0, 0) if info is None else (info.id, info.seed)
        assert info is None or type(info.dataset) is type(self)
        for i in range(self.lengths[worker]):
            if i == self.fails_at:
                raise ValueError(f"sample {i} of worker {worker}")
            yield worker, i, seed, torch.rand(2)


class Counted(Stream):
    def __len__(self):
        return sum(self.lengths)


@given(
    length=st.integers(0, 12),
    batch_size=st.sampled_from([None, 1, 3, 20]),
    drop_last=st.booleans(),
    workers=st.integers(0, 2),
    persistent=st.booleans(),
)
@settings(max_examples=settings.default.max_examples // 2)
def test_streams_of_equal_workers(length, batch_size, drop_last, workers, persistent):
    side_by_side(
        Stream([length] * 2),
        2,
        batch_size=batch_size,
        drop_last=drop_last and batch_size is not None,
        num_workers=workers,
        persistent_workers=persistent and workers > 0,
    )


@pytest.mark.parametrize("lengths", [(0, 7), (9, 3)])
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_that_end_at_different_times(lengths, persistent):
    """Torch's order depends on when it learns that a worker has ended; the samples do not."""
    results = []
    for kind in (DataLoader, FastLoader):
        loader = kind(Stream(lengths), 2, num_workers=2, persistent_workers=persistent)
        for _ in range(2):
            pairs = [(w, i) for ws, ids, _, _ in loader for w, i in zip(ws.tolist(), ids.tolist())]
            results.append([[i for w, i in pairs if w == worker] for worker in (0, 1)])
    assert results == [[list(range(n)) for n in lengths]] * 4


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("batch_size", [None, 3])
def test_a_generator_that_raises_ends_there(workers, batch_size):
    side_by_side(Stream([8], fails_at=4), 2, batch_size=batch_size, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 1])
def test_lengths(workers):
    for batch_size in (None, 3):
        side_by_side(Counted([8]), batch_size=batch_size, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 1])
def test_more_samples_than_the_length_that_was_asked_for_are_warned_of(workers):
    class Liar(Stream):
        def __len__(self):
            return 3

    messages = []
    for kind in (DataLoader, FastLoader):
        loader = kind(Liar([5]), batch_size=None, num_workers=workers)
        len(loader)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert len(list(loader)) == 5
        said = [w for w in caught if "Length" in str(w.message)]
        messages.append([str(w.message)[:60] for w in said])
    assert messages[0] == messages[1]
    assert [w.filename for w in said] == [__file__] * 2  # torch's point into its own code


def test_chains():
    side_by_side(ChainDataset([Stream([3]), Stream([4])]), batch_size=2)


@pytest.mark.parametrize(
    "arguments",
    [{"shuffle": True}, {"sampler": lambda: [1]}, {"batch_sampler": lambda: [[1]]}],
)
def test_samplers_are_refused(arguments):
    made = side_by_side(Stream([3]), 1, **arguments)
    assert made[0][0] is ValueError


def test_an_endless_stream_can_be_left():
    class Endless(IterableDataset):
        def __iter__(self):
            while True:
                yield torch.zeros(3)

    for workers in (0, 1):
        loader = FastLoader(Endless(), batch_size=4, num_workers=workers)
        for _, batch in zip(range(10), loader):
            assert batch.shape == (4, 3)


class Told(IterableDataset):
    """Writes down what is asked of it, with the number that torch's generator gives then."""

    def __init__(self):
        self.calls = []

    def __iter__(self):
        self.calls.append(("iter", torch.rand(()).item()))
        return self

    def __next__(self):
        self.calls.append(("next", torch.rand(()).item()))
        if len(self.calls) > 5:
            raise StopIteration
        return len(self.calls)


def test_without_workers_the_dataset_is_asked_for_its_iterator_when_the_loader_is():
    heard = []
    for kind in (DataLoader, FastLoader):
        torch.manual_seed(2)
        dataset = Told()
        iterator = iter(kind(dataset, batch_size=2))
        dataset.calls.append("iterated")
        heard.append(([batch.tolist() for batch in iterator], dataset.calls))
    assert heard[0] == heard[1]
    assert heard[1][1][1] == "iterated"


class Resetting(IterableDataset):
    """Its own iterator, which begins anew whenever it is asked for one."""

    def __iter__(self):
        self.given = 0
        return self

    def __next__(self):
        if self.given == 7:
            raise StopIteration
        self.given += 1
        return self.given


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("size", [None, 2])
def test_a_dataset_that_begins_anew_when_it_is_asked_for_its_iterator_is_asked_once(workers, size):
    side_by_side(Resetting(), batch_size=size, num_workers=workers)


def test_an_iterable_dataset_that_cannot_begin_says_so_when_the_loader_is_iterated():
    class Broken(IterableDataset):
        def __iter__(self):
            raise ValueError("no stream")

    for kind in (DataLoader, FastLoader):
        with pytest.raises(ValueError, match="no stream"):
            iter(kind(Broken()))
