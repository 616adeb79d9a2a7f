"""What the engines that decode images have in common: everything but decoding itself.

Records are looked up, crops and colours are drawn and memory is allocated here, once per batch, in
arrays. Then ``ImageEngine.start`` hands the batch to the engine.
"""

from __future__ import annotations

import abc
import concurrent.futures
import dataclasses
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from typing_extensions import override

from .._base import pixel_limit
from .._base.slabs import SlabRing
from .._base.timeline import TIMES
from .._base.value_class import value_class
from .._transforms import sample_params
from .._transforms.geometry.crop_geometry import Geometry, Refused
from .._transforms.geometry.draws import Numbers
from .._transforms.plan import Plan, Views
from ..hints import CheckCrc
from ..storage.base import Located, Store
from .base import BatchEngine, Ticket
from .kernel import BatchRequest

if TYPE_CHECKING:
    from .._transforms.geometry.geometry_log import GeometryLog
    from .cache.store import CachedStore


class PillowProcesses(Protocol):
    """Worker processes that decode with Pillow; ``processes.py`` implements it."""

    def acquire(self, user: object, count: int) -> None:
        """``user`` iterates, until ``release``; ``count`` processes start unless some run."""

    def release(self, user: object) -> None:
        """End one ``acquire``. Another call does nothing."""

    def submit(self, engine: ImageEngine, batch: BatchRequest, which: np.ndarray) -> Ticket | None:
        """Start to fill samples ``which`` of ``batch``; None: the processes cannot."""


@value_class(kw_only=True)
class EngineOptions:
    """How an engine works. None of it changes an image.

    Attributes:
        threads: as in ``BatchEngine``.
        ring: where batches are allocated; None: torch allocates them in pinned memory.
        channels_last: memory order of the batch: NHWC instead of NCHW.
        check_crc: "first" verifies a record's checksum the first time, "always", or "never".
        device: where images are decoded, if the engine can choose.
        processes: decode what only Pillow can decode; None: threads of this process do.
        view: number of the view. View 0 reads ahead, verifies checksums and fills the cache.
    """

    threads: int
    ring: SlabRing | None
    channels_last: bool = False
    check_crc: CheckCrc = "first"
    device: torch.device = dataclasses.field(default_factory=lambda: torch.device("cpu"))
    processes: PillowProcesses | None = None
    view: int = 0

    def of_view(self, view: int) -> EngineOptions:
        """The options of one of several views. Each has slabs of its own."""
        return dataclasses.replace(
            self,
            ring=None if self.ring is None else self.ring.another(),
            check_crc="never" if view else self.check_crc,  # all read the same bytes
            view=view,
        )

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "processes": None}


class ImageEngine(BatchEngine):
    """Decodes the images of one store and applies one plan to them."""

    def __init__(self, store: Store, plan: Plan, options: EngineOptions) -> None:
        super().__init__(store, options.threads)
        self.cache: CachedStore | None = None
        if store.format == "cache":
            from .cache.store import CachedStore

            if isinstance(store, CachedStore):
                self.cache, self.origin = store, store.inner
        self.plan = plan
        self.options = options
        self.processes = options.processes
        self._verified: np.ndarray | None = None
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None
        # A dropped iterator ends in a thread of its own while the next one starts. Re-entrant: the
        # garbage collector may close an abandoned one in between.
        self._lock = threading.RLock()

    @abc.abstractmethod
    def start(self, batch: BatchRequest) -> Ticket:
        """Start to fill ``batch``."""

    def start_views(
        self, others: Sequence[ImageEngine], batches: Sequence[BatchRequest]
    ) -> list[Ticket]:
        """Start to fill a batch for each view, all of the same records: this engine's, then the
        ``others``'.
        """
        engines = [self, *others]
        return [engine.start(batch) for engine, batch in zip(engines, batches, strict=True)]

    def _submit(self, numbers: Numbers, *, timed: bool) -> Ticket:
        joint = self.plan.joint
        if joint is None:
            batch = self.prepare(numbers, timed=timed)
            return counted(self.start(batch), batch)
        from .._transforms.geometry.geometry_log import GeometryLog
        from .._transforms.targets.moving import Moving

        log = GeometryLog(len(numbers.indices))
        batch = self.prepare(numbers, log, timed=timed)
        ticket = self.start(batch)
        ticket.moving = Moving(
            joint,
            self.origin,
            batch.records,
            batch.sizes,
            log,
            batch.geometry.out_h,
            batch.geometry.out_w,
            self.pool() if self.threads else None,
        )
        return counted(ticket, batch)

    def check(self, numbers: Numbers) -> None:
        """Raise what ``submit`` raises, without a cache; nothing is read or filled."""
        sizes = self.store.sizes(numbers.indices)
        self._refuse_unsized(numbers.indices, sizes)
        sample_params.draw(self.plan, sizes, numbers)

    def _refuse_unsized(self, records: np.ndarray, sizes: np.ndarray) -> None:
        unknown = np.flatnonzero(sizes.min(axis=1, initial=1) <= 0)
        if len(unknown):
            raise self.unsized(int(records[unknown[0]]))

    def prepare(
        self, numbers: Numbers, log: GeometryLog | None = None, *, timed: bool
    ) -> BatchRequest:
        """The batch that ``submit`` starts to fill; ``log`` is for its joint fields."""
        records = numbers.indices
        located = self.store.locate(records)
        self._refuse_unsized(records, located.sizes)
        fill, sizes = None, located.sizes
        if self.cache is None:
            geometry, params = sample_params.draw(self.plan, sizes, numbers, log)
        else:
            if self.options.view == 0:
                fill = self.cache.to_fill(records, located)
            sizes, geometry, params = self.cache.draw(self.plan, numbers, located, fill, log)
        images, memory = self._allocated(len(records), geometry)
        never = self.options.check_crc == "never"
        checksums = None if never else self.store.checksums(records)
        return BatchRequest(
            records=records,
            spans=located.spans,
            kinds=located.kinds,
            sizes=sizes,
            checksums=checksums,
            check=self._to_check(records, checksums, located),
            geometry=geometry,
            params=params,
            images=images,
            memory=memory,
            times=np.zeros((len(records), TIMES), np.int64) if timed else None,
            cached=located.kept,
            cache_fill=fill,
            most_pixels=pixel_limit.most_pixels(),
        )

    def _allocated(self, n: int, geometry: Geometry) -> tuple[torch.Tensor, np.ndarray]:
        """``allocate``. Raises Refused where a size that an image claims is more than there is."""
        try:
            return self.allocate(n, geometry.out_h, geometry.out_w)
        except (OSError, MemoryError) as error:
            if self.plan.fixed_size:
                raise
            size = f"{geometry.out_w}x{geometry.out_h}"
            raise Refused(f"no memory for an image of {size} pixels: {error}") from error

    @override
    def makes(self, plan: Plan | Views) -> bool:
        return self.plan.same_as(plan)

    @override
    def uniform(self, records: np.ndarray) -> bool:
        if self.plan.fixed_size or self.plan.drawn_size:
            return self.plan.fixed_size
        sizes = sample_params.output_sizes(self.plan, self.store.sizes(records))
        return sizes is not None and bool(sizes.all()) and bool((sizes == sizes[:1]).all())

    def allocate(self, n: int, height: int, width: int) -> tuple[torch.Tensor, np.ndarray]:
        """Memory for a batch: the tensor (n, channels, height, width), and its bytes."""
        channels, dtype = self.plan.channels, self.plan.dtype
        shape, area = (n, channels, height, width), height * width
        strides = (channels * area, area, width, 1)
        if self.options.channels_last:
            strides = (channels * area, 1, channels * width, channels)
        if self.options.ring is not None:
            return self.options.ring.lease(shape, dtype, strides)
        # torch's own pinned memory: its allocator alone knows when a copy by the caller has ended
        nbytes = n * channels * area * dtype.itemsize
        flat = torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
        images = torch.empty(0, dtype=dtype, device="cpu")
        images.set_(flat.untyped_storage(), 0, shape, strides)
        return images, flat.numpy()

    @property
    @override
    def rings(self) -> tuple[SlabRing, ...]:
        return () if self.options.ring is None else (self.options.ring,)

    def _to_check(
        self, records: np.ndarray, checksums: np.ndarray | None, located: Located
    ) -> np.ndarray | None:
        if checksums is None:
            return None
        if self.options.check_crc == "always":
            check = np.ones(len(records), bool)
        else:
            if self._verified is None:
                self._verified = np.zeros(len(self.store), bool)
            check = ~self._verified[records]
        if located.converted is not None:  # was verified when it was converted
            check &= ~located.converted
        return check.astype(np.uint8)

    def verified(self, batch: BatchRequest) -> None:
        """Note that the checksums of ``batch`` were right."""
        if self._verified is not None and batch.check is not None:
            self._verified[batch.records[batch.check.astype(bool)]] = True

    def pool(self) -> concurrent.futures.ThreadPoolExecutor:
        """Threads that decode with Pillow and read ahead; made on first use."""
        with self._lock:
            if self._pool is None:
                self._pool = concurrent.futures.ThreadPoolExecutor(
                    max_workers=max(1, self.threads), thread_name_prefix="fastload-helper"
                )
            return self._pool

    @override
    def acquire(self, user: object) -> None:
        with self._lock:
            super().acquire(user)
        if self.processes is not None:
            self.processes.acquire(user, self.threads)

    @override
    def release(self, user: object) -> None:
        pool = None
        with self._lock:
            super().release(user)
            if not self._users:
                pool, self._pool = self._pool, None
        if self.processes is not None:
            self.processes.release(user)
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)

    def __reduce__(self) -> tuple[object, ...]:
        options = dataclasses.replace(self.options, threads=self.threads)
        return type(self), (self.store, self.plan, options)


class PixelEngine(ImageEngine):
    """An engine that also finishes images which something else has decoded."""

    @abc.abstractmethod
    def of_pixels(self, batch: BatchRequest, pixels: Sequence[np.ndarray]) -> list[int]:
        """Fill ``batch`` from decoded pixels, uint8 (h, w, 3): one image per sample.

        Returns the positions of those that it cannot finish, because a side is too long for it.
        """


def counted(ticket: Ticket, batch: BatchRequest) -> Ticket:
    """The ticket of ``batch``, with its figures."""
    ticket.nbytes = int(batch.spans.nbytes.clip(0).sum())
    if batch.cached is not None:
        ticket.hits = int(batch.cached.sum())
    return ticket
