"""Doctor: runs somebody's training script for some steps, and says what holds it up.

``child.py`` runs the script in a process of its own, ``watch.py`` observes its loaders and model
there, ``counters.py`` what its datasets do, also in worker processes, ``sampler.py`` threads
and memory; ``observation.py`` is what comes back, ``rules.py`` turns it into findings,
``examine.py`` is the whole of it.
"""

from __future__ import annotations

from .examine import Diagnosis, examine
from .rules import Finding

__all__ = ["Diagnosis", "Finding", "examine"]
