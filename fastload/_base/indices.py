"""Sample indices as int64 arrays."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import SupportsIndex

import numpy as np
import torch


def as_indices(batch: Iterable[SupportsIndex]) -> np.ndarray:
    """``batch`` as int64. Raises TypeError if an item is no integer (has no ``__index__``)."""
    items = batch.tolist() if isinstance(batch, (np.ndarray, torch.Tensor)) else batch
    return np.fromiter(map(operator.index, items), np.int64)


def repeats_within(records: np.ndarray) -> np.ndarray:
    """How often each of ``records`` occurs earlier in the array: int64 (n,)."""
    ranked = np.sort(records)
    if not (ranked[1:] == ranked[:-1]).any():
        return np.zeros(len(records), np.int64)
    order = np.argsort(records, kind="stable")
    position = np.arange(len(records), dtype=np.int64)
    first = np.flatnonzero(np.diff(ranked, prepend=ranked[:1] - 1))
    repeats = np.empty(len(records), np.int64)
    repeats[order] = position - np.repeat(first, np.diff(first, append=len(records)))
    return repeats
