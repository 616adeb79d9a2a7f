"""PillowShare: which records the core leaves to Pillow, and whether processes decode them.

Most of Pillow's work on a small image is Python, which threads cannot do at the same time. So a
sample of the records is examined once. If Pillow has to decode enough of them, worker processes do
it (``_engine/processes.py``). The results are the same.
"""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import os
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING

import numpy as np

from .._engine import registry
from .._engine.image_engine import EngineOptions
from .._sources.source import Source
from .._transforms.plan import Plan, Views
from ..errors import DataError
from ..storage._signatures import image_format
from ..storage.base import Store
from .config import LoaderConfig
from .resources import Resources

if TYPE_CHECKING:
    from .._engine.processes import Processes

# Size of the sample, which is spread over the dataset.
_LOOKED_AT = 32

# Processes are used if Pillow decodes at least this share; starting one takes some milliseconds.
_SHARE = 1 / 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class PillowShare:
    """What Pillow decodes of a sample of the records, and where.

    Attributes:
        looked_at: size of the sample.
        left: int64, the records of the sample that Pillow decodes.
        threads: why threads must do it; "" if processes can.
    """

    looked_at: int
    left: np.ndarray
    threads: str

    @property
    def processes(self) -> bool:
        """Whether processes run Pillow."""
        return not self.threads and len(self.left) > 0 and self.matters

    @property
    def matters(self) -> bool:
        """Whether Pillow's share is large enough for processes."""
        return len(self.left) >= _SHARE * self.looked_at

    def explain(self, source: Source, workers: int) -> list[str]:
        """Lines for ``FastLoader.explain()``; none if the core decodes everything."""
        if not len(self.left):
            return []
        share = len(self.left) / self.looked_at
        who = f"{workers or 'the calling'} thread{'s' * (workers != 1)}"
        if self.processes:
            who = f"{workers} worker process{'es' * (workers != 1)}"
        elif self.threads and workers:
            who += f", which take turns, because {self.threads}"
        return [
            f"pillow: decodes {share:.0%} of the {self.looked_at} records sampled"
            f"{_formats(source.store, self.left)}, in {who}",
            "faster: `fastload pack --encode raw` (the same pixels) or `--encode jpeg` (smaller, "
            "not the same) makes records that the core decodes",
        ]


def pillow_share(config: LoaderConfig, resources: Resources, source: Source) -> PillowShare | None:
    """Pillow's share of ``source``; None if the engine or the source rules it out."""
    if not registry.may_use_processes(config.engine) or source.tensors or not len(source):
        return None
    if source.store.remote:
        return None  # a sample of its records would be fetched before the first batch
    looked_at = resources.looked_at
    if looked_at is None or looked_at[0] != source.parts:
        indices = np.linspace(0, len(source) - 1, min(len(source), _LOOKED_AT), dtype=np.int64)
        records = source.lookup(indices)
        looked_at = resources.looked_at = (
            source.parts,
            records,
            _left(source.store, records, config.num_workers),
        )
    _, records, for_pillow = looked_at
    why = _why_threads(config, resources)
    return PillowShare(looked_at=len(records), left=for_pillow, threads=why)


def _left(store: Store, records: np.ndarray, threads: int) -> np.ndarray:
    from .._engine.native import left_to_pillow

    for_pillow: np.ndarray = records[left_to_pillow(store, records, threads)]
    return for_pillow


def _why_threads(config: LoaderConfig, resources: Resources) -> str:
    """Why there can be no processes; "" if there can."""
    if not config.num_workers:
        return "num_workers=0 asks for no processes"
    if multiprocessing.current_process().daemon:
        return "this is a worker process, which may not start others"
    if not hasattr(os, "memfd_create"):
        return "the system has no memory files (memfd_create)"  # Linux has them, and fork
    if resources.cache is None:
        return ""
    if _context(config).get_start_method() != "fork":
        return "a cache can only be shared with forked processes"
    return ""


def _context(config: LoaderConfig) -> BaseContext:
    """The start method: the user's for this loader, else the user's default, else fork.

    Other start methods import the user's script again, which some scripts do not expect. Forking is
    safe here because the child touches nothing that another thread may have held at that time.
    """
    given = config.multiprocessing_context
    if isinstance(given, BaseContext):
        return given
    default = multiprocessing.get_start_method(allow_none=True)
    return multiprocessing.get_context(given or default or "fork")


def processes(config: LoaderConfig, store: Store, plan: Plan | Views) -> Processes:
    """The processes that decode ``store`` for ``plan``, not yet started."""
    from .._engine.native import NativeEngine
    from .._engine.processes import Processes

    options = EngineOptions(
        threads=0, ring=None, channels_last=config.channels_last, check_crc="never"
    )
    engines = [NativeEngine(store, one, options) for one in plan.each]
    return Processes(engines, _context(config), persistent=config.persistent_workers)


def ahead(prefetch: int, workers: int, batch_size: int | None) -> int:
    """The number of batches to make ahead if processes decode.

    They have as many samples as torch's workers would, so that small batches keep all processes
    busy.
    """
    return max(prefetch, math.ceil(prefetch * workers / (batch_size or 1)))


def _formats(store: Store, records: np.ndarray) -> str:
    """The image formats of these records, as far as their first bytes show."""
    try:
        names = sorted({image_format(data) for data in store.read(records)} - {"other"})
    except DataError:
        return ""  # raised again for the batch
    return f" ({', '.join(name.upper() for name in names)})" if names else ""
