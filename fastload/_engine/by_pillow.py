"""What the core leaves to Pillow: Pillow decodes it, and the core does all the rest.

The samples of a batch that the core cannot decode are read and decoded one after another, by the
threads of the engine or by processes (``processes.py``). Some images at a time go back to the core,
which crops, resizes and stores them in their places in the batch.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from PIL import Image

from ..errors import DataError, sample_error
from ..storage._read import part_of, read_spans
from . import long_sides
from .base import Ticket
from .image_engine import PixelEngine
from .kernel import BatchRequest
from .pillow import decoded

# Decoded images that wait for the core: as many as a processor's cache holds.
_WAITING_NBYTES = 1 << 21

# Tasks for each thread, so that none waits long for the others.
_TASKS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class PillowReport:
    """What became of some samples: their errors, by position in the batch, and the time they took.

    ``decoding_ns`` is the sum over the samples, ``rest_ns`` that of everything after decoding.
    """

    errors: dict[int, DataError]
    decoding_ns: int
    rest_ns: int


def by_pillow(engine: PixelEngine, batch: BatchRequest, which: np.ndarray) -> Ticket:
    """Start to decode samples ``which`` of ``batch`` with Pillow: in processes if there are any."""
    ticket = None
    if engine.processes is not None:
        ticket = engine.processes.submit(engine, batch, which)
    return _ThreadsTicket(engine, batch, which) if ticket is None else ticket


def fill(
    engine: PixelEngine, batch: BatchRequest, which: Sequence[int], ended: Callable[[], bool]
) -> PillowReport:
    """Fill samples ``which`` (ascending) of ``batch``, on the calling thread, until ``ended``."""
    finisher = _Finisher(engine, batch)
    decoding_ns = 0
    for i in which:
        if ended():
            break
        begin = time.perf_counter_ns()
        try:
            image = _decoded(engine, batch, i, begin)
        except Exception as error:  # noqa: BLE001 - what Pillow or the system may raise
            finisher.failed(i, error)
        else:
            end = time.perf_counter_ns()
            decoding_ns += end - begin
            finisher.take(i, image)
    else:
        finisher.finish()
    return PillowReport(
        errors=finisher.errors, decoding_ns=decoding_ns, rest_ns=finisher.nanoseconds
    )


def stages_of(batch: BatchRequest, filled: Sequence[PillowReport]) -> dict[str, int]:
    """``Ticket.stages_ns`` of samples of ``batch``."""
    later = "resize" if batch.params is None else "augment"
    return {
        "decode": sum(some.decoding_ns for some in filled),
        later: sum(some.rest_ns for some in filled),
    }


def _decoded(engine: PixelEngine, batch: BatchRequest, i: int, begin: int) -> Image.Image:
    """The image of sample ``i``. Its checksum was verified when the core read it."""
    at_i = slice(i, i + 1)
    (data,) = read_spans(engine.store, batch.records[at_i], part_of(batch.spans, at_i))
    read = time.perf_counter_ns()
    kind, (width, height) = int(batch.kinds[i]), batch.source_size(i)
    image = decoded(data, kind, (width, height))
    cache_fill = batch.cache_fill
    if cache_fill is not None and cache_fill.wanted[i] and cache_fill.placed is None:
        assert engine.cache is not None, "what is cached has a cache"
        engine.cache.arena.put(int(batch.records[i]), data, kind, width, height, False)
    if batch.times is not None:
        end = time.perf_counter_ns()
        batch.times[i] = threading.get_native_id(), begin, read, read, 0, end, end
    return image


class _Finisher:
    """Has the core do everything after decoding, of some neighbours at a time."""

    def __init__(self, engine: PixelEngine, batch: BatchRequest) -> None:
        self._engine, self._batch = engine, batch
        self.errors: dict[int, DataError] = {}
        self.nanoseconds = 0
        self._begin = 0  # the first of the samples that are waiting
        self._waiting: list[np.ndarray] = []
        self._nbytes = 0

    def failed(self, i: int, error: Exception) -> None:
        """Note why there is no sample ``i``."""
        self.errors[i] = sample_error(error, **self._engine.where(int(self._batch.records[i])))

    def take(self, i: int, image: Image.Image) -> None:
        """The next sample: only the part of ``image`` that is needed is kept."""
        if i != self._begin + len(self._waiting) or self._nbytes > _WAITING_NBYTES:
            self.finish()
            self._begin = i
        if self._batch.placed(i) is None:  # else the core keeps pixels of the whole image
            x, y, w, h = self._batch.geometry.box[i].tolist()
            if (w, h) != image.size:
                image = image.crop((x, y, x + w, y + h))
        self._waiting.append(np.asarray(image))
        self._nbytes += self._waiting[-1].nbytes

    def finish(self) -> None:
        """Fill the samples that are waiting."""
        begin, waiting = self._begin, self._waiting
        self._begin, self._waiting, self._nbytes = begin + len(waiting), [], 0
        if not waiting:
            return
        begin_ns = time.perf_counter_ns()
        request = self._request(begin, waiting)
        for position in self._engine.of_pixels(request, waiting):
            try:
                long_sides.fill(self._engine, _rows(request, position, 1), waiting[position])
            except Exception as error:  # noqa: BLE001 - what Pillow or the system may raise
                self.failed(begin + position, error)
        self.nanoseconds += time.perf_counter_ns() - begin_ns

    def _request(self, first: int, pixels: Sequence[np.ndarray]) -> BatchRequest:
        """The samples from ``first`` on, of which ``pixels`` are what ``take`` kept."""
        request = _rows(self._batch, first, len(pixels))
        sizes, box = request.sizes.copy(), request.geometry.box.copy()
        for position, image in enumerate(pixels):
            if request.placed(position) is None:
                sizes[position] = image.shape[1::-1]
                box[position, :2], box[position, 2:] = 0, sizes[position]
        fill = request.cache_fill
        return dataclasses.replace(
            request,
            sizes=sizes,
            geometry=request.geometry._replace(box=box),
            cache_fill=None if fill is None or fill.placed is None else fill,
        )


def _rows(batch: BatchRequest, first: int, count: int) -> BatchRequest:
    """Samples of ``batch``, in their own memory."""
    nbytes = len(batch.memory) // len(batch.records)
    return batch.part(
        slice(first, first + count), batch.memory[nbytes * first : nbytes * (first + count)]
    )


class _ThreadsTicket(Ticket):
    """Samples ``which`` of ``batch``, filled on the engine's threads.

    On the caller's where it has none or there is one sample. A cancellation ends tasks between two
    samples and waits for them, so that nothing writes to the batch afterwards.
    """

    def __init__(self, engine: PixelEngine, batch: BatchRequest, which: np.ndarray) -> None:
        self._engine, self._batch, self._which = engine, batch, which
        self.times = batch.times
        self._filled: list[PillowReport] = []
        self._tasks: list[concurrent.futures.Future[PillowReport]] = []
        # Held while the caller's thread fills samples. Re-entrant: the garbage collector may drop
        # an iterator, which cancels its tickets, in the middle of that.
        self._filling = threading.RLock()
        if engine.threads and len(which) > 1:
            shares = np.array_split(which, min(_TASKS * engine.threads, len(which)))
            self._tasks = [engine.pool().submit(self._fill, share) for share in shares]

    def settle(self) -> tuple[torch.Tensor, dict[int, DataError]]:
        try:
            self._filled = [task.result() for task in self._tasks] or [self._fill_here()]
        except BaseException:
            self.cancel()
            raise
        self.check_cancelled()
        errors: dict[int, DataError] = {}
        for filled in self._filled:
            errors |= filled.errors
        return self._batch.images, errors

    def _fill(self, which: np.ndarray) -> PillowReport:
        return fill(self._engine, self._batch, which.tolist(), lambda: self.cancelled)

    def _fill_here(self) -> PillowReport:
        with self._filling:
            self.check_cancelled()
            return self._fill(self._which)

    def cancel(self) -> None:
        self.cancelled = True
        for task in self._tasks:
            task.cancel()
        concurrent.futures.wait(self._tasks)
        with self._filling:
            pass

    def stages_ns(self) -> Mapping[str, int]:
        return stages_of(self._batch, self._filled)
