"""The native engine: one call into the C++ core fills a whole batch.

What the core cannot decode exactly (PNG, WebP, CMYK, a damaged JPEG ...) it flags, and Pillow
decodes those samples into their places in the same batch.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import errno
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .. import _native
from .._transforms.geometry.draws import Geometry
from .._transforms.recognise import Plan
from ..errors import (
    ChecksumError,
    DataError,
    DecodeError,
    InternalError,
    StoreError,
    StoreNotFoundError,
)
from ..storage._read import NOT_REGULAR
from ..storage.base import DCT, ENCODED, RAW, Spans, Store
from .decoder import REPLACED, Batch, Decoder, Ticket
from .entry_points import table_of

if TYPE_CHECKING:
    from .processes import Processes

# resample/resample.h numbers the data types.
_DTYPES = {torch.uint8: 0, torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}


def _pass_order() -> int:
    """Which pass of a resize the installed Pillow does first (PassOrder of resample/resample.h)."""
    import PIL

    major, minor = (int(part) for part in PIL.__version__.split(".")[:2])
    if major >= 13:
        return 1
    return 2 if (major, minor) >= (12, 2) else 0


def _by_pillow(decoder: Decoder, batch: Batch, which: np.ndarray) -> Ticket:
    """The samples ``which`` of a batch, which the core has left to Pillow."""
    from .python import by_pillow  # most loops never need it

    return by_pillow(decoder, batch, which)


def left_to_pillow(store: Store, records: np.ndarray, threads: int) -> np.ndarray:
    """Which of ``records`` (int64) the core does not decode: bool (n,).

    It is asked for one pixel of each. What cannot be read at all counts as decoded: the batch says
    what is wrong with it.
    """
    core = _native.load()
    if core is None:
        raise _native.missing()
    found = store.locate(records)
    known = np.flatnonzero(found.sizes.min(axis=1, initial=1) > 0)
    n, spans = len(known), found.spans
    status = np.zeros(n, np.int32)
    corner = np.tile(np.array([0, 0, 1, 1], np.int32), (n, 1))
    paths, ends = store.file_table()
    files = core.Files(paths, ends, store.mapped_files(), None, dict(store.memory()))
    try:
        job = core.submit(
            files,
            spans.file[known],
            spans.offset[known],
            spans.nbytes[known],
            found.kinds[known],
            found.sizes[known],
            None,
            None,
            corner,
            np.ones((n, 2), np.int32),
            np.zeros((n, 2), np.int32),
            np.zeros(n, np.uint8),
            np.empty(3 * n, np.uint8),
            None,
            out_h=1,
            out_w=1,
            dtype=_DTYPES[torch.uint8],
            channels_last=False,
            filter=0,
            order=_pass_order(),
            fill=(0, 0, 0),
            status=status,
            detail=np.zeros(n, np.int32),
            threads=threads,
        )
        job.wait()
    finally:
        files.close()
    left = np.zeros(len(records), bool)
    left[known] = status == _native.UNSUPPORTED
    return left


class NativeDecoder(Decoder):
    """Fills batches with the C++ core. See ``Decoder`` for the arguments."""

    name = "native"

    def __init__(self, store: Store, plan: Plan, **options: Any) -> None:
        super().__init__(store, plan, **options)
        core = _native.load()
        if core is None:
            raise _native.missing()
        self._core = core
        paths, ends = self.origin.file_table()
        arena = None if self.cache is None else self.cache.arena
        self._files = core.Files(
            paths, ends, self.origin.mapped_files(), arena, dict(self.origin.memory())
        )
        self._entries = table_of(self.origin)
        self._lut = plan.lut_bytes()
        self._erased = plan.erased_bytes()
        self._order = _pass_order()
        # What moves along is drawn with a batch, and a cache keeps what is being filled.
        self.early = plan.joint is None and self.cache is None

    def readahead(self, spans: Sequence[Spans], *, wait: bool = False) -> None:
        """As in the contract."""
        file = np.concatenate([some.file for some in spans])
        offset = np.concatenate([some.offset for some in spans])
        nbytes = np.concatenate([some.nbytes for some in spans])
        if wait:
            self._files.readahead(file, offset, nbytes)
            return
        # Sorted as a whole; but loose files have no order, and opening them waits for the disk.
        parts = 1 if self.store.mapped else max(1, self.threads)
        for part in np.array_split(np.arange(len(file)), parts):
            self.pool().submit(self._files.readahead, file[part], offset[part], nbytes[part])

    def employ(self, processes: Processes | None) -> None:
        """As in the contract."""
        super().employ(processes)
        self.early = self.early and processes is None

    def _start(self, batch: Batch) -> Ticket:
        ticket = self._begin(batch)
        if self.processes is not None:
            ticket.leave_to_pillow()
        return ticket

    def _start_early(self, batch: Batch) -> Ticket:
        from .early import EarlyTicket  # for large batches only

        return EarlyTicket(self, batch)

    def sample_nbytes(self, geometry: Geometry) -> int:
        """What one sample of a batch takes."""
        area = geometry.out_h * geometry.out_w
        return self.plan.channels * area * self.plan.dtype.itemsize

    def memory(self, n: int, height: int, width: int) -> tuple[torch.Tensor, np.ndarray]:
        """Of a batch: as a tensor, and as 1-D uint8."""
        return self._allocate(n, height, width)

    def start_views(
        self, others: Sequence[NativeDecoder], batches: Sequence[Batch]
    ) -> list[Ticket]:
        """Begin to fill a batch for each view: this decoder's, and those of ``others``.

        ``batches`` are of the same records. Each is read once, and decoded once where that is less
        work than a decoding for each view.
        """
        followers = [
            other._begin(batch, begin=False)
            for other, batch in zip(others, batches[1:], strict=True)
        ]
        jobs = [ticket.job for ticket in followers]
        first = self._begin(batches[0], views=(jobs, shared_regions(batches)))
        for ticket in followers:
            ticket.job = _Led(ticket.job, first.job)
        tickets = [first, *followers]
        if self.processes is not None:
            for ticket in tickets:
                ticket.leave_to_pillow()
        return [*tickets]

    def _begin(self, batch: Batch, **how: Any) -> NativeTicket:
        n = len(batch.records)
        status = np.zeros(n, np.int32)
        detail = np.zeros(n, np.int32)
        return NativeTicket(self, batch, self.job(batch, status, detail, **how), status, detail)

    def of_pixels(self, batch: Batch, pixels: Sequence[np.ndarray]) -> list[int]:
        """Fill ``batch`` with what is decoded already: of each sample its box, uint8 (h, w, 3).

        Returns the positions that the core leaves to Pillow: sides beyond what it resizes.
        """
        n = len(pixels)
        known = [one.reshape(-1) for one in pixels]
        files = self._core.Files(
            b"", np.zeros(n, np.int64), np.ones(n, np.uint8), None, dict(enumerate(known))
        )
        sizes = np.array([one.shape[1::-1] for one in pixels], np.int32)
        part = dataclasses.replace(
            batch,
            spans=Spans(
                file=np.arange(n, dtype=np.int32),
                offset=np.zeros(n, np.int64),
                nbytes=np.array([len(one) for one in known], np.int64),
            ),
            kinds=np.full(n, RAW, np.uint8),
            sizes=sizes,
            geometry=dataclasses.replace(
                batch.geometry, box=np.concatenate([np.zeros_like(sizes), sizes], axis=1)
            ),
            checksums=None,
            check=None,
            times=None,
            keep=None,
        )
        status, detail = np.zeros(n, np.int32), np.zeros(n, np.int32)
        try:
            self.job(part, status, detail, files=files).wait()
        finally:
            files.close()
        if (status > _native.UNSUPPORTED).any():
            raise InternalError(f"the core refused pixels of Pillow's: status {status.max()}")
        left: list[int] = np.flatnonzero(status).tolist()
        return left

    def job(
        self,
        batch: Batch,
        status: np.ndarray,
        detail: np.ndarray,
        *,
        files: Any = None,
        **how: Any,
    ) -> Any:
        """The core's job that fills ``batch``; ``status`` and ``detail``: int32, of each sample.

        ``files`` are what its spans refer to, where not to the store's.
        """
        geometry, recipe = batch.geometry, batch.recipe
        return self._core.submit(
            self._files if files is None else files,
            batch.spans.file,
            batch.spans.offset,
            batch.spans.nbytes,
            batch.kinds,
            batch.sizes,
            batch.checksums,
            batch.check,
            geometry.box,
            geometry.resized,
            geometry.window,
            geometry.flip,
            batch.memory,
            self._lut,
            out_h=geometry.out_h,
            out_w=geometry.out_w,
            dtype=_DTYPES[self.plan.dtype],
            channels_last=self.channels_last,
            filter=self.plan.filter,
            order=self._order,
            fill=self.plan.fill,
            status=status,
            detail=detail,
            threads=self.threads,
            times=batch.times,
            stages=None if recipe is None else recipe.stages(),
            erase=None if recipe is None or self._erased is None else recipe.erase(*self._erased),
            cache_fill=self._keep(batch),
            entries=(self._entries, batch.records),
            channels=self.plan.channels,
            scaled=self.plan.scaled,
            **how,
        )

    def _keep(self, batch: Batch) -> Any:
        """What of the batch the core is to keep, as it takes it."""
        if self.cache is None or batch.keep is None:
            return None
        placed = batch.keep.placed
        stage = placed and (placed.source, placed.box, placed.resized, placed.window)
        return self._core.CacheFill(
            self.cache.arena,
            self.cache.form,
            batch.records,
            batch.keep.wanted,
            stage,
            filter=self.plan.filter,
            order=self._order,
            fill=self.plan.fill,
        )


class _Led:
    """The job of a view that another job fills."""

    def __init__(self, job: Any, leader: Any) -> None:
        self._job = job
        self.wait, self.cancel = leader.wait, leader.cancel

    @property
    def nanoseconds(self) -> Any:
        """Of this view."""
        return self._job.nanoseconds


def shared_regions(batches: Sequence[Batch]) -> np.ndarray:
    """What all views of each sample need of its source: int32 (n, 4), x, y, w, h; w 0: nothing.

    Decoding costs the pixels that come out, and for a JPEG, whose Huffman codes come one after the
    other, the rows down to the last one. It is shared where that is less in all.
    """
    first = batches[0]
    boxes = np.stack([batch.geometry.box for batch in batches]).astype(np.int64)
    ends = boxes[:, :, :2] + boxes[:, :, 2:]
    start, end = boxes[:, :, :2].min(axis=0), ends.max(axis=0)
    regions = np.concatenate([start, end - start], axis=1)
    rows = first.sizes[:, 0] * (first.kinds == ENCODED)
    together = regions[:, 2] * regions[:, 3] + rows * end[:, 1]
    apart = (boxes[:, :, 2] * boxes[:, :, 3] + rows * ends[:, :, 1]).sum(axis=0)
    alone = (together >= apart) | ~np.isin(first.kinds, (ENCODED, DCT))
    regions[alone] = 0
    return np.ascontiguousarray(regions, np.int32)


class NativeTicket(Ticket):
    """A batch that the core fills."""

    def __init__(
        self,
        decoder: NativeDecoder,
        batch: Batch,
        job: Any,
        status: np.ndarray,
        detail: np.ndarray,
    ) -> None:
        self._decoder = decoder
        self._batch = batch
        self.times = batch.times
        self.job = job
        self._status = status
        self._detail = detail
        self._rest: Ticket | None = None
        self._cancelled = False

    def leave_to_pillow(self) -> None:
        """Wait for the core, and have others begin with what it leaves, before ``result``."""
        self.job.wait()
        left = np.flatnonzero(self._status == _native.UNSUPPORTED)
        if len(left) and not self._cancelled:
            self._rest = _by_pillow(self._decoder, self._batch, left)

    def result(self) -> torch.Tensor:
        self.job.wait()
        failed = np.flatnonzero(self._status > _native.UNSUPPORTED)
        if len(failed):
            raise self._error(int(failed[0]))
        if self._cancelled:
            raise concurrent.futures.CancelledError("the batch was cancelled")
        if self._rest is None:
            self.leave_to_pillow()
        if self._rest is not None:
            self._rest.result()
        self._decoder.checked(self._batch)
        return self._batch.images

    def settle(self) -> tuple[torch.Tensor, dict[int, DataError]]:
        self.job.wait()
        if self._cancelled:
            raise concurrent.futures.CancelledError("the batch was cancelled")
        failed = np.flatnonzero(self._status > _native.UNSUPPORTED).tolist()
        errors = {i: self._error(i) for i in failed}
        if self._rest is None:
            self.leave_to_pillow()
        if self._rest is not None:
            errors |= self._rest.settle()[1]
        if not errors:
            self._decoder.checked(self._batch)
        return self._batch.images, errors

    def cancel(self) -> None:
        self._cancelled = True
        self.job.cancel()
        if self._rest is not None:
            self._rest.cancel()

    def stages_ns(self) -> Mapping[str, int]:
        stages = dict(self.job.nanoseconds)
        if self._rest is not None:
            stages["pillow"] = sum(self._rest.stages_ns().values())
        return stages

    def _error(self, i: int) -> DataError:
        status, detail = int(self._status[i]), int(self._detail[i])
        kind: type[DataError] = DecodeError
        if status == _native.IO:
            kind = StoreNotFoundError if detail == errno.ENOENT else StoreError
            reason = NOT_REGULAR if detail == errno.EINVAL else os.strerror(detail)
            message = f"cannot read the record: {reason}"
        elif status == _native.TRUNCATED:
            kind = StoreError
            message = "the record reaches beyond the end of its file: was the file cut short?"
        elif status == _native.CHECKSUM:
            kind = ChecksumError
            message = "the record's bytes changed since it was written: its CRC32C does not match"
        elif status == _native.SIZE:
            width, height = self._batch.source_size(i)
            message = f"the image is not {width}x{height} pixels any more: {REPLACED}"
        else:
            message = "the record is damaged: its head and its length do not fit together"
        return self._decoder.error(kind, message, self._batch.records, i)
