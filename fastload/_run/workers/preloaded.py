"""Imported by a fork server: what its workers need is imported and exchanged there, once.

Python 3.14 takes workers from such a server by default. They share nothing with the training
process: each would import and prove in every epoch what forked ones have from there, which takes
a fifth of a second.
"""

from __future__ import annotations

import contextlib

from . import task_fetcher  # noqa: F401
from .choice import Choice
from .deferral import begin_epoch, rest

# Whatever is raised here would end the server. A worker that needs it will raise it again.
with contextlib.suppress(Exception):
    begin_epoch()
    rest(Choice())
