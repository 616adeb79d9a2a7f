"""datasets.Dataset of Hugging Face: known without importing the package.

If the user's program did not import it, nothing is one of its datasets.
"""

from __future__ import annotations

import sys
from typing import Any

_MODULE = "datasets.arrow_dataset"


def known(dataset: Any) -> bool:
    """Whether it is a ``datasets.Dataset``."""
    module = sys.modules.get(_MODULE)
    return module is not None and type(dataset) is module.Dataset
