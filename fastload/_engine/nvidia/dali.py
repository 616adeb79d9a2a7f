"""The DALI engine: JPEGs through NVIDIA DALI, on a GPU or on DALI's CPU back end.

Order, crops, sizes, windows and flips are fastload's, so each image shows what it shows in the
other engines. Levels differ a little, because other decoders and resizes round differently. The
table and erasing follow where the images are (``_engine/device_stage.py``).

The native engine decodes some samples into their places in the batch, with the pixels and errors
that it gives alone:

- records that are no whole JPEG file, do not match their checksum, or have more pixels than Pillow
  opens without a warning, which DALI is not given;
- files of another size than the store says, and CMYK;
- what DALI fails on. A batch that DALI fails on is decoded again as a whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Mapping

import numpy as np
import torch
from typing_extensions import override

from ..._base.devices.cuda import on_stream, side_stream
from ..._base.slabs import SlabRing
from ..._transforms.geometry.bucket_crops import CropToBucket
from ..._transforms.geometry.crop_geometry import Geometry
from ..._transforms.geometry.draws import RESIZING, CenterCrop, Pad, RandomCrop
from ..._transforms.pixels.erasing import ErasedBoxes
from ..._transforms.plan import Plan, Views
from ...errors import DataError, InternalError
from ...storage.base import Store
from ..base import Ticket, summed
from ..cache.store import CachedStore
from ..device_stage import DeviceStage
from ..image_engine import EngineOptions, ImageEngine
from ..kernel import BatchRequest
from ..native import NativeEngine
from . import dali_graph
from .dali_graph import FILTERS, Graph, Inputs, PipelineBatch, PipelineOptions
from .records import Records

_log = logging.getLogger("fastload")

# After DALI has failed on so many batches in a row in which every image is sound, the data is not
# the cause, and to fall back for ever would only be slow.
_MOST_FAILURES = 8


def refusal(plan: Plan | Views | None, store: Store) -> str | None:
    """Why DALI cannot read ``store``, or do what ``plan`` says; None: it can."""
    if store.indirect is not None:
        return f"DALI cannot read this store: {store.indirect}"
    if isinstance(store, CachedStore):
        return "a cache is for the other engines"
    if plan is None:
        return None
    if isinstance(plan, Views):
        return "several views of an image are decoded once, on the CPU"
    if plan.channels != 3:
        return "gray images are for the other engines"
    if plan.joint is not None:
        return "masks and boxes that move along are for the other engines"
    if plan.scaled:
        return "decode='scaled' is for the other engines"
    if plan.stages:
        return "the transform has operations that DALI cannot be given our parameters for"
    if _resizes(plan) and plan.filter not in FILTERS:
        return "DALI has no filter like Pillow's box and Hamming, nor its nearest"
    return None


def _resizes(plan: Plan) -> bool:
    return any(isinstance(op, (*RESIZING, CropToBucket)) for op in plan.ops)


class DaliEngine(ImageEngine):
    """Fills batches with DALI, where ``options.device`` is: on a GPU, or in host memory.

    Raises MissingDependencyError if DALI is not installed.
    """

    name = "dali"

    def __init__(self, store: Store, plan: Plan, options: EngineOptions) -> None:
        if dali_graph.absent():
            raise dali_graph.missing()
        super().__init__(store, plan, options)
        self.device = options.device
        self.stream: torch.cuda.Stream | None = None
        if self.device.type == "cuda":
            self.stream = side_stream(self.device)
        self.records = Records(store)
        # bool (n,): records that DALI failed on, which it is not given again
        self.for_cpu = np.zeros(len(store), bool)
        self.failures = 0  # batches in a row that it failed on though every image was sound
        self._fallback: NativeEngine | None = None
        self._stage: DeviceStage | None = None
        build = PipelineOptions(
            device_id=None if self.stream is None else self.stream.device.index,
            threads=max(1, self.threads),
            filter=plan.filter if _resizes(plan) else None,
            windowed=any(
                isinstance(op, (Pad, RandomCrop, CenterCrop, CropToBucket)) for op in plan.ops
            ),
            fill=plan.fill,
            whole=self.stream is not None,
        )
        self.graph = Graph(build, self.stream)

    def fallback(self) -> NativeEngine:
        """The engine of the samples that DALI is not given: uint8, NHWC in memory."""
        if self._fallback is None:
            options = EngineOptions(
                threads=self.threads,
                ring=SlabRing(3),
                channels_last=True,
                check_crc=self.options.check_crc,
            )
            self._fallback = NativeEngine(self.store, self.plan.levels(), options)
        self._fallback.use_threads(self.threads)
        return self._fallback

    def failed(self, reason: str, cause: BaseException | None = None) -> None:
        """Note that DALI decoded nothing of a batch in which every image is sound.

        Raises InternalError when it happens again and again.
        """
        self.failures += 1
        if self.failures >= _MOST_FAILURES:
            raise InternalError(
                f"DALI failed on {_MOST_FAILURES} batches in a row in which every image can be "
                f"decoded; leave out engine='dali'. It says: {reason}"
            ) from cause
        _log.warning("DALI failed on a batch, which the CPU has decoded: %s", reason)

    def on_stream(self) -> contextlib.AbstractContextManager[object]:
        """Within it, work on the GPU is queued in this engine's stream. On the CPU: nothing."""
        return contextlib.nullcontext() if self.stream is None else on_stream(self.stream)

    @override
    def release(self, user: object) -> None:
        super().release(user)
        if not self._users and self._fallback is not None:
            self._fallback.release(user)

    @override
    def start(self, batch: BatchRequest) -> Ticket:
        return _DaliTicket(self, batch)

    @override
    def allocate(self, n: int, height: int, width: int) -> tuple[torch.Tensor, np.ndarray]:
        """On a GPU nothing, because the batch is made there."""
        if self.stream is None:
            return super().allocate(n, height, width)
        return torch.empty(0), np.empty(0, np.uint8)

    def finished(self, pixels: torch.Tensor, batch: BatchRequest) -> torch.Tensor:
        """The batch, made of its uint8 pixels (n, h, w, 3): table, erasing, layout.

        It is complete when this returns. On a GPU it lies in memory of torch's allocator that
        nothing else refers to.
        """
        if self.stream is None:
            return batch.images.copy_(self._values(pixels, batch))
        with on_stream(self.stream):
            # A copy: DALI writes the next batch where this one was.
            values = self._values(pixels.clone(), batch)
            # blocking: a host that spins takes a core from the threads that decode
            done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            done.record(self.stream)
        # Waiting here costs nothing: the next batch is in flight already. Afterwards DALI may reuse
        # its memory, and other streams may read the batch. The transfer stage holds it, and records
        # the caller's stream on it, before this stream can write to its memory again.
        done.synchronize()
        return values

    def _values(self, pixels: torch.Tensor, batch: BatchRequest) -> torch.Tensor:
        levels = pixels.permute(0, 3, 1, 2)
        if self._stage is None:
            order = torch.channels_last if self.options.channels_last else torch.contiguous_format
            self._stage = DeviceStage(self.plan, self.device, order)
        params = batch.params
        drawn = None if params is None else ErasedBoxes(params.boxes, params.keys)
        return self._stage(levels, drawn)


class _DaliTicket(Ticket):
    """A batch that DALI fills, beside the engine of the samples that it is not given.

    A batch with errors is in host memory, any other where the engine decodes.

    Attributes:
        positions: int64, positions in the batch of the samples that DALI gets.
    """

    def __init__(self, engine: DaliEngine, batch: BatchRequest) -> None:
        begin = time.perf_counter_ns()
        self.batch = batch
        self._engine = engine
        self._fallbacks: list[_FallbackSamples] = []
        self._work: PipelineBatch | None = None
        for_dali = ~engine.for_cpu[batch.records]
        for_dali &= batch.sizes.prod(axis=1, dtype=np.int64) <= batch.most_pixels
        data = engine.records.read(batch, for_dali, engine.pool, engine.threads)
        self._read_ns = time.perf_counter_ns() - begin
        self._wait_ns = 0
        self.positions = np.array([i for i, file in enumerate(data) if file is not None], np.int64)
        if len(self.positions):
            self._work = PipelineBatch(_inputs(self.batch.geometry, self.positions, data))
            engine.graph.put(self._work)
        missing = np.setdiff1d(np.arange(len(batch.records)), self.positions)
        if len(missing):
            self._fallbacks.append(_FallbackSamples(engine, batch, missing))

    def wait(self) -> tuple[torch.Tensor | None, np.ndarray]:
        """Wait for DALI: the images that are good, (m, h, w, 3), and their places in ``positions``.

        None where there are none. What is not good is decoded by the other engine.
        """
        work = self._work
        assert work is not None
        self._engine.graph.take(work)
        if work.failure is not None or work.shapes is None:
            return None, np.empty(0, np.int64)
        self._engine.failures = 0
        good, images = _as_promised(self.batch, self.positions, work.shapes), work.images
        if images is not None and len(good) < len(self.positions):
            with self._engine.on_stream():
                images = images[torch.from_numpy(good).to(images.device)]
        return images, good

    @override
    def settle(self) -> tuple[torch.Tensor, dict[int, DataError]]:
        pixels, errors = self._pixels()
        images = self._engine.finished(pixels, self.batch)
        if not errors:
            self._engine.verified(self.batch)
            return images, errors
        # The caller picks the good samples out, on a thread whose current stream knows nothing of
        # this batch. In host memory no stream is needed; such batches are few.
        with self._engine.on_stream():
            return images.cpu(), errors

    @override
    def cancel(self) -> None:
        self.cancelled = True
        if self._work is not None:
            self._engine.graph.drop(self._work)
        for fallback in list(self._fallbacks):
            fallback.ticket.cancel()

    @override
    def stages_ns(self) -> Mapping[str, int]:
        own = {"read": self._read_ns, "dali": self._wait_ns}
        return summed([own, *(fallback.ticket.stages_ns() for fallback in self._fallbacks)])

    def _pixels(self) -> tuple[torch.Tensor, dict[int, DataError]]:
        """Uint8 pixels (n, h, w, 3) on the engine's device, and the errors, by position."""
        images, good = None, np.empty(0, np.int64)
        if len(self.positions):
            begin = time.perf_counter_ns()
            images, good = self.wait()
            self._wait_ns = time.perf_counter_ns() - begin
            self.check_cancelled()
            undecoded = np.setdiff1d(self.positions, self.positions[good])
            if len(undecoded):
                self._fallbacks.append(_FallbackSamples(self._engine, self.batch, undecoded))
        errors: dict[int, DataError] = {}
        for fallback in self._fallbacks:
            fallback.settle()
            errors |= fallback.errors
        self.check_cancelled()
        self._remember(errors)
        if images is not None and not self._fallbacks:
            return images, errors
        return self._joined(images, good), errors

    def _remember(self, errors: Mapping[int, DataError]) -> None:
        """Remember what DALI failed on, so that it fails once. ``errors``: of both engines."""
        if self._work is None or self._work.failure is None:
            return
        engine, batch, failure = self._engine, self.batch, self._work.failure
        bad = [i for i in errors if i in set(self.positions.tolist())]
        engine.for_cpu[batch.records[bad if bad else self.positions]] = True
        reason = " ".join(str(failure).split())[:300]
        if bad:
            engine.failures = 0
            _log.info("a broken image ended DALI's batch, which the CPU has decoded: %s", reason)
            return
        engine.failed(reason, failure)

    def _joined(self, images: torch.Tensor | None, good: np.ndarray) -> torch.Tensor:
        """The pixels of DALI and of the other engine, each in its place."""
        engine, geometry = self._engine, self.batch.geometry
        shape = len(self.batch.records), geometry.out_h, geometry.out_w, 3
        with engine.on_stream():
            pixels = torch.empty(shape, dtype=torch.uint8, device=engine.device)
            if images is not None:
                theirs = torch.from_numpy(self.positions[good]).to(engine.device)
                pixels[theirs] = images
            for fallback in self._fallbacks:
                rows = torch.from_numpy(fallback.which).to(engine.device)
                pixels[rows] = fallback.pixels().to(engine.device)
        return pixels


class _FallbackSamples:
    """Samples ``which`` of a batch, through the engine beside DALI."""

    def __init__(self, engine: DaliEngine, batch: BatchRequest, which: np.ndarray) -> None:
        self.which = which
        self.errors: dict[int, DataError] = {}
        other = engine.fallback()
        geometry = batch.geometry
        images, memory = other.allocate(len(which), geometry.out_h, geometry.out_w)
        request = dataclasses.replace(
            batch.part(which, memory), params=None, images=images, times=None
        )
        self.ticket = other.start(request)

    def settle(self) -> None:
        """Wait; ``errors`` are by position in the batch then."""
        images, errors = self.ticket.settle()
        assert isinstance(images, torch.Tensor)
        self._images = images
        self.errors = {int(self.which[i]): error for i, error in errors.items()}

    def pixels(self) -> torch.Tensor:
        """Uint8 (n, h, w, 3); what failed holds nothing."""
        return self._images.permute(0, 2, 3, 1)


def _as_promised(batch: BatchRequest, positions: np.ndarray, shapes: np.ndarray) -> np.ndarray:
    """Which of ``positions`` have the size that the store says, and one or three channels."""
    promised = batch.sizes[positions]
    right = (shapes[:, 0] == promised[:, 1]) & (shapes[:, 1] == promised[:, 0])
    return np.flatnonzero(right & np.isin(shapes[:, 2], (1, 3)))


def _inputs(geometry: Geometry, which: np.ndarray, data: list[np.ndarray | None]) -> Inputs:
    """``PipelineBatch.inputs`` of the samples ``which``."""
    n = len(which)
    size = np.empty((n, 2), np.int32)
    size[:] = geometry.out_w, geometry.out_h
    return {
        "encoded": [file for i in which.tolist() if (file := data[i]) is not None],
        "corner": np.ascontiguousarray(geometry.box[which, :2]),
        "sides": np.ascontiguousarray(geometry.box[which, 2:]),
        "size": geometry.resized[which, ::-1].astype(np.float32, order="C"),
        "window": np.ascontiguousarray(geometry.window[which]),
        "out": size,
        "flip": geometry.flip[which].astype(np.int32),
    }
