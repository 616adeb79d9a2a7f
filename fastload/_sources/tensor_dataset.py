"""The store of a TensorDataset: a batch is rows of its tensors, copied by one call per tensor.

torch takes each sample out of the tensors and stacks the samples again. Here the rows of a batch
are copied once, from the tensors into a slab. Structure, types and values are those of
default_collate.
"""

from __future__ import annotations

import weakref

from torch.utils.data import TensorDataset

from .._base.nested import plain
from ..storage.tensors import TensorStore
from .unreadable import Unreadable

_stores: weakref.WeakKeyDictionary[TensorDataset, TensorStore] = weakref.WeakKeyDictionary()


def tensor_store(dataset: TensorDataset) -> TensorStore:
    """The store over the current tensors of ``dataset``, which may be replaced between epochs.

    Raises:
        Unreadable: only torch can make samples of them.
    """
    tensors = dataset.tensors
    if not tensors or not all(plain(t) and t.dim() > 0 and t.is_contiguous() for t in tensors):
        raise Unreadable(
            "the TensorDataset has tensors that are not plain, contiguous ones on the CPU"
        )
    if any(not t.numel() or t.shape[0] != tensors[0].shape[0] for t in tensors):
        raise Unreadable("the TensorDataset has tensors that are empty or differ in length")
    store = _stores.get(dataset)
    if store is None or not store.reads(tensors):
        store = _stores[dataset] = TensorStore(tensors)
    return store
