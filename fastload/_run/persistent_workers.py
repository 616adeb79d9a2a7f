"""PersistentWorkers: worker processes that live on after an epoch."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class PersistentWorkers:
    """They belong to one iterator, as in torch, and end when nothing refers to it any more.

    ``holder`` keeps them: torch's loader of outcomes, or torch's own iterator; None: there are
    none.
    """

    holder: object | None = None
