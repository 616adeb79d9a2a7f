"""TensorDataset: a batch is rows of its tensors, gathered by one call for each of them.

Torch takes the dataset apart into samples and stacks these again. Here a batch is copied once, out
of the tensors into a slab; its structure, types and values are those that default_collate gives.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch.utils.data import TensorDataset

from .._base.nested import plain
from ..storage.tensors import TensorStore
from .unreadable import Unreadable

_stores: weakref.WeakKeyDictionary[Any, TensorStore] = weakref.WeakKeyDictionary()


def tensors_of(dataset: TensorDataset) -> TensorStore:
    """The tensors of a TensorDataset as they are now: they, and their memory, may be replaced.

    Raises:
        Unreadable: only torch can take samples out of them.
    """
    tensors = dataset.tensors
    if not tensors or not all(plain(t) and t.dim() > 0 and t.is_contiguous() for t in tensors):
        raise Unreadable(
            "the TensorDataset has tensors that are not plain, contiguous ones on the CPU"
        )
    if any(not t.numel() or len(t) != len(tensors[0]) for t in tensors):
        raise Unreadable("the TensorDataset has tensors that are empty or differ in length")
    store = TensorStore(tensors)
    known = _stores.get(dataset)
    if known is None or not known.same_as(store):
        known = _stores[dataset] = store
    return known
