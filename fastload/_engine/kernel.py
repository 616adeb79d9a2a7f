"""A batch as the core takes it: what is asked for, and the one call that submits it.

Every batch comes here: an engine's, one of recordings, and a single image.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from .. import _native
from .._base.value_class import value_class
from ..storage._read import bytes_of, part_of
from ..storage._spans import DCT, ENCODED, RAW, Spans

if TYPE_CHECKING:
    from .._native import _core
    from .._transforms.geometry.crop_geometry import Geometry
    from .._transforms.plan import Plan
    from .._transforms.sample_params import SampleParams
    from ..storage.base import Store
    from .cache.prefix import Placed
    from .cache.store import CacheFill

# resample/resample.h numbers the data types.
_DTYPES = {torch.uint8: 0, torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}


def _pass_order() -> int:
    """Which pass of a resize the installed Pillow does first (PassOrder of resample/resample.h)."""
    import PIL

    major, minor = (int(number) for number in PIL.__version__.split(".")[:2])
    if major >= 13:
        return 1
    return 2 if (major, minor) >= (12, 2) else 0


@value_class(kw_only=True)
class BatchRequest:
    """One batch on its way through an engine.

    Attributes:
        records: int64 (n,), record numbers in the store.
        spans, kinds, sizes, checksums: of these records, as the store gives them; but where
            ``cache_fill`` stores pixels, ``sizes`` are those of the stored pixels.
        check: uint8 (n,), 1 where the checksum is to be verified; None where there are none.
        geometry: crop, size, window and flip of each sample.
        params: what follows the geometry; None: nothing.
        images: the tensor to fill, (n, channels, out_h, out_w).
        memory: the same memory as a 1-D uint8 array.
        rows: int64 (n,), the row of ``memory`` for each sample, of which there may be more; None:
            sample i is row i.
        times: int64 (n, TIMES), where the times of each sample are written, as in
            the core's ``BatchSpec``; None: nowhere.
        cached: bool (n,), which samples the engine's cache has; None: there is no cache.
        cache_fill: what of the batch goes into that cache, or None.
        most_pixels: of a source; what has more is left to Pillow. See ``pixel_limit.py``.
    """

    records: np.ndarray
    spans: Spans
    kinds: np.ndarray
    sizes: np.ndarray
    checksums: np.ndarray | None = None
    check: np.ndarray | None = None
    geometry: Geometry
    params: SampleParams | None = None
    images: torch.Tensor
    memory: np.ndarray
    rows: np.ndarray | None = None
    times: np.ndarray | None = None
    cached: np.ndarray | None = None
    cache_fill: CacheFill | None = None
    most_pixels: int

    def part(self, which: slice | np.ndarray, memory: np.ndarray) -> BatchRequest:
        """Some of the samples, to be filled into ``memory``."""

        def its(values: np.ndarray | None) -> np.ndarray | None:
            return None if values is None else values[which]

        fill = self.cache_fill
        return dataclasses.replace(
            self,
            records=self.records[which],
            spans=part_of(self.spans, which),
            kinds=self.kinds[which],
            sizes=self.sizes[which],
            checksums=its(self.checksums),
            check=its(self.check),
            geometry=self.geometry.part(which),
            params=None if self.params is None else self.params.part(which),
            memory=memory,
            times=its(self.times),
            cached=its(self.cached),
            cache_fill=None if fill is None else fill.part(which),
        )

    def __getstate__(self) -> dict[str, object]:
        # Another process has its own memory, and gets what is read of that of the spans.
        spans = _copied(self.spans)
        return {**self.__dict__, "spans": spans, "images": None, "memory": None}

    def placed(self, i: int) -> Placed | None:
        """What a cache is to keep of the samples, if it keeps pixels of sample ``i``; else None."""
        fill = self.cache_fill
        return None if fill is None or not fill.wanted[i] else fill.placed

    def source_size(self, i: int) -> tuple[int, int]:
        """Width and height that the store says sample ``i`` has."""
        placed = self.placed(i)
        width, height = (self.sizes if placed is None else placed.source)[i].tolist()
        return width, height


def _copied(spans: Spans) -> Spans:
    """``spans`` with memory of their own, where they have memory: the records alone."""
    if not spans.memory:
        return spans
    file, offset, nbytes = spans.file.copy(), spans.offset.copy(), spans.nbytes.copy()
    memory: list[np.ndarray] = []
    for i in np.flatnonzero(file < 0).tolist():
        data = bytes_of(spans.memory[-1 - int(file[i])], int(offset[i]), int(nbytes[i]))
        memory.append(np.frombuffer(data, np.uint8))
        file[i], offset[i], nbytes[i] = -len(memory), 0, len(data)
    return Spans(file=file, offset=offset, nbytes=nbytes, memory=memory)


def files_of(
    store: Store, spans: Spans, arena: _core.Arena | None = None
) -> tuple[_core.Files, Spans]:
    """What ``spans`` refer to, the memory that they have among it, and spans with its numbers.

    ``arena``: of a cache in front of ``store``.
    """
    memory = spans.memory or ()
    paths, ends = store.file_table()
    count, more = len(ends), len(memory)
    files = _native.required().Files(
        paths,
        np.concatenate([ends, np.full(more, len(paths), np.int64)]),
        np.concatenate([store.mapped_files(), np.ones(more, np.uint8)]),
        arena,
        {**store.memory(), **{count + k: array for k, array in enumerate(memory)}},
    )
    file = spans.file
    file = np.where(file == count, count + more, file)  # the cache comes last
    file = np.where(file < 0, count - 1 - file, file).astype(np.int32)
    return files, dataclasses.replace(spans, file=file)


ValueChanges: TypeAlias = "tuple[np.ndarray, np.ndarray, int]"
"""Codes int32 (k,), operands float32 (k, 3), and how sums are rounded: see resample/values.h."""


CachePlace: TypeAlias = "tuple[_core.Arena, int, np.ndarray]"
"""Arena and form of a cache, and the numbers of a batch's images in it, int64 (n,)."""


class Kernel:
    """What a plan does to images, as the core takes it. Every batch is submitted here.

    Random parameters come with each batch. ``values`` is what is done to values that the last stage
    resizes; None: it does not.
    """

    def __init__(
        self, plan: Plan, *, channels_last: bool = False, values: ValueChanges | None = None
    ) -> None:
        self._core = _native.required()
        self._erased = plan.erased_bytes()
        self._spec: _core.BatchSpec = self._core.BatchSpec()
        self._spec.dtype, self._spec.channels = _DTYPES[plan.dtype], plan.channels
        self._spec.channels_last, self._spec.scaled = channels_last, plan.scaled
        self._spec.filter, self._spec.order = plan.filter, _pass_order()
        self._spec.fill, self._spec.lut, self._spec.values = plan.fill, plan.lut_bytes(), values

    def submit(
        self,
        files: _core.Files,
        batch: BatchRequest,
        status: np.ndarray,
        detail: np.ndarray | None = None,
        *,
        threads: int,
        entries: tuple[_core.EntryTable, np.ndarray] | None = None,
        filters: np.ndarray | None = None,
        cache: CachePlace | None = None,
        begin: bool = True,
        views: tuple[list[_core.Job], np.ndarray] | None = None,
    ) -> _core.Job:
        """Start to fill ``batch``.

        Args:
            files: what its spans refer to.
            status, detail: int32 (n,), written.
            entries: the table of entry points, and the numbers of the images there, int64 (n,).
            cache: where ``batch.cache_fill`` goes.
            threads, filters, begin, views: as in the core's ``BatchSpec``.
        """
        geometry, params = batch.geometry, batch.params
        spec = self._core.BatchSpec(self._spec)
        spec.file, spec.offset = batch.spans.file, batch.spans.offset
        spec.nbytes, spec.kind, spec.size = batch.spans.nbytes, batch.kinds, batch.sizes
        spec.checksum, spec.check = batch.checksums, batch.check
        spec.box, spec.resized = geometry.box, geometry.resized
        spec.window, spec.flip = geometry.window, geometry.flip
        spec.out, spec.out_h, spec.out_w = batch.memory, geometry.out_h, geometry.out_w
        spec.rows = batch.rows
        spec.status, spec.times, spec.threads = status, batch.times, threads
        spec.detail = np.empty(len(status), np.int32) if detail is None else detail
        spec.most_pixels, spec.entries, spec.filters = batch.most_pixels, entries, filters
        spec.begin, spec.views = begin, views
        if params is not None:
            spec.stages = params.stages()
            if self._erased is not None:
                spec.erase = params.erase(*self._erased)
        if cache is not None and batch.cache_fill is not None:
            spec.cache_fill = self._cache_fill(batch.cache_fill, *cache)
        job: _core.Job = self._core.submit(files, spec)
        return job

    def _cache_fill(
        self, cache_fill: CacheFill, arena: _core.Arena, form: int, numbers: np.ndarray
    ) -> _core.CacheFill:
        placed, spec = cache_fill.placed, self._spec
        stage = placed and (placed.source, placed.box, placed.resized, placed.window)
        core_fill: _core.CacheFill = self._core.CacheFill(
            arena,
            form,
            numbers,
            cache_fill.wanted,
            stage,
            filter=spec.filter,
            order=spec.order,
            fill=spec.fill,
        )
        return core_fill


def pixels_as_files(
    pixels: Sequence[np.ndarray],
) -> tuple[_core.Files, Spans, np.ndarray, np.ndarray]:
    """Images of decoded pixels, uint8 (h, w, 3): files, spans, kinds and sizes of them."""
    n = len(pixels)
    flat = [image.reshape(-1) for image in pixels]
    files = _native.required().Files(
        b"", np.zeros(n, np.int64), np.ones(n, np.uint8), None, dict(enumerate(flat))
    )
    spans = Spans(
        file=np.arange(n, dtype=np.int32),
        offset=np.zeros(n, np.int64),
        nbytes=np.array([len(image) for image in flat], np.int64),
    )
    sizes = np.array([image.shape[1::-1] for image in pixels], np.int32)
    return files, spans, np.full(n, RAW, np.uint8), sizes


def shared_regions(batches: Sequence[BatchRequest]) -> np.ndarray:
    """What all views of each sample need of its source: int32 (n, 4), x, y, w, h; w 0: nothing.

    Decoding costs time for the pixels that come out and, for a JPEG, for all rows above the last
    one, because its Huffman codes follow each other. It is shared where that is less in total.
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
