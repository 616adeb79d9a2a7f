"""Recognising Hugging Face's datasets.Dataset without importing the package.

If the user's program did not import it, nothing can be one of its datasets.
"""

from __future__ import annotations

import sys

_MODULE = "datasets.arrow_dataset"


def is_dataset(dataset: object) -> bool:
    """Whether it is a ``datasets.Dataset``."""
    return type(dataset) is getattr(sys.modules.get(_MODULE), "Dataset", None)
