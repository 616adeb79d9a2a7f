"""The Python engine: the results of the core, without the core, through Pillow and NumPy.

It also decodes the samples that the native engine leaves to Pillow, into their places in that
engine's batch.

Each sample is a task of the engine's thread pool. A cancellation stops the tasks that have not
started and waits for those that have, so that nothing writes to the batch afterwards.
"""

from __future__ import annotations

import concurrent.futures
import io
import os
import threading
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch
from PIL import Image

from .._transforms import scaled
from ..errors import (
    ChecksumError,
    DataError,
    DecodeError,
    StoreError,
    StoreNotFoundError,
    sample_error,
)
from ..storage._crc import crc32c
from ..storage._read import bytes_of, open_regular
from ..storage.base import DCT, RAW, TURNED, Spans, Store
from .base import Ticket, Where
from .image_engine import REPLACED, BatchRequest, ImageEngine
from .jpeg import dct_to_jpeg
from .pillow import Decoded, decode_scaled, done_before, fill, from_pixels


class PythonEngine(ImageEngine):
    """Fills batches with Pillow and NumPy. See ``ImageEngine`` for the arguments."""

    name = "python"

    def start(self, batch: BatchRequest) -> Ticket:
        """As in the contract."""
        return by_pillow(self, batch, np.arange(len(batch.records)))


def by_pillow(engine: ImageEngine, batch: BatchRequest, which: np.ndarray) -> Ticket:
    """Start to decode samples ``which`` of ``batch`` with Pillow: in processes if there are any."""
    ticket = None
    if engine.processes is not None:
        ticket = engine.processes.submit(engine, batch, which)
    return PythonTicket(engine, batch, which) if ticket is None else ticket


Known = bytes | DataError | None
"""Of a record: its bytes, or why it cannot be read; None: it has not been read."""

Spent = tuple[int, int]
"""What a sample took in nanoseconds: to decode the image, and for everything after that."""


class PythonTicket(Ticket):
    """Samples ``which`` of ``batch``, decoded with Pillow into their places.

    On the engine's threads, or on the caller's where it has none or there is one sample.
    """

    def __init__(self, engine: ImageEngine, batch: BatchRequest, which: np.ndarray) -> None:
        self._engine = engine
        self._batch = batch
        self.times = batch.times
        self._which: list[int] = which.tolist()
        self._out = as_array(engine, batch)
        self._spent: list[Spent] = []
        self._tasks: list[concurrent.futures.Future[Spent]] = []
        # Held while the caller's thread fills a sample. Re-entrant: the garbage collector may drop
        # an iterator, which cancels its tickets, in the middle of that.
        self._filling = threading.RLock()
        self._data: list[Known] | None = None
        if engine.origin.indirect is not None:
            self._data = read_indirect(engine.origin, batch)
        if engine.threads and len(self._which) > 1:
            pool = engine.pool()
            self._tasks = [
                pool.submit(fill_one, engine, batch, i, self._out, self._data) for i in self._which
            ]

    def settle(self) -> tuple[torch.Tensor, dict[int, DataError]]:
        errors: dict[int, DataError] = {}
        for n, i in enumerate(self._which):
            try:
                self._spent.append(self._tasks[n].result() if self._tasks else self._fill(i))
            except DataError as error:
                errors[i] = error
            except BaseException:
                self.cancel()
                raise
        if not errors:
            self._engine.verified(self._batch)
        self.check_cancelled()
        return self._batch.images, errors

    def _fill(self, i: int) -> Spent:
        with self._filling:
            self.check_cancelled()
            return fill_one(self._engine, self._batch, i, self._out, self._data)

    def cancel(self) -> None:
        self.cancelled = True
        for task in self._tasks:
            task.cancel()
        concurrent.futures.wait(self._tasks)
        with self._filling:
            pass

    def stages_ns(self) -> Mapping[str, int]:
        return stages_of(self._batch, self._spent)


def stages_of(batch: BatchRequest, spent: list[Spent]) -> dict[str, int]:
    """``Ticket.stages_ns`` of samples of ``batch``."""
    later = "resize" if batch.params is None else "augment"
    return {
        "decode": sum(decoding for decoding, _ in spent),
        later: sum(rest for _, rest in spent),
    }


def decode_record(store: Store, record: int, *, check: bool = True) -> Image.Image:
    """The image of one record, RGB.

    Args:
        store: has it.
        record: its number.
        check: whether to verify its checksum, if the store has one.

    Raises:
        DecodeError: it cannot be decoded.
        ChecksumError: its bytes are not those that were written.
        StoreError: it cannot be read.
    """
    records = np.array([record], np.int64)
    spans, kinds, sizes = store.spans(records), store.kinds(records), store.sizes(records)
    where = _where(store, spans, 0, record)
    (data,) = store.read(records) if store.indirect else [_read(store, spans, 0, where)]
    checksums = store.checksums(records) if check else None
    if checksums is not None:
        _verify(data, int(checksums[0]), where)
    width, height = sizes[0].tolist()
    return _decode(data, int(kinds[0]), (width, height), where).image


def decoded(
    data: bytes,
    kind: int,
    size: tuple[int, int],
    *,
    path: str | None = None,
    record: int | None = None,
    offset: int | None = None,
) -> Image.Image:
    """The image of a record's bytes, RGB.

    Args:
        data: the bytes.
        kind: as in ``Store.kinds``.
        size: width and height that it must have.
        path, record, offset: where it came from, for errors.

    Raises:
        DecodeError: it cannot be decoded, or has another size.
    """
    where: Where = {"path": path, "record": record, "offset": offset}
    image, found, _ = _decode(data, kind, size, where)
    if found != size:
        raise _resized(size, found, where)
    return image


def as_array(engine: ImageEngine, batch: BatchRequest) -> np.ndarray:
    """The batch's memory as (n, channels, h, w) of ``plan.stored``, with the batch's strides."""
    n, h, w = len(batch.records), batch.geometry.out_h, batch.geometry.out_w
    channels = engine.plan.channels
    flat: np.ndarray = batch.memory.view(engine.plan.stored)
    if engine.options.channels_last:
        return np.moveaxis(flat.reshape(n, h, w, channels), 3, 1)
    return np.reshape(flat, (n, channels, h, w))


def fill_one(
    engine: ImageEngine,
    batch: BatchRequest,
    i: int,
    out: np.ndarray,
    known: list[Known] | None,
    later: Callable[[int, Image.Image], None] | None = None,
) -> Spent:
    """Read, check, decode and fill one sample; returns what it took.

    Args:
        known: the bytes of the batch's records, where they need not be read.
        later: takes images of full size instead of having them filled in here.

    Raises:
        DataError: the sample cannot be read or decoded.
    """
    record = int(batch.records[i])
    # Errors name a record's place in the store, not in the cache in front of it.
    plain = engine.cache is None
    where = _where(engine.store, batch.spans, i, record) if plain else engine.where(record)
    try:
        return _filled(engine, batch, i, out, known, later, where)
    except Exception as error:  # noqa: BLE001 - what Pillow or the system may raise
        found = sample_error(error, **where)
        raise found from found.__cause__


def _filled(
    engine: ImageEngine,
    batch: BatchRequest,
    i: int,
    out: np.ndarray,
    known: list[Known] | None,
    later: Callable[[int, Image.Image], None] | None,
    where: Where,
) -> Spent:
    begin = time.perf_counter_ns()
    store, record = engine.store, int(batch.records[i])
    data = None if known is None else known[i]
    if isinstance(data, DataError):
        raise data
    if data is None:
        data = _read(store, batch.spans, i, where)
    checked = read = time.perf_counter_ns()
    if batch.checksums is not None and batch.check is not None and batch.check[i]:
        _verify(data, int(batch.checksums[i]), where)
        checked = time.perf_counter_ns()
    width, height = batch.source_size(i)
    plan, wanted = engine.plan, 1
    if plan.scaled and int(batch.kinds[i]) != TURNED:
        geometry = batch.geometry
        one = slice(i, i + 1)
        wanted = int(scaled.scales(geometry.box[one], geometry.resized[one], plan.filter)[0])
    image, size, scale = _decode(data, int(batch.kinds[i]), (width, height), where, wanted)
    if size != (width, height):
        raise _resized((width, height), size, where)
    decoded = time.perf_counter_ns()
    stored = batch.cache_fill
    if stored is not None and not stored.wanted[i]:
        stored = None
    if stored is not None and stored.placed is not None:
        image = done_before(image, i, stored.placed, plan)
    if later is not None and scale == 1:
        later(i, image)
    else:
        fill(image, i, batch.geometry, plan, out, batch.params, scale)
    if stored is not None and engine.cache is not None:
        arena, kind = engine.cache.arena, int(batch.kinds[i])
        if stored.placed is None:
            arena.put(record, data, kind, width, height, False)
        else:
            arena.put(record, image.tobytes(), RAW, image.width, image.height, True)
    end = time.perf_counter_ns()
    if batch.times is not None:
        resized, until = (end - decoded, end) if batch.params is None else (0, decoded)
        thread = threading.get_native_id()
        batch.times[i] = thread, begin, read, checked, resized, until, end
    return decoded - begin, end - decoded


def _verify(data: bytes, expected: int, where: Where) -> None:
    """Raise ChecksumError unless ``data`` has the CRC32C ``expected``."""
    found = crc32c(data)
    if found != expected:
        raise ChecksumError(
            "the record's bytes changed since it was written: expected CRC32C "
            f"{expected:08x}, got {found:08x}",
            **where,
        )


def _resized(expected: tuple[int, int], found: tuple[int, int], where: Where) -> DecodeError:
    return DecodeError(
        f"the image is not {expected[0]}x{expected[1]} pixels any more but "
        f"{found[0]}x{found[1]}: {REPLACED}",
        **where,
    )


def _decode(data: bytes, kind: int, size: tuple[int, int], where: Where, scale: int = 1) -> Decoded:
    if kind == RAW:
        return Decoded(from_pixels(data, size, **where), size)
    if kind == DCT:
        try:
            data = dct_to_jpeg(data)
        except ValueError as error:
            raise DecodeError(f"the DCT record is damaged: {error}", **where) from error
    return decode_scaled(data, scale, upright=kind == TURNED, **where)


def _where(store: Store, spans: Spans, i: int, record: int) -> Where:
    if spans.file[i] < 0:  # in memory that has no name
        spans, i = store.places(np.array([record], np.int64)), 0
    return {
        "path": store.shown(int(spans.file[i])),
        "record": record,
        "offset": int(spans.offset[i]) if store.indirect is None else None,
    }


def _read(store: Store, spans: Spans, i: int, where: Where) -> bytes:
    """The bytes of one span. Raises StoreError where the file is missing or too short."""
    offset, nbytes = int(spans.offset[i]), int(spans.nbytes[i])
    number = int(spans.file[i])
    if number < 0 and spans.memory is not None:
        return bytes_of(spans.memory[-1 - number], offset, nbytes)
    known = store.memory().get(number)
    if known is not None:
        return bytes_of(known, offset, nbytes)
    try:
        path = store.files[number]
        with open(path, "rb", buffering=0, opener=open_regular) as file:
            size = os.fstat(file.fileno()).st_size
            end = size if nbytes < 0 else offset + nbytes
            if not 0 <= offset <= end <= size:
                raise StoreError(
                    f"the record reaches beyond the end of its file of {size} bytes: "
                    "was the file truncated?",
                    **where,
                )
            file.seek(offset)
            data = _read_all(file, end - offset)
    except FileNotFoundError as error:
        raise StoreNotFoundError(f"cannot read the record: {error.strerror}", **where) from error
    except OSError as error:
        raise StoreError(f"cannot read the record: {error.strerror}", **where) from error
    return data


def read_indirect(store: Store, batch: BatchRequest) -> list[Known]:
    """The bytes of a batch's records, read together, so that a chunk is unpacked once for all.

    None for those that are in a cache; an error for those that cannot be read.
    """
    found: list[Known] = [None] * len(batch.records)
    left = np.arange(len(found)) if batch.cached is None else np.flatnonzero(~batch.cached)
    try:
        together: list[Known] = list(store.read(batch.records[left]))
    except DataError:  # one by one, to find those at fault
        together = [_one_read(store, batch.records[i : i + 1]) for i in left.tolist()]
    for i, data in zip(left.tolist(), together, strict=True):
        found[i] = data
    return found


def _one_read(store: Store, record: np.ndarray) -> bytes | DataError:
    try:
        return store.read(record)[0]
    except DataError as error:
        return error


def _read_all(file: io.FileIO, nbytes: int) -> bytes:
    """``nbytes`` bytes. One read gives at most 2 GiB, and less on some file systems."""
    parts, left = [], nbytes
    while left > 0:
        part = file.read(left)
        if not part:
            break  # truncated meanwhile: decoding will say so
        parts.append(part)
        left -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
