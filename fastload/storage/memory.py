"""Stores in memory, read in place without a copy: images in one array, and rows of tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from .._base.value_class import value_class
from .base import RAW, Spans, Store
from .concat import ConcatStore


class InMemory(Store):
    """Records in memory of this process, which have no names."""

    mapped = True

    @property
    def files(self) -> Sequence[str]:
        return [self.path]

    def kinds(self, indices: np.ndarray) -> np.ndarray:
        return np.full(len(indices), RAW, np.uint8)

    def keys(self, indices: np.ndarray) -> list[str]:
        return [str(index) for index in indices.tolist()]


class MemoryStore(InMemory):
    """The images of an array: uint8 (n, h, w, 3) with any strides that are not negative.

    Gray images have the stride 0 between their three channels. The next batch sees changes of the
    array, as the dataset that owns it does. ``name`` is for messages.
    """

    format = "memory"

    def __init__(
        self, images: np.ndarray, labels: np.ndarray, *, name: str, classes: Sequence[str] = ()
    ) -> None:
        self.path = f"<{name}>"
        self.classes = list(classes)
        self.metadata: dict[str, Any] = {}
        self.images = images
        self._labels = labels.view()
        self._labels.flags.writeable = False
        sides = zip(images.shape[1:], images.strides[1:], strict=True)
        self._nbytes = 1 + sum((side - 1) * stride for side, stride in sides)

    def __len__(self) -> int:
        return len(self.images)

    def memory(self) -> Mapping[int, np.ndarray]:
        return {0: self.images}

    def spans(self, indices: np.ndarray) -> Spans:
        count = len(indices)
        return Spans(
            file=np.zeros(count, np.int32),
            offset=np.asarray(indices, np.int64) * self.images.strides[0],
            nbytes=np.full(count, self._nbytes, np.int64),
        )

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        height, width = self.images.shape[1:3]
        return np.full((len(indices), 2), (width, height), np.int32)

    @property
    def labels(self) -> np.ndarray:
        labels: np.ndarray = self._labels
        return labels


class TensorStore(InMemory):
    """A record is a row of each of ``tensors``: of one length, contiguous, on the CPU."""

    format = "tensors"
    path = "<TensorDataset>"

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.classes: list[str] = []
        self.metadata: dict[str, Any] = {}
        self.tensors = list(tensors)
        self.rows = [_rows(tensor) for tensor in self.tensors]
        self._memory = _memory_of(tensors)  # a tensor's shape may be changed in place

    def __len__(self) -> int:
        return len(self.rows[0])

    def reads(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether it is over the memory of these, with their shapes and types."""
        return self._memory == _memory_of(tensors)

    def memory(self) -> Mapping[int, np.ndarray]:
        return {0: self.rows[0].reshape(-1)}

    def spans(self, indices: np.ndarray) -> Spans:
        nbytes = np.full(len(indices), self.rows[0].shape[1], np.int64)
        return Spans(file=np.zeros(len(indices), np.int32), offset=indices * nbytes, nbytes=nbytes)

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """One pixel each: rows need not be images."""
        return np.ones((len(indices), 2), np.int32)

    @property
    def labels(self) -> None:
        """None: which tensor has labels is unknown."""


@value_class(eq=False)
class Rows:
    """The tensors of ``stores``, one after the other: as many each, of the same dtypes and rows."""

    stores: tuple[TensorStore, ...]

    @classmethod
    def of(cls, store: Store) -> Rows:
        """The rows of a TensorStore, or of a ConcatStore of several."""
        return cls(tuple(_leaves(store)))

    @property
    def first(self) -> list[torch.Tensor]:
        return self.stores[0].tensors

    def agree(self) -> bool:
        """Whether the stores fit together as ``stores`` says."""
        kinds = [[(t.dtype, t.shape[1:]) for t in store.tensors] for store in self.stores]
        return all(kind == kinds[0] for kind in kinds)

    def gather(self, column: int, records: np.ndarray, into: np.ndarray) -> None:
        """Copy the rows ``records`` (int64, in range) of a tensor into uint8 (n, row's bytes)."""
        if len(self.stores) == 1:
            # All are in range; "clip" writes into `into` directly, "raise" through a copy.
            np.take(self.stores[0].rows[column], records, axis=0, out=into, mode="clip")
            return
        ends = np.cumsum([len(store) for store in self.stores])
        which = np.searchsorted(ends, records, side="right")
        for number in np.unique(which).tolist():
            mine, start = which == number, ends[number - 1] if number else 0
            into[mine] = self.stores[number].rows[column][records[mine] - start]

    def others(self, records: np.ndarray) -> list[torch.Tensor]:
        """The rows ``records`` of all tensors but the first, in new memory."""
        made = []
        for column, tensor in enumerate(self.first[1:], 1):
            shape = len(records), *tensor.shape[1:]
            rows = torch.empty(shape, dtype=tensor.dtype, device="cpu")
            self.gather(column, records, _rows(rows))
            made.append(rows)
        return made


def _memory_of(tensors: Sequence[torch.Tensor]) -> list[tuple[object, ...]]:
    return [(tensor.data_ptr(), tensor.shape, tensor.dtype) for tensor in tensors]


def _leaves(store: Store) -> Sequence[TensorStore]:
    if isinstance(store, ConcatStore):
        return [leaf for part in store.stores for leaf in _leaves(part)]
    assert isinstance(store, TensorStore)
    return [store]


def gathers(store: Store) -> bool:
    """Whether batches of ``store`` are rows of tensors."""
    if isinstance(store, ConcatStore):
        return all(map(gathers, store.stores))
    return isinstance(store, TensorStore)


def _rows(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a contiguous tensor: uint8 (n, bytes of a row)."""
    nbytes = math.prod(tensor.shape[1:]) * tensor.element_size()
    return tensor.view(-1).view(torch.uint8).numpy().reshape(len(tensor), nbytes)
