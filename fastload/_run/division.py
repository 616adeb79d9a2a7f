"""What of a loader's images is decoded in processes: that which the core leaves to Pillow.

Most of what Pillow does with a small image is Python, and threads would take turns at it. So some
of the records are looked at, once, and where the core does not decode enough of them, worker
processes do (``_engine/processes.py``). What comes out is the same.
"""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import os
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING

import numpy as np

from .._engine import chosen
from .._sources.source import Source
from .._transforms.plan import Plan
from .._transforms.views import Views
from ..errors import DataError
from ..storage._signatures import image_format
from ..storage.base import Store
from .config import LoaderConfig
from .resources import Resources

if TYPE_CHECKING:
    from .._engine.processes import Processes

# Records that are looked at, from all over the dataset.
_LOOKED_AT = 32

# From this share on processes are begun, which takes some milliseconds each.
_SHARE = 1 / 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Division:
    """Who decodes.

    Attributes:
        looked_at: how many records were looked at.
        left: int64, those of them that Pillow decodes.
        threads: why threads do it all the same; "": they need not.
    """

    looked_at: int
    left: np.ndarray
    threads: str

    @property
    def processes(self) -> bool:
        """Whether processes decode what Pillow has to."""
        return not self.threads and len(self.left) > 0 and self.matters

    @property
    def matters(self) -> bool:
        """Whether it is more than a few records."""
        return len(self.left) >= _SHARE * self.looked_at

    def explain(self, source: Source, workers: int) -> list[str]:
        """In words: nothing where the core decodes all."""
        if not len(self.left):
            return []
        share = len(self.left) / self.looked_at
        who = f"{workers or 'the calling'} thread{'s' * (workers != 1)}"
        if self.processes:
            who = f"{workers} worker process{'es' * (workers != 1)}"
        elif self.threads and workers:
            who += f", which take turns, as {self.threads}"
        lines = [
            f"pillow: decodes {share:.0%} of the {self.looked_at} records looked at"
            f"{_formats(source.store, self.left)}, in {who}"
        ]
        if source.store.indirect is None:
            lines.append(
                "faster: `fastload pack --encode raw` (the same pixels) or `--encode jpeg` "
                "(smaller, not the same) makes records that the core decodes"
            )
        return lines


def division(config: LoaderConfig, resources: Resources, source: Source) -> Division | None:
    """Who decodes; None where there is nothing to divide."""
    if config.engine not in ("auto", "native") or source.tensors or not len(source):
        return None
    known = resources.looked_at
    if known is None or known[0] != source.parts:
        indices = np.linspace(0, len(source) - 1, min(len(source), _LOOKED_AT), dtype=np.int64)
        records = source.lookup(indices)
        known = resources.looked_at = (
            source.parts,
            records,
            _left(source.store, records, config.num_workers),
        )
    _, records, left = known
    why = _why_threads(config, resources, source.store)
    return Division(looked_at=len(records), left=left, threads=why)


def _left(store: Store, records: np.ndarray, threads: int) -> np.ndarray:
    if chosen("auto", store) == "python":
        return records
    from .._engine.native import left_to_pillow

    left: np.ndarray = records[left_to_pillow(store, records, threads)]
    return left


def _why_threads(config: LoaderConfig, resources: Resources, store: Store) -> str:
    """Why there can be no processes, or ""."""
    if not config.num_workers:
        return "num_workers=0 asks for nothing else"
    if multiprocessing.current_process().daemon:
        return "this is a worker process itself, which may have none"
    if not hasattr(os, "memfd_create"):
        return "the system has no memory files (memfd_create)"  # Linux has them, and fork
    if resources.cache is None:
        return ""
    if _context(config).get_start_method() != "fork":
        return "a cache is shared with processes that are forked only"
    if chosen("auto", store) == "python":
        return "the cache of a build without the core is not for processes"
    return ""


def _context(config: LoaderConfig) -> BaseContext:
    """How processes begin: as the user says, for this loader or for all; else by a fork.

    Other ways import the user's script again, which not every script expects. What is forked does
    not go back into anything that other threads may have been at.
    """
    given: BaseContext | None = config.multiprocessing_context
    if given is not None:
        return given
    chosen_for_all = multiprocessing.get_start_method(allow_none=True)
    return multiprocessing.get_context(chosen_for_all or "fork")


def processes(
    config: LoaderConfig, resources: Resources, source: Source, store: Store, plan: Plan | Views
) -> Processes | None:
    """The processes that decode ``store`` for ``plan``, not started; None where there are none."""
    found = division(config, resources, source)
    if found is None or not found.processes:
        return None
    from .._engine.processes import Processes
    from .._engine.python import PythonDecoder

    decoders = [
        PythonDecoder(
            store,
            one,
            channels_last=config.channels_last,
            threads=0,
            check_crc="never",
            ring=None,
        )
        for one in (plan.each if isinstance(plan, Views) else [plan])
    ]
    return Processes(decoders, _context(config), persistent=config.persistent_workers)


def ahead(prefetch: int, workers: int, batch_size: int | None) -> int:
    """Batches ahead of the consumer where processes decode.

    As many samples as torch's workers would have: small batches must keep all processes busy.
    """
    return max(prefetch, math.ceil(prefetch * workers / (batch_size or 1)))


def _formats(store: Store, records: np.ndarray) -> str:
    """What these records are, as far as their first bytes tell."""
    if store.indirect is not None:
        return ""
    try:
        names = sorted({image_format(data) for data in store.read(records)} - {"other"})
    except DataError:
        return ""  # the batch will say so
    return f" ({', '.join(name.upper() for name in names)})" if names else ""
