"""``decode_on``: other machines decode (``_engine/on_ray.py``)."""

from __future__ import annotations

import dataclasses

from .._base.slabs import SlabRing
from .._engine.base import BatchEngine
from .._engine.image_engine import EngineOptions, ImageEngine
from .._engine.registry import make_engine
from .._sources.source import Source
from .._transforms.plan import Plan
from .._transforms.views import Views
from ..errors import UsageError
from ..storage.base import Store
from .config import LoaderConfig

_AHEAD = 2  # batches for each that is being decoded, as torch has for each worker


def check(config: LoaderConfig, source: Source) -> None:
    """Raise UsageError unless other machines can decode what ``source`` has."""
    if config.decode_on is None:
        return
    reason = None
    if source.tensors:
        reason = "the dataset holds tensors, and nothing is decoded: leave decode_on out"
    elif isinstance(source.plan, Views):
        reason = "the transform gives several views: leave decode_on out"
    elif source.plan.joint is not None:
        reason = (
            "joint= moves masks and boxes along by what this process draws and reads: leave "
            "decode_on out"
        )
    elif source.store.remote:
        reason = "the store is at a URL: copy it to a folder that all machines share"
    if reason is not None:
        raise UsageError(f"decode_on={config.decode_on!r} is not possible: {reason}")


def ahead(config: LoaderConfig) -> int:
    """Batches that are ahead of the consumer: decoded, being decoded, or waiting for that."""
    return config.num_workers * (config.prefetch_factor or _AHEAD)


def engine(name: str, store: Store, plan: Plan | Views, options: EngineOptions) -> BatchEngine:
    """The engine ``name`` on other machines; the arguments are those of ``make_engine``.

    Raises:
        UsageError: this process is not connected to a cluster.
        MissingDependencyError: Ray is not installed.
    """
    from .._engine.on_ray import RayEngine

    alone = dataclasses.replace(options, threads=0, ring=SlabRing(1), processes=None)
    local, remote = (make_engine(name, store, plan, one) for one in (options, alone))
    assert isinstance(local, ImageEngine) and isinstance(remote, ImageEngine)  # see ``check``
    return RayEngine(local, remote)


def in_words(config: LoaderConfig) -> str:
    """For ``explain()``: how batches are made."""
    return f"on Ray, {max(1, config.num_workers)} batches at a time, {ahead(config)} ahead"
