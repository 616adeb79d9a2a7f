"""Hugging Face datasets: how to recognise them, and how a loader opens them.

This never imports the ``datasets`` package: if the user's program has not imported it, no dataset
can be one of its classes.
"""

from __future__ import annotations

import sys
from typing import Any

from .._base.huggingface import is_dataset as is_dataset

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
