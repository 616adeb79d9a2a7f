"""Recognising Hugging Face's datasets.Dataset without importing the package.

If the user's program did not import it, nothing can be one of its datasets.
"""

from __future__ import annotations

import sys

_MODULE = "datasets.arrow_dataset"


def known(dataset: object) -> bool:
    """Whether it is a ``datasets.Dataset``."""
    module = sys.modules.get(_MODULE)
    return module is not None and type(dataset) is module.Dataset
