"""Doctor: run a training script for some steps and report what slows it down.

``examine.py`` starts the script in a separate process (``child.py``). There ``watch.py`` observes
its loaders and its model, ``counters.py`` and ``profiler.py`` the work and the functions of its
datasets, also in worker processes, ``sampler.py`` threads and memory, and ``trial.py`` tries
FastLoader on its dataset. ``places.py`` finds lines in the user's code, ``sources.py`` reads it.
The result is an ``observation.py``, from which ``rules.py`` derives findings. ``comparison.py``
compares the script with and without FastLoader.
"""

from __future__ import annotations

from .comparison import Comparison
from .examine import Diagnosis, apply, examine
from .rules import Finding

__all__ = ["Comparison", "Diagnosis", "Finding", "apply", "examine"]
