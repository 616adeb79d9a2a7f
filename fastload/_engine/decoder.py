"""The contract of the engines: records in, one tensor of images out."""

from __future__ import annotations

import abc
import concurrent.futures
import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .._base.slabs import SlabRing
from .._base.timeline import TIMES
from .._transforms import sample_params as recipe
from .._transforms.geometry.crop_geometry import Refused
from .._transforms.geometry.draws import Geometry
from .._transforms.geometry.geometry_log import Moves
from .._transforms.recognise import Plan
from .._transforms.sample_params import Recipe
from .._transforms.targets.joint import Moving
from .._transforms.views import Views
from ..errors import DataError, DecodeError
from ..storage.base import UNSIZED, Located, Spans, Store
from .cache.prefix import merged
from .cache.store import CachedStore, Keep

if TYPE_CHECKING:
    from .processes import Processes

Images = torch.Tensor | list[torch.Tensor]
"""The images of a batch, (n, 3, h, w), or those of each view of it."""

REPLACED = "was the file replaced? Make the dataset anew to have its size read again"
"""What to do about an image whose size is not what it was."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Draws:
    """What the random parameters of a batch come from.

    Attributes:
        seed, epoch, repeats: for ``recipe.draw``.
        timed: the ticket gets the times of its samples.
    """

    seed: int
    epoch: int
    repeats: np.ndarray | None = None
    timed: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """One batch on its way through an engine.

    Attributes:
        records: int64 (n,), record numbers in the store.
        spans, kinds, sizes, checksums: of these records, as the store gives them; but ``sizes`` of
            what the geometry was drawn for, where ``keep`` says that pixels are kept first.
        check: uint8 (n,), 1 where the checksum is to be verified; None where there are none.
        geometry: crop, size, window and flip of each sample.
        recipe: what comes behind that; None: nothing.
        images: the tensor to fill, (n, channels, out_h, out_w).
        memory: the same memory as a 1-D uint8 array.
        times: int64 (n, TIMES), where each sample's times are to be written, as the core's
            ``submit`` writes them; None: nowhere.
        kept: bool (n,), what lies in the decoder's cache; None: it has none.
        keep: what of the batch goes into that cache, or None.
    """

    records: np.ndarray
    spans: Spans
    kinds: np.ndarray
    sizes: np.ndarray
    checksums: np.ndarray | None
    check: np.ndarray | None
    geometry: Geometry
    recipe: Recipe | None
    images: torch.Tensor
    memory: np.ndarray
    times: np.ndarray | None
    kept: np.ndarray | None
    keep: Keep | None

    def part(self, which: slice | np.ndarray, memory: np.ndarray) -> Batch:
        """Some of its samples, to be filled into ``memory``."""
        spans, at, keep = self.spans, self.geometry, self.keep
        return dataclasses.replace(
            self,
            records=self.records[which],
            spans=Spans(
                file=spans.file[which], offset=spans.offset[which], nbytes=spans.nbytes[which]
            ),
            kinds=self.kinds[which],
            sizes=self.sizes[which],
            checksums=None if self.checksums is None else self.checksums[which],
            check=None if self.check is None else self.check[which],
            geometry=dataclasses.replace(
                at,
                box=at.box[which],
                resized=at.resized[which],
                window=at.window[which],
                flip=at.flip[which],
            ),
            recipe=None if self.recipe is None else self.recipe.part(which),
            memory=memory,
            times=None if self.times is None else self.times[which],
            kept=None if self.kept is None else self.kept[which],
            keep=None if keep is None else keep.part(which),
        )

    def __getstate__(self) -> dict[str, Any]:
        # Another process fills memory of its own.
        return {**self.__dict__, "images": None, "memory": None}

    def source_size(self, i: int) -> tuple[int, int]:
        """Width and height that the store says sample ``i`` has."""
        placed = None if self.keep is None or not self.keep.wanted[i] else self.keep.placed
        width, height = (self.sizes if placed is None else placed.source)[i].tolist()
        return width, height


class Ticket(abc.ABC):
    """A batch that is being filled.

    Attributes:
        times: of its samples, if they were asked for; complete after ``result``.
        nbytes: of its records, as far as their spans tell.
        hits: how many of its samples come from a cache; None without one.
        moving: the fields that move along with the images, or None.
    """

    times: np.ndarray | None
    nbytes: int = 0
    hits: int | None = None
    moving: Moving | None = None

    @abc.abstractmethod
    def result(self) -> Images:
        """Wait, and return the images.

        Raises:
            DataError: the first sample that failed, with its file, record and offset.
            concurrent.futures.CancelledError: the ticket was cancelled.
        """

    @abc.abstractmethod
    def settle(self) -> tuple[Images, dict[int, DataError]]:
        """Wait, and return the images and what failed, by position: the images there hold nothing.

        Raises:
            concurrent.futures.CancelledError: the ticket was cancelled.
        """

    @abc.abstractmethod
    def cancel(self) -> None:
        """Stop filling; returns when nothing writes into the batch any more. From any thread."""

    def stages_ns(self) -> Mapping[str, int]:
        """Work per stage in nanoseconds, added up over threads. Complete after ``result``."""
        return {}


class Decoder(abc.ABC):
    """Fills batches from one store after one plan, in the process that made it.

    Args:
        store: where the records are.
        plan: what to make of each image.
        channels_last: strides of the batch: NHWC order in memory instead of NCHW.
        threads: decoding threads; 0 means that the caller of ``Ticket.result`` does the work.
        check_crc: "first" verifies each record the first time, "always", or "never".
        ring: where batches are allocated; None allocates pinned memory by torch instead.
    """

    name: str
    processes: Processes | None = None  # that decode what Pillow has to
    view = 0  # which of these processes' decoders stands for it
    keeps = True  # what it reads, where it has a cache

    def __init__(
        self,
        store: Store,
        plan: Plan,
        *,
        channels_last: bool,
        threads: int,
        check_crc: str,
        ring: SlabRing | None,
    ) -> None:
        self.store = store
        self.cache = store if isinstance(store, CachedStore) else None
        # What errors name, and what file numbers below the cache's belong to.
        self.origin = store.inner if isinstance(store, CachedStore) else store
        self.plan = plan
        self.channels_last = channels_last
        self.threads = threads
        self.rest: Plan | None = None
        """The whole plan, where the device stage does what ``plan`` leaves of it."""
        self._check_crc = check_crc
        self._checked: np.ndarray | None = None
        self._ring, self._users = ring, set[int]()
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None

    def submit(
        self,
        records: np.ndarray,
        *,
        seed: int,
        epoch: int,
        repeats: np.ndarray | None = None,
        timed: bool = False,
    ) -> Ticket:
        """Begin to fill a batch with ``records`` (int64, in range); see ``Draws`` for the rest.

        Raises:
            Refused: nothing can be made of a sample; with its place.
            DataError: the images make no batch.
        """
        draws = Draws(seed=seed, epoch=epoch, repeats=repeats, timed=timed)
        try:
            return self._submit(records, draws)
        except Refused as refused:
            at = refused.position
            raise refused.of(at, **self.where(int(records[at]))) from None

    def _submit(self, records: np.ndarray, draws: Draws) -> Ticket:
        batch, moves = self.prepare(records, draws)
        ticket = self._start(batch)
        if self.plan.joint is not None and moves is not None:
            ticket.moving = Moving(
                self.plan.joint,
                self.origin,
                records,
                batch.sizes,
                moves,
                batch.geometry.out_h,
                batch.geometry.out_w,
                self.pool() if self.threads else None,
            )
        return self.counted(ticket, batch)

    @staticmethod
    def counted(ticket: Ticket, batch: Batch) -> Ticket:
        """The ticket of ``batch``, with its figures."""
        ticket.nbytes = int(batch.spans.nbytes.clip(0).sum())
        if batch.kept is not None:
            ticket.hits = int(batch.kept.sum())
        return ticket

    def prepare(self, records: np.ndarray, draws: Draws) -> tuple[Batch, Moves | None]:
        """The batch that ``submit`` begins to fill, and the steps of what moves along."""
        found = self.store.locate(records)
        unknown = np.flatnonzero(found.sizes.min(axis=1, initial=1) <= 0)
        if len(unknown):
            raise self.error(DecodeError, UNSIZED, records, unknown[0])
        keep = None
        if self.cache is not None and self.keeps:
            keep = self.cache.to_keep(records, found)
        drawn: dict[str, Any] = {
            "seed": draws.seed, "epoch": draws.epoch, "indices": records, "repeats": draws.repeats
        }  # fmt: skip
        moves = None if self.plan.joint is None else Moves(len(records))
        if moves is not None:
            drawn["moves"] = moves
        sizes, geometry, behind = self._draw(found, keep, drawn)
        images, memory = self._allocate(len(records), geometry.out_h, geometry.out_w)
        checksums = None if self._check_crc == "never" else self.store.checksums(records)
        batch = Batch(
            records=records,
            spans=found.spans,
            kinds=found.kinds,
            sizes=sizes,
            checksums=checksums,
            check=self._to_check(records, checksums, found),
            geometry=geometry,
            recipe=behind,
            images=images,
            memory=memory,
            times=np.zeros((len(records), TIMES), np.int64) if draws.timed else None,
            kept=found.kept,
            keep=keep,
        )
        return batch, moves

    def _draw(
        self, found: Located, keep: Keep | None, drawn: dict[str, Any]
    ) -> tuple[np.ndarray, Geometry, Recipe | None]:
        """The sizes of a batch's images, their geometry, and what comes behind it.

        What a cache keeps as pixels, or is about to, has the first operations behind it.
        """
        sizes, plan = found.sizes, self.plan
        prefix = None if self.cache is None else self.cache.prefix
        if prefix is None or found.kept is None:
            return sizes, *recipe.draw(plan, sizes, **drawn)
        begun = found.kept
        if keep is not None and keep.placed is not None:
            wanted = keep.wanted.astype(bool)
            sizes, begun = sizes.copy(), begun | wanted
            sizes[wanted] = keep.placed.window[wanted, 2:]
        if not prefix.ops or not begun.any():
            return sizes, *recipe.draw(plan, sizes, **drawn)
        if begun.all():
            return sizes, *recipe.draw(prefix.rest(plan), sizes, **drawn)
        parts = []
        for which, part in ((begun, prefix.rest(plan)), (~begun, plan)):
            its = {key: value[which] if isinstance(value, np.ndarray) else value
                   for key, value in drawn.items()}  # fmt: skip
            try:
                parts.append(recipe.draw(part, sizes[which], **its))
            except Refused as refused:
                raise refused.of(int(np.flatnonzero(which)[refused.position])) from None
        (one, _), (other, _) = parts
        if (one.out_h, one.out_w) != (other.out_h, other.out_w):
            # Images of several sizes: the error is that of the batch without a cache.
            return sizes, *recipe.draw(plan, self.origin.sizes(drawn["indices"]), **drawn)
        return sizes, *merged(begun, parts[0], parts[1])

    def makes(self, plan: Plan | Views) -> bool:
        """Whether it makes of any image what ``plan`` says."""
        return self.plan.same_as(plan)

    def readahead(self, spans: Sequence[Spans], *, wait: bool = False) -> None:  # noqa: B027
        """Ask the system to read these bytes, which will be wanted soon; here, nothing.

        ``wait`` returns when the system was asked; the bytes are never waited for.
        """

    @abc.abstractmethod
    def _start(self, batch: Batch) -> Ticket:
        """Begin to fill ``batch``."""

    def _allocate(self, n: int, height: int, width: int) -> tuple[torch.Tensor, np.ndarray]:
        channels, dtype = self.plan.channels, self.plan.dtype
        shape, area = (n, channels, height, width), height * width
        strides = (channels * area, area, width, 1)
        if self.channels_last:
            strides = (channels * area, 1, channels * width, channels)
        if self._ring is not None:
            return self._ring.lease(shape, dtype, strides)
        # torch's own pinned memory: its allocator alone knows when a copy by the caller has ended
        nbytes = n * channels * area * dtype.itemsize
        flat = torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
        images = torch.empty(0, dtype=dtype, device="cpu")
        images.set_(flat.untyped_storage(), 0, shape, strides)
        return images, flat.numpy()

    @property
    def rings(self) -> tuple[SlabRing, ...]:
        """Where batches are allocated; none where torch does."""
        return () if self._ring is None else (self._ring,)

    def slabs_in_use(self) -> int:
        """Batches in memory that somebody refers to; 0 where torch allocates them."""
        return 0 if self._ring is None else self._ring.in_use()

    def _to_check(
        self, records: np.ndarray, checksums: np.ndarray | None, found: Located
    ) -> np.ndarray | None:
        if checksums is None:
            return None
        if self._check_crc == "always":
            check = np.ones(len(records), bool)
        else:
            if self._checked is None:
                self._checked = np.zeros(len(self.store), bool)
            check = ~self._checked[records]
        if found.converted is not None:  # was checked when it was converted
            check &= ~found.converted
        return check.astype(np.uint8)

    def checked(self, batch: Batch) -> None:
        """Note that the checksums of ``batch`` were right."""
        if self._checked is not None and batch.check is not None:
            self._checked[batch.records[batch.check.astype(bool)]] = True

    def pool(self) -> concurrent.futures.ThreadPoolExecutor:
        """Threads for what Pillow has to decode and for read-ahead; made on first use."""
        if self._pool is None:
            self._pool = concurrent.futures.ThreadPoolExecutor(
                max_workers=max(1, self.threads), thread_name_prefix="fastload-helper"
            )
        return self._pool

    def employ(self, processes: Processes | None) -> None:
        """Let ``processes`` decode what Pillow has to; None: threads of this process do."""
        self.processes = processes

    def acquire(self, user: object) -> None:
        """``user`` iterates with this decoder, until ``release``."""
        self._users.add(id(user))
        if self.processes is not None:
            self.processes.acquire(user, self.threads)

    def release(self, user: object) -> None:
        """End of one ``acquire``; the last one ends the threads. Another call does nothing."""
        self._users.discard(id(user))  # sets change atomically
        if self.processes is not None:
            self.processes.release(user)
        if not self._users:
            pool, self._pool = self._pool, None
            if pool is not None:
                pool.shutdown(wait=True, cancel_futures=True)

    def error(self, kind: type[DataError], message: str, records: np.ndarray, i: int) -> DataError:
        """An error about sample ``i`` of ``records``, naming file, record and offset."""
        return kind(message, **self.where(int(records[i])))

    def where(self, record: int) -> dict[str, Any]:
        """Path, record and offset of a record in its store, for errors."""
        spans = self.origin.spans(np.array([record], np.int64))
        path = self.origin.files[int(spans.file[0])]
        offset = int(spans.offset[0]) if self.origin.indirect is None else None
        return {"path": path, "record": record, "offset": offset}
