"""FastLoader and torch's DataLoader side by side: the same inputs, the same outcome."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from fastload import FastLoader

# What differs from run to run in a message: process ids, and the frames of a traceback.
_NOTES = re.compile(r"\ntype next: .*")
_FRAMES = re.compile(r"Original Traceback.*\n(?=[\w.]*(?:Error|Exception))", re.DOTALL)


def outcome(kind: type, dataset: Any, epochs: int, **arguments: Any) -> list[Any]:
    """Everything that comes of ``kind(dataset, **arguments)``: batches, lengths and errors.

    The loader is made and iterated with torch's, NumPy's and Python's generators in one state;
    where they stand afterwards is part of the outcome.
    """
    torch.manual_seed(11)
    np.random.seed(11)
    random.seed(11)
    made: list[Any] = []
    try:
        loader = kind(dataset, **{k: v() if k in _FRESH else v for k, v in arguments.items()})
        made.append(length(loader))
        for _ in range(epochs):
            iterator = iter(loader)
            while True:
                try:
                    made.append(next(iterator))
                except StopIteration:
                    break
                except Exception as error:
                    made.append(failure(error))
                    if len(made) > 200:
                        raise
            made.append("end of epoch")
    except Exception as error:
        made.append(failure(error))
    made.append(int(torch.randint(1 << 40, ())))
    return made


# Arguments that have a state of their own are given as what makes them.
_FRESH = ("generator", "sampler", "batch_sampler")


def side_by_side(dataset: Any, epochs: int = 2, **arguments: Any) -> list[Any]:
    """Assert that both loaders come to the same; returns it."""
    theirs = outcome(DataLoader, dataset, epochs, **arguments)
    ours = outcome(FastLoader, dataset, epochs, **arguments)
    assert_same(ours, theirs)
    return ours


def length(loader: Any) -> Any:
    try:
        return len(loader)
    except TypeError as error:
        return failure(error)


def failure(error: BaseException) -> tuple[type, str]:
    # Below torch's own words, a note may say what to type next.
    return type(error), _NOTES.sub("", _FRAMES.sub("", str(error)))


def assert_same(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs), (ours, theirs)
    if isinstance(ours, torch.Tensor):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        assert ours.stride() == theirs.stride()
        assert torch.equal(ours, theirs)
    elif isinstance(ours, np.ndarray):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    elif isinstance(ours, Mapping):
        assert list(ours) == list(theirs)
        for key in ours:
            assert_same(ours[key], theirs[key])
    elif isinstance(ours, (list, tuple)):
        assert len(ours) == len(theirs), (ours, theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert_same(a, b)
    elif hasattr(ours, "__dict__") and not isinstance(ours, type):
        assert_same(vars(ours), vars(theirs))
    else:
        assert ours == theirs
