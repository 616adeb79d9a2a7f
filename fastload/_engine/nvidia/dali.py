"""The DALI engine: JPEGs through NVIDIA DALI, on a GPU or on DALI's CPU back end.

What it is not given and what is not taken of it is said in ``foreign.py``. A batch that DALI fails
on is decoded again as a whole, by the engine that decodes what it is not given.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ..._transforms.geometry.crop_geometry import Geometry
from ..._transforms.geometry.draws import CenterCrop, Pad, RandomCrop
from ..._transforms.recognise import Plan
from ..._transforms.views import Views
from ...errors import DataError
from ...storage.base import Store
from ..decoder import Batch, Ticket
from . import dali_graph, foreign
from .dali_graph import FILTERS, Build, Graph, Work
from .foreign import ForeignDecoder, ForeignTicket, as_promised, resizes

_log = logging.getLogger("fastload")


def refusal(plan: Plan | Views, store: Store) -> str | None:
    """Why DALI cannot make what ``plan`` says of ``store``, in words, or None."""
    return foreign.refusal(plan, store, "DALI", FILTERS, "box and Hamming, nor its nearest")


class DaliDecoder(ForeignDecoder):
    """Fills batches with DALI. See ``ForeignDecoder`` for the arguments."""

    name = "dali"
    library = dali_graph

    def open(self, hw_decoder_load: float) -> None:
        """As in ``ForeignDecoder``."""
        plan = self.plan
        build = Build(
            device_id=None if self.stream is None else self.stream.device.index,
            threads=max(1, self.threads),
            filter=plan.filter if resizes(plan) else None,
            windowed=any(isinstance(op, (Pad, RandomCrop, CenterCrop)) for op in plan.ops),
            fill=plan.fill,
            hw_decoder_load=hw_decoder_load,
            whole=not dali_graph.takes_boxes(self.device),
        )
        self.graph = Graph(build, self.stream)

    def kept(self, pixels: torch.Tensor) -> torch.Tensor:
        """As in ``ForeignDecoder``: DALI writes the next batch where this one was."""
        return pixels.clone()

    def _start(self, batch: Batch) -> Ticket:
        return _DaliTicket(self, batch)


class _DaliTicket(ForeignTicket):
    _decoder: DaliDecoder
    _work: Work | None = None

    def begin(self, data: list[np.ndarray | None]) -> None:
        self._work = Work(_inputs(self.batch.geometry, self.given, data))
        self._decoder.graph.put(self._work)

    def wait(self) -> tuple[torch.Tensor | None, np.ndarray]:
        work = self._work
        assert work is not None
        self._decoder.graph.take(work)
        if work.failure is not None or work.found is None:
            return None, np.empty(0, np.int64)
        self._decoder.failures = 0
        good, images = as_promised(self.batch, self.given, work.found), work.images
        if images is not None and len(good) < len(self.given):
            with self._decoder.on_stream():
                images = images[torch.from_numpy(good).to(images.device)]
        return images, good

    def drop(self) -> None:
        if self._work is not None:
            self._decoder.graph.drop(self._work)

    def failed(self, errors: Mapping[int, DataError]) -> None:
        """Remember what DALI failed on, so that it fails once."""
        if self._work is None or self._work.failure is None:
            return
        decoder, batch, failure = self._decoder, self.batch, self._work.failure
        bad = [i for i in errors if i in set(self.given.tolist())]
        decoder.for_cpu[batch.records[bad if bad else self.given]] = True
        reason = " ".join(str(failure).split())[:300]
        if bad:
            decoder.failures = 0
            _log.info("a broken image ended DALI's batch, which the CPU has decoded: %s", reason)
            return
        decoder.failed(reason, failure)


def _inputs(geometry: Geometry, which: np.ndarray, data: list[np.ndarray | None]) -> Any:
    """``Work.inputs`` of the samples ``which``."""
    n = len(which)
    size = np.empty((n, 2), np.int32)
    size[:] = geometry.out_w, geometry.out_h
    return {
        "encoded": [data[i] for i in which.tolist()],
        "corner": np.ascontiguousarray(geometry.box[which, :2]),
        "sides": np.ascontiguousarray(geometry.box[which, 2:]),
        "size": geometry.resized[which, ::-1].astype(np.float32, order="C"),
        "window": np.ascontiguousarray(geometry.window[which]),
        "out": size,
        "flip": geometry.flip[which].astype(np.int32),
    }
