"""The DALI engine: JPEGs through NVIDIA DALI, on a GPU or on DALI's CPU back end.

Order, crops, sizes, windows and flips are fastload's own, so that each image shows what it shows in
the other engines. Levels differ a little, as other decoders and resizes round differently. The
table and what is erased come after, where the images are (``_engine/device_stage.py``).

Not given to DALI: records that are no whole JPEG file, or do not match their checksum. Not taken
from it: files of another size than the store says, and CMYK. All of these, and what it fails on, go
through the native engine (the Python engine where the core was not built), sample by sample, into
their places in the batch: the same pixels and the same errors as there. A batch that DALI fails on
is decoded again as a whole.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ..._base.devices.cuda import on_stream, stream_for
from ..._base.slabs import SlabRing
from ..._transforms.geometry.crop_geometry import Geometry
from ..._transforms.geometry.draws import CenterCrop, Pad, RandomCrop, RandomResizedCrop, Resize
from ..._transforms.pixels.erasing import Drawn
from ..._transforms.plan import Plan
from ..._transforms.views import Views
from ...errors import DataError, InternalError
from ...storage.base import Spans, Store
from ..cache.store import CachedStore
from ..decoder import Batch, Decoder, Ticket
from ..device_stage import DeviceStage
from . import dali_graph
from .dali_graph import FILTERS, Build, Graph, Work
from .records import Records

_log = logging.getLogger("fastload")

# After so many batches in a row that DALI fails on though nothing is wrong with them, the cause
# is not the data, and falling back for ever would only be slow.
_MOST_FAILURES = 8

HW_DECODER_LOAD = 0.65
"""DALI's own default: share of the images for the GPU's JPEG engine."""


def refusal(plan: Plan | Views, store: Store) -> str | None:
    """Why DALI cannot make what ``plan`` says of ``store``, in words, or None."""
    if store.indirect is not None:
        return f"DALI cannot read this store: {store.indirect}"
    if isinstance(store, CachedStore):
        return "a cache is for the other engines"
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
    return any(isinstance(op, (Resize, RandomResizedCrop)) for op in plan.ops)


class DaliDecoder(Decoder):
    """Fills batches with DALI. See ``Decoder`` for the other arguments.

    Args:
        device: where images are decoded and where the batch lies: a CUDA device, or the CPU.
        fallback: makes the decoder of what DALI is not given, for a plan, a ring, and
            ``channels_last=True``.
        hw_decoder_load: share of the images for the GPU's JPEG engine, where it has one.

    Raises:
        MissingDependencyError: DALI is not installed.
    """

    name = "dali"

    def __init__(
        self,
        store: Store,
        plan: Plan,
        *,
        device: torch.device,
        fallback: Callable[..., Decoder],
        hw_decoder_load: float = HW_DECODER_LOAD,
        **options: Any,
    ) -> None:
        if dali_graph.absent():
            raise dali_graph.missing()
        super().__init__(store, plan, **options)
        self.device = device
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.stream = stream_for(device, self)
        self.records = Records(store)
        # what DALI failed on: not given to it again
        self.for_cpu = np.zeros(len(store), bool)
        self.failures = 0  # batches in a row that it failed on without a reason in them
        self._fallback: Decoder | None = None
        self._stage: DeviceStage | None = None
        self._make_fallback = fallback
        build = Build(
            device_id=None if self.stream is None else self.stream.device.index,
            threads=max(1, self.threads),
            filter=plan.filter if _resizes(plan) else None,
            windowed=any(isinstance(op, (Pad, RandomCrop, CenterCrop)) for op in plan.ops),
            fill=plan.fill,
            hw_decoder_load=hw_decoder_load,
            whole=not dali_graph.takes_boxes(self.device),
        )
        self.graph = Graph(build, self.stream)

    def fallback(self) -> Decoder:
        """The decoder of what DALI is not given: uint8, NHWC in memory."""
        if self._fallback is None:
            self._fallback = self._make_fallback(
                self.store,
                self.plan.levels(),
                threads=self.threads,
                ring=SlabRing(3),
                channels_last=True,
                check_crc=self._check_crc,
            )
        self._fallback.threads = self.threads
        return self._fallback

    def failed(self, reason: str, cause: BaseException | None = None) -> None:
        """Note that nothing of a batch was decoded though nothing is wrong with it.

        Raises InternalError where that goes on.
        """
        self.failures += 1
        if self.failures >= _MOST_FAILURES:
            raise InternalError(
                f"DALI failed on {_MOST_FAILURES} batches in a row in which every image can be "
                f"decoded; take decode_device='cpu'. It says: {reason}"
            ) from cause
        _log.warning("DALI failed on a batch, which the CPU has decoded: %s", reason)

    def on_stream(self) -> contextlib.AbstractContextManager[object]:
        """Where this decoder's work on a GPU is queued; on the CPU nothing."""
        return contextlib.nullcontext() if self.stream is None else on_stream(self.stream)

    def release(self, user: object) -> None:
        """As in the contract."""
        super().release(user)
        if not self._users and self._fallback is not None:
            self._fallback.release(user)

    def _start(self, batch: Batch) -> Ticket:
        return _DaliTicket(self, batch)

    def _allocate(self, n: int, height: int, width: int) -> tuple[torch.Tensor, np.ndarray]:
        if self.stream is None:
            return super()._allocate(n, height, width)
        return torch.empty(0), np.empty(0, np.uint8)  # the batch is made on the device

    def finished(self, pixels: torch.Tensor, batch: Batch) -> torch.Tensor:
        """The batch, made of its uint8 pixels (n, h, w, 3): table, erasing, layout.

        In memory of torch's that nothing else refers to, and complete when this returns.
        """
        if self.stream is None:
            return batch.images.copy_(self._made(pixels, batch))
        with on_stream(self.stream):
            made = self._made(
                pixels.clone(), batch
            )  # DALI writes the next batch where this one was
            # blocking: a host that spins takes a core from the threads that decode
            done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            done.record(self.stream)
        # Waiting here costs nothing: the next batch is in flight already. Afterwards DALI's memory
        # may go, and whoever gets the batch need not know this stream.
        done.synchronize()
        # Of this stream's memory, which it may write to again as soon as the caller lets go of it:
        # not before what the caller has put into the stream of the training is done.
        made.record_stream(torch.cuda.default_stream(self.device))
        return made

    def _made(self, pixels: torch.Tensor, batch: Batch) -> torch.Tensor:
        levels = pixels.permute(0, 3, 1, 2)
        if self._stage is None:
            order = torch.channels_last if self.channels_last else torch.contiguous_format
            self._stage = DeviceStage(self.plan, self.device, order)
        recipe = batch.recipe
        drawn = None if recipe is None else Drawn(recipe.boxes, recipe.keys)
        return self._stage(levels, drawn)


class _DaliTicket(Ticket):
    """A batch that DALI is filling, beside the decoder of what it is not given.

    Attributes:
        given: int64, positions in the batch of the samples that DALI gets.
    """

    def __init__(self, decoder: DaliDecoder, batch: Batch) -> None:
        begin = time.perf_counter_ns()
        self.times = None  # DALI does not tell those of its samples
        self.batch = batch
        self._decoder = decoder
        self._cancelled = False
        self._parts: list[_Part] = []
        self._work: Work | None = None
        wanted = ~decoder.for_cpu[batch.records]
        data = decoder.records.read(batch, wanted, decoder.pool, decoder.threads)
        self._read_ns = time.perf_counter_ns() - begin
        self._wait_ns = 0
        self.given = np.array([i for i, found in enumerate(data) if found is not None], np.int64)
        if len(self.given):
            self._work = Work(_inputs(self.batch.geometry, self.given, data))
            decoder.graph.put(self._work)
        left = np.setdiff1d(np.arange(len(batch.records)), self.given)
        if len(left):
            self._parts.append(_Part(decoder, batch, left))

    def wait(self) -> tuple[torch.Tensor | None, np.ndarray]:
        """Wait for DALI: the images that are good, (m, h, w, 3), and their places in ``given``.

        None where there are none. What is not good is decoded by the other decoder.
        """
        work = self._work
        assert work is not None
        self._decoder.graph.take(work)
        if work.failure is not None or work.found is None:
            return None, np.empty(0, np.int64)
        self._decoder.failures = 0
        good, images = _as_promised(self.batch, self.given, work.found), work.images
        if images is not None and len(good) < len(self.given):
            with self._decoder.on_stream():
                images = images[torch.from_numpy(good).to(images.device)]
        return images, good

    def result(self) -> torch.Tensor:
        """As in the contract."""
        pixels, errors = self._pixels()
        if errors:
            raise errors[min(errors)]
        return self._finished(pixels, errors)

    def settle(self) -> tuple[torch.Tensor, dict[int, DataError]]:
        """As in the contract."""
        pixels, errors = self._pixels()
        return self._finished(pixels, errors), errors

    def cancel(self) -> None:
        """As in the contract."""
        self._cancelled = True
        if self._work is not None:
            self._decoder.graph.drop(self._work)
        for part in list(self._parts):
            part.ticket.cancel()

    def stages_ns(self) -> Mapping[str, int]:
        """As in the contract."""
        stages = {"read": self._read_ns, "dali": self._wait_ns}
        for part in self._parts:
            for name, nanoseconds in part.ticket.stages_ns().items():
                stages[name] = stages.get(name, 0) + nanoseconds
        return stages

    def _finished(self, pixels: torch.Tensor, errors: Mapping[int, DataError]) -> torch.Tensor:
        if not errors:
            self._decoder.checked(self.batch)
        return self._decoder.finished(pixels, self.batch)

    def _pixels(self) -> tuple[torch.Tensor, dict[int, DataError]]:
        """Uint8 pixels (n, h, w, 3) on the decoder's device, and what failed, by position."""
        images, good = None, np.empty(0, np.int64)
        if len(self.given):
            begin = time.perf_counter_ns()
            images, good = self.wait()
            self._wait_ns = time.perf_counter_ns() - begin
            self._refuse_cancelled()
            left = np.setdiff1d(self.given, self.given[good])
            if len(left):
                self._parts.append(_Part(self._decoder, self.batch, left))
        errors: dict[int, DataError] = {}
        for part in self._parts:
            part.settle()
            errors |= part.errors
        self._refuse_cancelled()
        self._remember(errors)
        if images is not None and not self._parts:
            return images, errors
        return self._joined(images, good), errors

    def _remember(self, errors: Mapping[int, DataError]) -> None:
        """Remember what DALI failed on, so that it fails once; ``errors``: what failed twice."""
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

    def _joined(self, images: torch.Tensor | None, good: np.ndarray) -> torch.Tensor:
        """The pixels of DALI and of the other decoder, each in its place."""
        decoder, geometry = self._decoder, self.batch.geometry
        shape = len(self.batch.records), geometry.out_h, geometry.out_w, 3
        with decoder.on_stream():
            pixels = torch.empty(shape, dtype=torch.uint8, device=decoder.device)
            if images is not None:
                theirs = torch.from_numpy(self.given[good]).to(decoder.device)
                pixels[theirs] = images
            for part in self._parts:
                at = torch.from_numpy(part.which).to(decoder.device)
                pixels[at] = part.pixels().to(decoder.device)
        return pixels

    def _refuse_cancelled(self) -> None:
        if self._cancelled:
            raise concurrent.futures.CancelledError("the batch was cancelled")


class _Part:
    """Samples ``which`` of a batch, through the decoder beside DALI."""

    def __init__(self, decoder: DaliDecoder, batch: Batch, which: np.ndarray) -> None:
        self.which = which
        self.errors: dict[int, DataError] = {}
        other = decoder.fallback()
        geometry = batch.geometry
        images, memory = other._allocate(len(which), geometry.out_h, geometry.out_w)
        self.ticket = other._start(_part_of(batch, which, images, memory))

    def settle(self) -> None:
        """Wait; ``errors`` are by position in the batch then."""
        images, errors = self.ticket.settle()
        assert isinstance(images, torch.Tensor)
        self._images = images
        self.errors = {int(self.which[i]): error for i, error in errors.items()}

    def pixels(self) -> torch.Tensor:
        """Uint8 (n, h, w, 3); what failed holds nothing."""
        return self._images.permute(0, 2, 3, 1)


def _part_of(batch: Batch, which: np.ndarray, images: torch.Tensor, memory: np.ndarray) -> Batch:
    spans, geometry = batch.spans, batch.geometry
    return dataclasses.replace(
        batch,
        records=batch.records[which],
        spans=Spans(file=spans.file[which], offset=spans.offset[which], nbytes=spans.nbytes[which]),
        kinds=batch.kinds[which],
        sizes=batch.sizes[which],
        checksums=None if batch.checksums is None else batch.checksums[which],
        check=None if batch.check is None else batch.check[which],
        geometry=Geometry(
            geometry.box[which],
            geometry.resized[which],
            geometry.window[which],
            geometry.flip[which],
            geometry.out_h,
            geometry.out_w,
        ),
        recipe=None,
        images=images,
        memory=memory,
        times=None,
    )


def _as_promised(batch: Batch, given: np.ndarray, found: np.ndarray | None) -> np.ndarray:
    """Which of ``given`` have the size that the store says, and one or three channels."""
    assert found is not None
    promised = batch.sizes[given]
    right = (found[:, 0] == promised[:, 1]) & (found[:, 1] == promised[:, 0])
    return np.flatnonzero(right & np.isin(found[:, 2], (1, 3)))


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
