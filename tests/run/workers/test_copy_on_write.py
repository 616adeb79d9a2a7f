"""Datasets with millions of Python objects: said, and no worse than with DataLoader."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from fastload import FastLoader
from fastload._run.workers.copy_on_write import object_memory
from fastload._tools.doctor.observation import LoaderSeen, Observation
from fastload._tools.doctor.rules import findings
from fastload._tools.doctor.sampler import _children, _private


class Listed(Dataset[Any]):
    """Paths in a list, of which each sample looks at one."""

    def __init__(self, paths: Any) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> int:
        return len(self.paths[index])


def paths(count: int) -> list[str]:
    return [f"/data/train/n{index % 1000:08d}/image{index:09d}.jpg" for index in range(count)]


@pytest.fixture(scope="module")
def many() -> list[str]:
    return paths(500_000)


def test_explain_names_the_list_the_copies_and_the_remedy(many: list[str]) -> None:
    text = FastLoader(Listed(many), num_workers=2).explain()
    assert "Listed.paths holds 500,000 Python objects" in text
    assert "each of 2 worker processes" in text
    assert "np.array(paths, dtype=bytes)" in text
    assert "fastload pack" in text


def test_sizes_are_those_of_the_objects(many: list[str]) -> None:
    found = object_memory(Listed(many), 1) or object_memory(Listed(many), 2)
    assert found is not None
    assert (
        abs(found.nbytes / sum(map(len, many)) - (sys.getsizeof("") + len(many[0])) / len(many[0]))
        < 0.1
    )


def test_lists_are_found_within_other_datasets(many: list[str]) -> None:
    pairs = [(path, 1000) for path in many]
    for dataset in (
        Subset(Listed(many), range(10)),
        ConcatDataset([Listed(["a"]), Listed(pairs)]),
        Listed(dict(enumerate(many))),
        Listed(np.array(many, object)),
        Listed(set(many)),
    ):
        assert object_memory(dataset, 4) is not None
    assert object_memory(Listed(pairs), 1).nbytes > object_memory(Listed(many), 4).nbytes  # type: ignore[union-attr]


def test_nothing_is_said_where_nothing_is_copied(many: list[str]) -> None:
    for dataset, workers in (
        (Listed(many), 0),
        (Listed(np.array(many, dtype=bytes)), 2),
        (Listed(many[:1000]), 2),
        (Listed([1] * 500_000), 2),  # one object for all of them
        (Listed(range(10**9)), 2),
    ):
        assert "memory:" not in FastLoader(dataset, num_workers=workers).explain()


def test_an_array_of_one_object_is_no_list_of_them() -> None:
    assert object_memory(Listed(np.array({"a": 1}, object)), 4) is None


def test_doctor_says_the_same(many: list[str]) -> None:
    words = object_memory(Listed(many), 2).words(2)  # type: ignore[union-attr]
    loader = LoaderSeen(num_workers=2, held=words, steps_s=[0.1], waits_s=[0.0], backwards=1)
    (found,) = (f for f in findings(Observation(loaders=[loader])) if f.name == "workers-grow")
    assert "Listed.paths" in found.what
    assert "np.array" in found.change


def test_workers_grow_no_more_than_those_of_dataloader(count: Callable[[int, int], int]) -> None:
    dataset = Listed(paths(count(400_000, 10_000_000)))
    grown: dict[str, list[int]] = {}
    for kind in (DataLoader, FastLoader):
        loader = kind(dataset, 8192, num_workers=2, shuffle=True, persistent_workers=True)
        before = set(_children())
        grown[kind.__name__] = []
        for _ in range(2):
            iterator = iter(loader)
            for _ in iterator:
                pass
            private = sum(map(_private, set(_children()) - before))
            grown[kind.__name__].append(private)
        del loader, iterator
    for ours, theirs in zip(grown["FastLoader"], grown["DataLoader"], strict=True):
        assert ours <= 1.1 * theirs + (8 << 20)
