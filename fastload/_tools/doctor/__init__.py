"""Doctor: runs somebody's training script for some steps, and says what holds it up.

``child.py`` runs the script in a process of its own, ``watch.py`` observes its loaders and model
there, ``counters.py`` what its datasets do, also in worker processes, and ``profiler.py`` in which
functions; ``sampler.py`` threads and memory; ``trial.py`` tries FastLoader on its dataset;
``places.py`` tells the user's code, ``sources.py`` reads it. ``observation.py`` is what comes back,
``rules.py`` turns it into findings, ``examine.py`` is the whole of it, ``comparison.py`` the same
script with FastLoader in place.
"""

from __future__ import annotations

from .comparison import Comparison
from .examine import Diagnosis, apply, examine
from .rules import Finding

__all__ = ["Comparison", "Diagnosis", "Finding", "apply", "examine"]
