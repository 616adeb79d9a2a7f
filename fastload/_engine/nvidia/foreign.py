"""What the engines through NVIDIA's libraries have in common: DALI and nvImageCodec.

Order, crops, sizes, windows and flips are fastload's own, so that each image shows what it shows in
the other engines; levels differ a little, as other decoders and resizes round differently. The
table and what is erased come behind them, where the images are (``_engine/device_stage.py``).

What the library is not given: records that are no whole JPEG file, or do not match their checksum.
What it gives back and we do not take: files of another size than the store says, and CMYK. All of
these, and what it fails on, go through the native engine (the Python engine where the core was not
built), sample by sample, into their places in the batch: the same pixels and the same errors as
there.
"""

from __future__ import annotations

import abc
import concurrent.futures
import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch

from ..._base.devices.cuda import on_stream, stream_for
from ..._base.slabs import SlabRing
from ..._transforms.geometry.crop_geometry import Geometry
from ..._transforms.geometry.draws import RandomResizedCrop, Resize
from ..._transforms.pixels.erasing import Drawn
from ..._transforms.plan import Plan
from ..._transforms.views import Views
from ...errors import DataError, InternalError, MissingDependencyError
from ...storage.base import Spans, Store
from ..cache.store import CachedStore
from ..decoder import Batch, Decoder, Ticket
from ..device_stage import DeviceStage
from .records import Records

_log = logging.getLogger("fastload")

# So many batches in a row that a library cannot decode though nothing is wrong with them: it is not
# the data, and going on would be slow without an end.
_MOST_FAILURES = 8

HW_DECODER_LOAD = 0.65
"""DALI's own default: share of the images for the GPU's JPEG engine."""


def refusal(
    plan: Plan | Views, store: Store, name: str, filters: Mapping[int, str], missing: str
) -> str | None:
    """Why the library ``name`` cannot make what ``plan`` says of ``store``, in words, or None.

    ``filters``: its names of those that it has, by resample.h's numbers; ``missing``: the others.
    """
    if store.indirect is not None:
        return f"{name} cannot read this store: {store.indirect}"
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
        return f"the transform has operations that {name} cannot be given our parameters for"
    if resizes(plan) and plan.filter not in filters:
        return f"{name} has no filter like Pillow's {missing}"
    return None


def resizes(plan: Plan) -> bool:
    """Whether ``plan`` resizes images."""
    return any(isinstance(op, (Resize, RandomResizedCrop)) for op in plan.ops)


class Library(Protocol):
    """The module that a library is used through."""

    def absent(self) -> str | None:
        """Why it cannot be used here, or None."""

    def missing(self) -> MissingDependencyError:
        """The error for what cannot be done without it."""


class ForeignDecoder(Decoder):
    """Fills batches with a library that decodes on a GPU. See ``Decoder`` for other arguments.

    Args:
        device: where images are decoded and where the batch lies: a CUDA device, or the CPU.
        fallback: makes the decoder of what the library is not given, for a plan, a ring, and
            ``channels_last=True``.
        hw_decoder_load: share of the images for the GPU's JPEG engine, where it has one.
    """

    library: Library

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
        if self.library.absent():
            raise self.library.missing()
        super().__init__(store, plan, **options)
        self.device = device
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.stream = stream_for(device, self)
        self.records = Records(store)
        # what the library failed on: not given to it again
        self.for_cpu = np.zeros(len(store), bool)
        self.failures = 0  # batches in a row that it failed on without a reason in them
        self._fallback: Decoder | None = None
        self._stage: DeviceStage | None = None
        self._make_fallback = fallback
        self.open(hw_decoder_load)

    @abc.abstractmethod
    def open(self, hw_decoder_load: float) -> None:
        """Make what the library is used through: the end of ``__init__``."""

    def fallback(self) -> Decoder:
        """The decoder of what the library is not given: uint8, NHWC in memory."""
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
                f"{self.name} failed on {_MOST_FAILURES} batches in a row in which every image can "
                f"be decoded; take decode_device='cpu'. It says: {reason}"
            ) from cause
        _log.warning("%s failed on a batch, which the CPU has decoded: %s", self.name, reason)

    def on_stream(self) -> contextlib.AbstractContextManager[object]:
        """Where this decoder's work on a GPU is queued; on the CPU nothing."""
        return contextlib.nullcontext() if self.stream is None else on_stream(self.stream)

    def release(self, user: object) -> None:
        """As in the contract."""
        super().release(user)
        if not self._users and self._fallback is not None:
            self._fallback.release(user)

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
            made = self._made(self.kept(pixels), batch)
            # blocking: a host that spins takes a core from the threads that decode
            done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            done.record(self.stream)
        # Waiting here costs nothing: the batch behind it is in work already. Afterwards the
        # library's memory may go, and whoever gets the batch need not know this stream.
        done.synchronize()
        # Of this stream's memory, which it may write to again as soon as the caller lets go of it:
        # not before what the caller has put into the stream of the training is done.
        made.record_stream(torch.cuda.default_stream(self.device))
        return made

    def kept(self, pixels: torch.Tensor) -> torch.Tensor:
        """``pixels`` in memory that the library does not use again."""
        return pixels

    def _made(self, pixels: torch.Tensor, batch: Batch) -> torch.Tensor:
        levels = pixels.permute(0, 3, 1, 2)
        if self._stage is None:
            order = torch.channels_last if self.channels_last else torch.contiguous_format
            self._stage = DeviceStage(self.plan, self.device, order)
        recipe = batch.recipe
        drawn = None if recipe is None else Drawn(recipe.boxes, recipe.keys)
        return self._stage(levels, drawn)


class ForeignTicket(Ticket):
    """A batch that the library is filling, beside the decoder of what it is not given.

    Attributes:
        given: int64, positions in the batch of the samples that the library gets.
    """

    def __init__(self, decoder: ForeignDecoder, batch: Batch) -> None:
        begin = time.perf_counter_ns()
        self.times = None  # of its samples no library tells
        self.batch = batch
        self._decoder = decoder
        self._cancelled = False
        self._parts: list[_Part] = []
        wanted = ~decoder.for_cpu[batch.records] & self.takes(batch)
        data = decoder.records.read(batch, wanted, decoder.pool, decoder.threads)
        self._read_ns = time.perf_counter_ns() - begin
        self._wait_ns = 0
        self.given = np.array([i for i, found in enumerate(data) if found is not None], np.int64)
        if len(self.given):
            self.begin(data)
        left = np.setdiff1d(np.arange(len(batch.records)), self.given)
        if len(left):
            self._parts.append(_Part(decoder, batch, left))

    def takes(self, batch: Batch) -> np.ndarray:
        """Which samples the library can be given; all, bool (n,)."""
        return np.ones(len(batch.records), bool)

    @abc.abstractmethod
    def begin(self, data: list[np.ndarray | None]) -> None:
        """Begin with the samples ``given``, whose files are in ``data``, by position."""

    @abc.abstractmethod
    def wait(self) -> tuple[torch.Tensor | None, np.ndarray]:
        """Wait for them: the images that are good, (m, h, w, 3), and their places in ``given``.

        None where there are none. What is not good is decoded by the other decoder.
        """

    @abc.abstractmethod
    def drop(self) -> None:
        """Nobody will wait for them. From any thread, without waiting."""

    def failed(self, errors: Mapping[int, DataError]) -> None:
        """The other decoder has got what was not good; here what failed there too, by position."""

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
        self.drop()
        for part in list(self._parts):
            part.ticket.cancel()

    def stages_ns(self) -> Mapping[str, int]:
        """As in the contract."""
        stages = {"read": self._read_ns, self._decoder.name: self._wait_ns}
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
        self.failed(errors)
        if images is not None and not self._parts:
            return images, errors
        return self._joined(images, good), errors

    def _joined(self, images: torch.Tensor | None, good: np.ndarray) -> torch.Tensor:
        """The pixels of the library and of the other decoder, each in its place."""
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
    """Samples ``which`` of a batch, through the decoder beside the library."""

    def __init__(self, decoder: ForeignDecoder, batch: Batch, which: np.ndarray) -> None:
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


def as_promised(batch: Batch, given: np.ndarray, found: np.ndarray | None) -> np.ndarray:
    """Which of ``given`` have the size that the store says, and one or three channels."""
    assert found is not None
    promised = batch.sizes[given]
    right = (found[:, 0] == promised[:, 1]) & (found[:, 1] == promised[:, 0])
    return np.flatnonzero(right & np.isin(found[:, 2], (1, 3)))
