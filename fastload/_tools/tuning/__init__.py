"""Autotune: find the fastest workers, batch size, prefetch and cache for a dataset by measuring.

A ``Point`` (``_run/tuned_file.py``) is one setting. ``target.py`` is the dataset, ``meter.py``
measures settings, ``grid.py`` lists those to try, ``search.py`` decides what to measure next,
``result.py`` is the outcome and its file, and ``page.py`` shows it.
"""

from __future__ import annotations

from ..._run.tuned_file import load
from .result import Tuning
from .search import autotune

__all__ = ["Tuning", "autotune", "load"]
