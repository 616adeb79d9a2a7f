"""The Python engine: batches through Pillow and NumPy, with the core's results, without the core.

It also decodes the samples that the core leaves to Pillow, into their places in the core's batch.

Samples are tasks of the decoder's thread pool. A failure or a cancellation first stops the tasks
that have not begun and waits for those that have: afterwards nothing writes into the batch.
"""

from __future__ import annotations

import concurrent.futures
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

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
from .decoder import REPLACED, Batch, Decoder, Ticket
from .jpeg import dct_to_jpeg
from .pillow import Decoded, begun, decode, decode_scaled, fill, from_pixels

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["PythonDecoder", "PythonTicket", "decode", "decode_record", "fill", "from_pixels"]


class PythonDecoder(Decoder):
    """Fills batches with Pillow and NumPy. See ``Decoder`` for the arguments."""

    name = "python"

    def _start(self, batch: Batch) -> Ticket:
        return by_pillow(self, batch, np.arange(len(batch.records)))


def by_pillow(decoder: Decoder, batch: Batch, which: npt.NDArray[Any]) -> Ticket:
    """Begin to decode samples ``which`` of ``batch`` with Pillow: in processes, where there are."""
    if decoder.processes is not None:
        from .processes import ProcessTicket

        jobs = decoder.processes.submit(decoder.view, batch, which)
        if jobs is not None:
            return ProcessTicket(decoder, batch, which, jobs)
    return PythonTicket(decoder, batch, which)


Known = bytes | DataError | None
"""Of a record: its bytes, or why there are none, if it was read."""

Spent = tuple[int, int]
"""What a sample took in nanoseconds: until the image was decoded, and from then on."""


class PythonTicket(Ticket):
    """Samples ``which`` of ``batch``, decoded with Pillow into their places.

    On the decoder's threads; on the caller's where it has none or there is one sample.
    """

    def __init__(self, decoder: Decoder, batch: Batch, which: npt.NDArray[Any]) -> None:
        self._decoder = decoder
        self._batch = batch
        self.times = batch.times
        self._which: list[int] = which.tolist()
        self._out = as_array(decoder, batch)
        self._spent: list[Spent] = []
        self._tasks: list[concurrent.futures.Future[Spent]] = []
        self._data: list[Known] | None = None
        if decoder.origin.indirect is not None:
            self._data = read_indirect(decoder.origin, batch)
        if decoder.threads and len(self._which) > 1:
            pool = decoder.pool()
            self._tasks = [
                pool.submit(fill_one, decoder, batch, i, self._out, self._data) for i in self._which
            ]

    def result(self) -> torch.Tensor:
        if self._tasks:
            try:
                self._spent = [task.result() for task in self._tasks]
            except BaseException:
                self.cancel()
                raise
        else:
            self._spent = [
                fill_one(self._decoder, self._batch, i, self._out, self._data) for i in self._which
            ]
        self._decoder.checked(self._batch)
        return self._batch.images

    def settle(self) -> tuple[torch.Tensor, dict[int, DataError]]:
        errors: dict[int, DataError] = {}
        for n, i in enumerate(self._which):
            try:
                if self._tasks:
                    self._spent.append(self._tasks[n].result())
                else:
                    self._spent.append(
                        fill_one(self._decoder, self._batch, i, self._out, self._data)
                    )
            except DataError as error:
                errors[i] = error
            except BaseException:
                self.cancel()
                raise
        if not errors:
            self._decoder.checked(self._batch)
        return self._batch.images, errors

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        concurrent.futures.wait(self._tasks)

    def stages_ns(self) -> Mapping[str, int]:
        later = "resize" if self._batch.recipe is None else "augment"
        return {
            "decode": sum(decoding for decoding, _ in self._spent),
            later: sum(rest for _, rest in self._spent),
        }


def decode_record(store: Store, record: int) -> Image.Image:
    """The image of one record, RGB.

    Raises:
        DecodeError: it cannot be decoded.
        StoreError: it cannot be read.
    """
    records = np.array([record], np.int64)
    spans, kinds, sizes = store.spans(records), store.kinds(records), store.sizes(records)
    where = _where(store, spans, 0, record)
    (data,) = store.read(records) if store.indirect else [_read(store, spans, 0, where)]
    width, height = sizes[0].tolist()
    return _decode(data, int(kinds[0]), (width, height), **where).image


def as_array(decoder: Decoder, batch: Batch) -> npt.NDArray[Any]:
    """The batch's memory as (n, channels, h, w) of ``plan.stored``, with the strides it has."""
    n, h, w = len(batch.records), batch.geometry.out_h, batch.geometry.out_w
    channels = decoder.plan.channels
    flat: npt.NDArray[Any] = batch.memory.view(decoder.plan.stored)
    if decoder.channels_last:
        return np.moveaxis(flat.reshape(n, h, w, channels), 3, 1)
    return np.reshape(flat, (n, channels, h, w))


def fill_one(
    decoder: Decoder,
    batch: Batch,
    i: int,
    out: npt.NDArray[Any],
    known: list[Known] | None,
    later: Callable[[int, Image.Image], None] | None = None,
) -> Spent:
    """Read, check, decode and fill one sample; returns what it took.

    ``known`` are the bytes of the batch's records where they need not be read. ``later`` takes
    images of their whole size instead of having them filled. Raises DataError.
    """
    store, record = decoder.store, int(batch.records[i])
    # Of a record in a cache errors name the place in the store behind.
    plain = decoder.cache is None
    where = _where(store, batch.spans, i, record) if plain else decoder.where(record)
    try:
        return _filled(decoder, batch, i, out, known, later, where)
    except Exception as error:  # noqa: BLE001 - what Pillow or the system may raise
        found = sample_error(error, **where)
        raise found from found.__cause__


def _filled(
    decoder: Decoder,
    batch: Batch,
    i: int,
    out: npt.NDArray[Any],
    known: list[Known] | None,
    later: Callable[[int, Image.Image], None] | None,
    where: dict[str, Any],
) -> Spent:
    begin = time.perf_counter_ns()
    store, record = decoder.store, int(batch.records[i])
    data = None if known is None else known[i]
    if isinstance(data, DataError):
        raise data
    if data is None:
        data = _read(store, batch.spans, i, where)
    checked = read = time.perf_counter_ns()
    if batch.checksums is not None and batch.check is not None and batch.check[i]:
        found, expected = crc32c(data), int(batch.checksums[i])
        if found != expected:
            raise ChecksumError(
                "the record's bytes changed since it was written: expected CRC32C "
                f"{expected:08x}, got {found:08x}",
                **where,
            )
        checked = time.perf_counter_ns()
    width, height = batch.source_size(i)
    plan, wanted = decoder.plan, 1
    if plan.scaled and int(batch.kinds[i]) != TURNED:
        geometry = batch.geometry
        one = slice(i, i + 1)
        wanted = int(scaled.scales(geometry.box[one], geometry.resized[one], plan.filter)[0])
    image, size, scale = _decode(data, int(batch.kinds[i]), (width, height), wanted, **where)
    if size != (width, height):
        raise DecodeError(
            f"the image is not {width}x{height} pixels any more but {size[0]}x{size[1]}: "
            f"{REPLACED}",
            **where,
        )
    decoded = time.perf_counter_ns()
    keep = batch.keep if batch.keep is not None and batch.keep.wanted[i] else None
    if keep is not None and keep.placed is not None:
        image = begun(image, i, keep.placed, plan)
    if later is not None and scale == 1:
        later(i, image)
    else:
        fill(image, i, batch.geometry, plan, out, batch.recipe, scale)
    if keep is not None and decoder.cache is not None:
        arena, kind = decoder.cache.arena, int(batch.kinds[i])
        if keep.placed is None:
            arena.put(record, data, kind, width, height, False)
        else:
            arena.put(record, image.tobytes(), RAW, image.width, image.height, True)
    end = time.perf_counter_ns()
    if batch.times is not None:
        resized, until = (end - decoded, end) if batch.recipe is None else (0, decoded)
        thread = threading.get_native_id()
        batch.times[i] = thread, begin, read, checked, resized, until, end
    return decoded - begin, end - decoded


def _decode(data: bytes, kind: int, size: tuple[int, int], scale: int = 1, **where: Any) -> Decoded:
    if kind == RAW:
        return Decoded(from_pixels(data, size, **where), size)
    if kind == DCT:
        try:
            data = dct_to_jpeg(data)
        except ValueError as error:
            raise DecodeError(f"the DCT record is damaged: {error}", **where) from error
    return decode_scaled(data, scale, upright=kind == TURNED, **where)


def _where(store: Store, spans: Spans, i: int, record: int) -> dict[str, Any]:
    return {
        "path": store.files[int(spans.file[i])],
        "record": record,
        "offset": int(spans.offset[i]) if store.indirect is None else None,
    }


def _read(store: Store, spans: Spans, i: int, where: dict[str, Any]) -> bytes:
    """The bytes of one span. Raises StoreError where the file is missing or too short."""
    offset, nbytes = int(spans.offset[i]), int(spans.nbytes[i])
    known = store.memory().get(int(spans.file[i]))
    if known is not None:
        return bytes_of(known, offset, nbytes)
    try:
        path = store.files[int(spans.file[i])]
        with open(path, "rb", buffering=0, opener=open_regular) as file:
            size = os.fstat(file.fileno()).st_size
            end = size if nbytes < 0 else offset + nbytes
            if not 0 <= offset <= end <= size:
                raise StoreError(
                    f"the record reaches beyond the end of its file of {size} bytes: "
                    "was the file cut short?",
                    **where,
                )
            file.seek(offset)
            data = _read_all(file, end - offset)
    except FileNotFoundError as error:
        raise StoreNotFoundError(f"cannot read the record: {error.strerror}", **where) from error
    except OSError as error:
        raise StoreError(f"cannot read the record: {error.strerror}", **where) from error
    return data


def read_indirect(store: Store, batch: Batch) -> list[Known]:
    """The bytes of a batch's records, all at once: a chunk is unpacked once for them.

    None for those that are in a cache; for those that cannot be read, why.
    """
    found: list[Known] = [None] * len(batch.records)
    left = np.arange(len(found)) if batch.kept is None else np.flatnonzero(~batch.kept)
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


def _read_all(file: Any, nbytes: int) -> bytes:
    """``nbytes`` bytes: one read gives at most 2 GiB, and less from some file systems."""
    parts, left = [], nbytes
    while left > 0:
        part = file.read(left)
        if not part:
            break  # cut short meanwhile: the decoder will say so
        parts.append(part)
        left -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
