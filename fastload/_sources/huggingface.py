"""Hugging Face datasets: how to recognise them, and how a loader opens them.

This never imports the ``datasets`` package: if the user's program has not imported it, no dataset
can be one of its classes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ..storage.huggingface import known as known

_STREAMS = "datasets.iterable_dataset"


def is_stream(dataset: object) -> bool:
    """Whether it is a ``datasets.IterableDataset``."""
    module = sys.modules.get(_STREAMS)
    return module is not None and isinstance(dataset, module.IterableDataset)


def keeps_loaded_state(dataset: object) -> bool:
    """Whether it is a ``datasets.IterableDataset``, or wraps one, which keeps a loaded state.

    Its state is a position within an epoch. Every iteration starts there, until another state is
    loaded; ``load_state_dict(None)`` makes it start at the beginning again.
    """
    return is_stream(dataset) or getattr(dataset, "keeps_loaded_state", False)


def reason(dataset: Any) -> str:
    """Why the dataset's own code makes its samples, and what the user can write instead."""
    instead = "FastLoader(dataset, transform=a torchvision transform) would decode natively"
    if dataset.format["type"] == "custom":
        return (
            "the samples of this Hugging Face dataset are made by the function given to "
            f"with_transform or set_transform; with dataset.with_format(None), {instead}"
        )
    return f"this Hugging Face dataset makes its samples in Python; {instead}"


def open_nested(
    dataset: Any, opened: Callable[[Any], Any], ours: Callable[[Any], bool]
) -> Any | None:
    """Open the Hugging Face datasets in ``dataset``, which may be nested.

    Args:
        dataset: anything.
        opened: makes a dataset that fastload reads from one that is ``ours`` or ``known``.
        ours: whether a dataset was opened already.

    Returns:
        The opened dataset, in the same nesting of Subset and ConcatDataset; None if ``dataset``
        contains anything else.
    """
    from torch.utils.data import (  # imported here, because recognising a store needs no torch
        ConcatDataset,
        Subset,
    )

    if known(dataset) or ours(dataset):
        return opened(dataset)
    if type(dataset) is Subset:
        inner = open_nested(dataset.dataset, opened, ours)
        return None if inner is None else Subset(inner, dataset.indices)
    if type(dataset) is ConcatDataset:
        parts: list[Any] = [open_nested(part, opened, ours) for part in dataset.datasets]
        return None if any(part is None for part in parts) else ConcatDataset(parts)
    return None
