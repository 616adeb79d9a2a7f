"""Autotune: the fastest workers, batch size and prefetch for a dataset, found by experiment.

``point.py`` is one setting, ``target.py`` what is loaded with it, ``meter.py`` measures,
``search.py`` decides what to measure next, ``result.py`` is what comes out and its file,
``page.py`` shows it.
"""

from __future__ import annotations

from ..._run.tuned_file import load
from .result import Tuning
from .search import autotune

__all__ = ["Tuning", "autotune", "load"]
