"""Inspection: what a loader keeps at the moment, for tests and for a look into a program."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from .._engine.base import BatchEngine
from .._engine.cache.cache import Cache
from ..errors import InternalError
from .resources import Resources

if TYPE_CHECKING:
    from .._base.devices.mover import Mover
    from .._base.shared_slabs import SharedRing
    from .._base.slabs import SlabRing
    from .._base.trace import Stamps
    from .._engine.device_stage import DeviceStage
    from .._sources.deferred.batch import BatchDecoder
    from .governor import Governor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inspection:
    """What ``Resources`` describes. Every part is None until an epoch needs it.

    Any release may change these. ``shared`` are the slabs that worker processes collate into.
    """

    _engine: BatchEngine | None
    cache: Cache | None
    governor: Governor | None
    decoder: BatchDecoder | None
    shared: SharedRing | None
    warm: SlabRing | None
    mover: Mover | None
    stage: DeviceStage | None
    stamps: Stamps

    @property
    def engine(self) -> BatchEngine:
        """What fills batches. Raises InternalError if no engine did."""
        if self._engine is None:
            raise InternalError("no engine has filled a batch of this loader")
        return self._engine


def inspection(resources: Resources) -> Inspection:
    """What ``resources`` hold."""
    return Inspection(
        _engine=None if resources.engine is None else resources.engine[1],
        cache=resources.cache,
        governor=resources.governor,
        decoder=resources.decoder,
        shared=resources.ring,
        warm=resources.warm,
        mover=resources.mover.get(),
        stage=None if resources.stage is None else resources.stage[2],
        stamps=resources.measurements.stamps,
    )
