"""Job: one store that ``pack`` writes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from .._version import __version__
from ..storage.remote.options import RemoteOptions
from ._source import PackSource


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackJob:
    """Which records of the source, ascending, into which store, maybe at a URL.

    Equal ``settings`` (JSON-able) resume unfinished work.
    """

    path: str
    indices: np.ndarray
    settings: dict[str, Any]
    remote: RemoteOptions

    def metadata(self, source: PackSource) -> dict[str, Any]:
        """What the store says about its making."""
        joint = {"joint": dict(source.joint)} if source.joint else {}
        return {"fastload": __version__, **self.settings, **joint, **source.noted}
