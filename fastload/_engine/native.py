"""The native engine: one call into the C++ core fills a whole batch.

The core flags what it cannot decode exactly (TIFF, CMYK, a damaged JPEG or PNG ...). Pillow decodes
those samples into their places in the same batch.
"""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from typing_extensions import override

from .. import _native
from .._base import pixel_limit
from .._transforms.geometry.crop_geometry import Geometry
from .._transforms.plan import Plan
from ..errors import (
    ChecksumError,
    DataError,
    DecodeError,
    InternalError,
    StoreError,
    StoreNotFoundError,
    UnreadableError,
)
from ..storage._read import NOT_REGULAR, REPLACED, part_of
from ..storage.base import Spans, Store
from .base import Ticket
from .huffman_index import table_of
from .image_engine import EngineOptions, ImageEngine, PixelEngine
from .kernel import BatchRequest, CachePlace, Kernel, files_of, pixels_as_files, shared_regions

if TYPE_CHECKING:
    from .._native import _core


def left_to_pillow(store: Store, records: np.ndarray, threads: int) -> np.ndarray:
    """Which of ``records`` (int64) the core does not decode: bool (n,).

    It is asked for one pixel of each. What cannot be read at all counts as decoded: its batch says
    what is wrong with it.
    """
    located = store.locate(records)
    sized = np.flatnonzero(located.sizes.min(axis=1, initial=1) > 0)
    n = len(sized)
    status = np.zeros(n, np.int32)
    spans, unreadable = part_of(located.spans, sized), dict[int, DataError]()
    if store.indirect is not None:
        spans, unreadable = read_indirect(store, records[sized], spans)
    files, spans = files_of(store, spans)
    batch = BatchRequest(
        records=records[sized],
        spans=spans,
        kinds=located.kinds[sized],
        sizes=located.sizes[sized],
        geometry=Geometry(
            box=np.tile(np.array([0, 0, 1, 1], np.int32), (n, 1)),
            resized=np.ones((n, 2), np.int32),
            window=np.zeros((n, 2), np.int32),
            flip=np.zeros(n, np.uint8),
            out_h=1,
            out_w=1,
        ),
        images=torch.empty(0),
        memory=np.empty(3 * n, np.uint8),
        most_pixels=pixel_limit.most_pixels(),
    )
    try:
        Kernel(Plan()).submit(files, batch, status, threads=threads).wait()
    finally:
        files.close()
    status[list(unreadable)] = _native.IO
    declined = np.zeros(len(records), bool)
    declined[sized] = status == _native.UNSUPPORTED
    return declined


def read_indirect(
    store: Store, records: np.ndarray, spans: Spans, cached: np.ndarray | None = None
) -> tuple[Spans, dict[int, DataError]]:
    """Spans of the bytes of ``records`` in memory, and an error for each that cannot be read.

    They are read together, so that a chunk is unpacked once for all. ``store`` does not have them
    in its files as they are (``Store.indirect``); ``spans`` are theirs there. Those that are
    ``cached``, bool (n,), need not be read.
    """
    missing = np.arange(len(records)) if cached is None else np.flatnonzero(~cached)
    contents: list[bytes | DataError]
    try:
        contents = list(store.read(records[missing]))
    except DataError:  # one by one, to find those at fault
        contents = [_one_read(store, records[i : i + 1]) for i in missing.tolist()]
    errors = {i: data for i, data in zip(missing.tolist(), contents) if isinstance(data, DataError)}
    memory = [
        np.frombuffer(b"\0" if isinstance(data, DataError) else data, np.uint8) for data in contents
    ]
    file, offset, nbytes = spans.file.copy(), spans.offset.copy(), spans.nbytes.copy()
    file[missing], offset[missing] = -1 - np.arange(len(missing), dtype=np.int32), 0
    nbytes[missing] = list(map(len, memory))
    return Spans(file=file, offset=offset, nbytes=nbytes, memory=memory), errors


def _one_read(store: Store, record: np.ndarray) -> bytes | DataError:
    try:
        return store.read(record)[0]
    except DataError as error:
        return error


class NativeEngine(PixelEngine):
    """Fills batches with the C++ core. See ``ImageEngine`` for the arguments."""

    name = "native"

    def __init__(self, store: Store, plan: Plan, options: EngineOptions) -> None:
        super().__init__(store, plan, options)
        self._core = _native.required()
        self._opened: tuple[int, _core.Files] | None = None
        self._index = table_of(self.origin)
        self._kernel = Kernel(plan, channels_last=options.channels_last)

    @property
    def _files(self) -> _core.Files:
        """What spans refer to; opened anew where the store's files were."""
        opened, generation = self._opened, self.origin.generation
        if opened is None or opened[0] != generation:
            paths, ends = self.origin.file_table()
            arena = None if self.cache is None else self.cache.arena
            files: _core.Files = self._core.Files(
                paths, ends, self.origin.mapped_files(), arena, dict(self.origin.memory())
            )
            opened = self._opened = generation, files
        return opened[1]

    @override
    def readahead(self, spans: Sequence[Spans], *, wait: bool = False) -> None:
        if not spans:
            return
        file = np.concatenate([some.file for some in spans])
        offset = np.concatenate([some.offset for some in spans])
        nbytes = np.concatenate([some.nbytes for some in spans])
        if wait:
            self._files.readahead(file, offset, nbytes)
            return
        # One call sorts them all. Loose files have no order, and opening them waits for the disk.
        shares = 1 if self.store.mapped else max(1, self.threads)
        for share in np.array_split(np.arange(len(file)), shares):
            self.pool().submit(self._files.readahead, file[share], offset[share], nbytes[share])

    @override
    def start(self, batch: BatchRequest) -> Ticket:
        ticket = self._begin(*self._read(batch))
        if self.processes is not None:
            ticket.leave_to_pillow()
        return ticket

    @override
    def start_views(
        self, others: Sequence[ImageEngine], batches: Sequence[BatchRequest]
    ) -> list[Ticket]:
        """Each record is read once, and decoded once where that is less work than once per view."""
        natives = [other for other in others if isinstance(other, NativeEngine)]
        if self.plan.scaled or len(natives) < len(others):
            return super().start_views(others, batches)
        batch, unreadable = self._read(batches[0])
        if batch.spans.memory is not None:  # the others' Pillow decodes from it, too
            batches = [dataclasses.replace(other, spans=batch.spans) for other in batches]
        followers = [
            engine._begin(followed, unreadable, begin=False)
            for engine, followed in zip(natives, batches[1:], strict=True)
        ]
        jobs = cast("list[_core.Job]", [ticket.job for ticket in followers])
        first = self._begin(batch, unreadable, views=(jobs, shared_regions(batches)))
        for ticket in followers:
            ticket.job = _Led(ticket.job, first.job)
        tickets = [first, *followers]
        if self.processes is not None:
            for ticket in tickets:
                ticket.leave_to_pillow()
        return [*tickets]

    def _read(self, batch: BatchRequest) -> tuple[BatchRequest, dict[int, DataError]]:
        """``batch`` with what the core cannot read by itself, and what cannot be read at all."""
        if self.origin.indirect is None:
            return batch, {}
        spans, unreadable = read_indirect(self.origin, batch.records, batch.spans, batch.cached)
        return dataclasses.replace(batch, spans=spans), unreadable

    def _begin(
        self,
        batch: BatchRequest,
        unreadable: Mapping[int, DataError],
        *,
        begin: bool = True,
        views: tuple[list[_core.Job], np.ndarray] | None = None,
    ) -> NativeTicket:
        status, detail = np.zeros((2, len(batch.records)), np.int32)
        files, request = self._files, batch
        arena = None if self.cache is None else self.cache.arena
        if batch.spans.memory:
            files, spans = files_of(self.origin, batch.spans, arena)
            request = dataclasses.replace(batch, spans=spans)
        job = self._kernel.submit(
            files,
            request,
            status,
            detail,
            threads=self.threads,
            entries=(self._index, batch.records),
            cache=self._cache_of(batch),
            begin=begin,
            views=views,
        )
        return NativeTicket(self, batch, job, status, detail, unreadable)

    def _cache_of(self, batch: BatchRequest) -> CachePlace | None:
        cache = self.cache
        return None if cache is None else (cache.arena, cache.form, batch.records)

    @override
    def of_pixels(self, batch: BatchRequest, pixels: Sequence[np.ndarray]) -> list[int]:
        files, spans, kinds, _ = pixels_as_files(pixels)
        request = dataclasses.replace(
            batch,
            spans=spans,
            kinds=kinds,
            checksums=None,
            check=None,
            times=None,
            most_pixels=pixel_limit.UNLIMITED,
        )
        status = np.zeros(len(pixels), np.int32)
        try:
            self._kernel.submit(
                files, request, status, threads=0, cache=self._cache_of(batch)
            ).wait()
        finally:
            files.close()
        if (status > _native.UNSUPPORTED).any():
            raise InternalError(
                f"the core refused pixels that Pillow decoded: status {status.max()}"
            )
        declined: list[int] = np.flatnonzero(status).tolist()
        return declined


class _Led:
    """The job of a view that the job of another view fills."""

    def __init__(self, job: _core.Job | _Led, leader: _core.Job | _Led) -> None:
        self._job = job
        self.wait: Callable[[], None] = leader.wait
        self.cancel: Callable[[], None] = leader.cancel

    @property
    def nanoseconds(self) -> dict[str, int]:
        """Work of this view alone."""
        return self._job.nanoseconds


class NativeTicket(Ticket):
    """A batch that the core fills."""

    def __init__(
        self,
        engine: NativeEngine,
        batch: BatchRequest,
        job: _core.Job | _Led,
        status: np.ndarray,
        detail: np.ndarray,
        unreadable: Mapping[int, DataError],
    ) -> None:
        self._engine = engine
        self._batch = batch
        self.times = batch.times
        self.job = job
        self._status = status
        self._detail = detail
        self._unreadable = unreadable
        self._pillow_ticket: Ticket | None = None

    def leave_to_pillow(self) -> None:
        """Wait for the core, and start to decode with Pillow what it leaves, before ``result``."""
        self.job.wait()
        self._status[list(self._unreadable)] = _native.IO
        declined = np.flatnonzero(self._status == _native.UNSUPPORTED)
        if len(declined) and not self.cancelled:
            from .by_pillow import by_pillow  # most loops never need it

            self._pillow_ticket = by_pillow(self._engine, self._batch, declined)

    def settle(self) -> tuple[torch.Tensor, dict[int, DataError]]:
        self.job.wait()
        self.check_cancelled()
        if self._pillow_ticket is None:
            self.leave_to_pillow()
        failed = np.flatnonzero(self._status > _native.UNSUPPORTED).tolist()
        errors = {i: self._unreadable.get(i) or self._error(i) for i in failed}
        if self._pillow_ticket is not None:
            errors |= self._pillow_ticket.settle()[1]
        self.check_cancelled()
        if not errors:
            self._engine.verified(self._batch)
        return self._batch.images, errors

    def cancel(self) -> None:
        self.cancelled = True
        self.job.cancel()
        if self._pillow_ticket is not None:
            self._pillow_ticket.cancel()

    def stages_ns(self) -> Mapping[str, int]:
        stages = dict(self.job.nanoseconds)
        if self._pillow_ticket is not None:
            stages["pillow"] = sum(self._pillow_ticket.stages_ns().values())
        return stages

    def _error(self, i: int) -> DataError:
        status, detail = int(self._status[i]), int(self._detail[i])
        kind: type[DataError] = DecodeError
        if status == _native.IO:
            kind = StoreNotFoundError if detail == errno.ENOENT else UnreadableError
            reason = NOT_REGULAR if detail == errno.EINVAL else os.strerror(detail)
            message = f"cannot read the record: {reason}"
        elif status == _native.TRUNCATED:
            kind = StoreError
            message = "the record reaches beyond the end of its file: was the file truncated?"
        elif status == _native.CHECKSUM:
            kind = ChecksumError
            message = "the record's bytes changed since it was written: its CRC32C does not match"
        elif status == _native.SIZE:
            width, height = self._batch.source_size(i)
            message = f"the image is not {width}x{height} pixels any more: {REPLACED}"
        else:
            message = "the record is damaged: its head and its length do not fit together"
        return self._engine.error(kind, message, int(self._batch.records[i]))
