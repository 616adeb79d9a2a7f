"""Checkpoints with any value in any place: resumed, or refused with an error of ours, at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

from fastload import FastLoader, FastloadError, Mix

ODD: list[Any] = [
    None, -1, 0, 3, 2**31, 2**63, 2**64, 10**30, 1.5, math.nan, math.inf, "", "x", "AAAA", b"x", [],
    {}, {"a": 1}, True, [None], torch.zeros(2), np.int64(3),
]  # fmt: skip


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(12))


class Words:
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        return index


ROWS = TensorDataset(torch.arange(12))
MAKERS: dict[str, Callable[[], FastLoader[Any]]] = {
    "rows": lambda: FastLoader(ROWS, 4, shuffle=True, seed=1),
    "own": lambda: FastLoader(Words(), 4, shuffle=True),  # type: ignore[arg-type]
    "stream": lambda: FastLoader(Numbers(), 4),
    "mix": lambda: FastLoader(Mix([(ROWS, 0.5), (ROWS, 0.5)]), 4, shuffle=True),
    "groups": lambda: FastLoader(ROWS, 4, shuffle=True, batch_by=[i % 2 for i in range(12)]),
    "ranks": lambda: FastLoader(ROWS, 4, shuffle=True, shard=(0, 2)),
}


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value within ``value``."""
    yield way
    if isinstance(value, (dict, list, tuple)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*way, key))


def with_value(value: Any, way: tuple[Any, ...], other: Any) -> Any:
    if not way:
        return other
    if isinstance(value, dict):
        return {**value, way[0]: with_value(value[way[0]], way[1:], other)}
    changed = [with_value(v, way[1:], other) if i == way[0] else v for i, v in enumerate(value)]
    return type(value)(changed)


@pytest.mark.parametrize("kind", list(MAKERS))
def test_any_value_in_any_place_is_resumed_or_refused(kind: str) -> None:
    loader = MAKERS[kind]()
    next(iter(loader))
    state = loader.state_dict()
    refused = 0
    for way in places(state):
        for value in ODD:
            loader = MAKERS[kind]()
            try:
                loader.load_state_dict(with_value(state, way, value))
                batches = sum(1 for _ in loader)
            except FastloadError as error:
                refused += 1
                assert "state" in str(error) or "epoch" in str(error), error
                continue
            assert batches <= 12
            loader.state_dict()
    assert refused > len(ODD)
