"""The contract of an iterator: whoever makes the batches, an iterator of a loader behaves alike.

A new route adds an entry to ``MAKERS``, and is tested without another line.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from batches import EVAL
from fastload import FastLoader, PackedDataset
from sides import assert_same

SIZE, BATCH = 24, 5
BATCHES = -(-SIZE // BATCH)


class Numbers(Dataset[torch.Tensor]):
    """Small tensors; the samples in ``bad`` raise."""

    def __init__(self, bad: tuple[int, ...] = ()) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> torch.Tensor:
        if index in self.bad:
            raise ValueError(f"sample {index} is bad")
        return torch.full((3,), index)


def same(batch: Any) -> Any:
    return batch


# By route: the dataset with bad samples where it can have any, and arguments of both loaders and of
# ours.
THEIRS: dict[str, dict[str, Any]] = {
    "local": {},
    "workers": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
    "refill": {},
    "torch": {"num_workers": 1, "in_order": False},
    "transformed": {},
}
OURS: dict[str, dict[str, Any]] = {
    "refill": {"on_error": "refill"},
    "transformed": {"batch_transform": same},
}
PYTHON = list(THEIRS)
ENGINES = ["native", "caller", "cached", "rows", "moved"]


def loaders(kind: str, store: Path, bad: tuple[int, ...] = ()) -> tuple[Any, Any]:
    """A FastLoader of that route, and the DataLoader that gives the same."""
    if kind in PYTHON:
        theirs = THEIRS[kind]
        if "in_order" in theirs and not hasattr(torch, "accelerator"):
            pytest.skip("in_order came with torch 2.6")
        ours = FastLoader(Numbers(bad), BATCH, **theirs, **OURS.get(kind, {}))
        return ours, DataLoader(Numbers(bad), BATCH, **theirs)
    if kind == "rows":
        rows = TensorDataset(torch.arange(SIZE), torch.rand(SIZE, 3))
        return FastLoader(rows, BATCH, num_workers=1), DataLoader(rows, BATCH)
    dataset = PackedDataset(store, EVAL)
    arguments: dict[str, dict[str, Any]] = {
        "native": {"num_workers": 2},
        "caller": {"num_workers": 0},
        "cached": {"num_workers": 2, "cache": "ram"},
        "moved": {"num_workers": 2, "batch_transform": same},
    }
    return FastLoader(dataset, BATCH, **arguments[kind]), DataLoader(dataset, BATCH)


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("kind", PYTHON + ENGINES)
def test_the_batches_of_each_epoch_are_torchs_and_after_the_last_there_is_none(
    kind: str, store: Path
) -> None:
    ours, theirs = loaders(kind, store)
    expected = list(theirs)
    for _ in range(2):
        iterator: Any = iter(ours)
        assert len(iterator) == BATCHES
        assert_same(list(iterator), expected)
        assert [next(iterator, "the end") for _ in range(3)] == ["the end"] * 3
    iterator.close()
    assert next(iterator, "the end") == "the end"


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("taken", [0, 1])
@pytest.mark.parametrize("kind", PYTHON + ENGINES)
def test_a_closed_stream_gives_no_more_and_leaves_nothing_behind(
    kind: str, taken: int, store: Path
) -> None:
    iterator: Any = iter(loaders(kind, store)[0])
    assert len(list(itertools.islice(iterator, taken))) == taken
    iterator.close()
    iterator.close()
    assert next(iterator, "the end") == "the end"


@pytest.mark.parametrize("kind", PYTHON + ENGINES)
def test_sooner_or_later_the_next_batch_is_ready(kind: str, store: Path) -> None:
    iterator: Any = iter(loaders(kind, store)[0])
    next(iterator)
    deadline = time.monotonic() + 60
    while not iterator.ready():
        assert time.monotonic() < deadline, "it never was"
        time.sleep(0.002)
    next(iterator)


@pytest.mark.parametrize("kind", [kind for kind in PYTHON if kind != "refill"])
def test_an_error_comes_in_the_place_of_its_batch_and_the_others_still_come(
    kind: str, store: Path
) -> None:
    def outcomes(loader: Any) -> Iterator[Any]:
        iterator = iter(loader)
        while True:
            try:
                yield next(iterator)
            except StopIteration:
                return
            except ValueError as error:
                yield str(error).splitlines()[-1]

    ours, theirs = loaders(kind, store, bad=(7, 16))
    found = list(outcomes(ours))
    assert_same(found, list(outcomes(theirs)))
    assert len(found) == BATCHES


@pytest.mark.parametrize("kind", [kind for kind in PYTHON + ENGINES if kind != "torch"])
def test_a_state_between_two_batches_resumes_at_the_second(kind: str, store: Path) -> None:
    ours, theirs = loaders(kind, store)
    expected = list(theirs)
    iterator = iter(ours)
    for _ in range(2):
        next(iterator)
    state = ours.state_dict()
    other = loaders(kind, store)[0] if kind != "rows" else ours
    other.load_state_dict(state)
    assert_same(list(other), expected[2:])


@pytest.mark.parametrize("kind", [kind for kind in PYTHON + ENGINES if kind != "torch"])
def test_a_stream_that_was_closed_half_way_is_resumed_from_there(kind: str, store: Path) -> None:
    ours, theirs = loaders(kind, store)
    iterator: Any = iter(ours)
    for _ in range(2):
        next(iterator)
    iterator.close()
    assert next(iterator, "the end") == "the end"  # which is not the epoch's
    ours.load_state_dict(ours.state_dict())
    assert_same(list(ours), list(theirs)[2:])
