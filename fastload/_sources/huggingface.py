"""datasets.Dataset of Hugging Face: which there are, and how a loader comes to read them.

The package is never imported here: if the user's program did not, this is none of its datasets.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ..storage.huggingface import known as known

_STREAMS = "datasets.iterable_dataset"


def keeps_loaded_state(dataset: Any) -> bool:
    """Whether it is a ``datasets.IterableDataset``.

    Its state is a place within an epoch: every iteration begins at its beginning, or where the
    state that was loaded last says, until ``load_state_dict(None)``.
    """
    module = sys.modules.get(_STREAMS)
    return module is not None and isinstance(dataset, module.IterableDataset)


def reason(dataset: Any) -> str:
    """Why its own code makes the samples of such a dataset, and what to write instead."""
    instead = "FastLoader(dataset, transform=a torchvision transform) would decode natively"
    if dataset.format["type"] == "custom":
        return (
            "the samples of this Hugging Face dataset are made by the function given to "
            f"with_transform or set_transform; dataset.with_format(None) and {instead}"
        )
    return f"this Hugging Face dataset makes its samples by its own code; {instead}"


def through(dataset: Any, opened: Callable[[Any], Any], ours: Callable[[Any], bool]) -> Any | None:
    """``dataset``, where it is one for ``opened`` or consists of such, with these opened.

    Args:
        dataset: anything.
        opened: makes a dataset that fastload reads of one that is ``ours`` or ``known``.
        ours: whether a dataset was opened already.

    Returns:
        A Subset or a ConcatDataset as ``dataset`` is one; None where it is none of all this.
    """
    from torch.utils.data import ConcatDataset, Subset  # here: stores are known without torch

    if known(dataset) or ours(dataset):
        return opened(dataset)
    if type(dataset) is Subset:
        inner = through(dataset.dataset, opened, ours)
        return None if inner is None else Subset(inner, dataset.indices)
    if type(dataset) is ConcatDataset:
        parts: list[Any] = [through(part, opened, ours) for part in dataset.datasets]
        return None if any(part is None for part in parts) else ConcatDataset(parts)
    return None
